"""A real Kubernetes cluster under one folder, for ``make run-kube`` and for the tests."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import TracebackType
from typing import Self

from controlplane.embedded.kube import binaries, control, network
from controlplane.embedded.kube.api import Client
from controlplane.embedded.processes import Supervisor

_FRESH = ("etcd", "pki", "admin.kubeconfig")


class KubeCluster:
    """``with KubeCluster(folder, label="This test run") as cluster:`` and it answers; leaving the block stops it all.

    Every start begins with an empty cluster. ``label`` says in messages whose it is.
    """

    def __init__(self, folder: Path, *, label: str) -> None:
        self.folder = folder.absolute()
        self.supervisor = Supervisor(self.folder, label=label)
        self._binaries = binaries.installed()
        self._claim: network.Claim | None = None
        self._control: control.ControlPlane | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        """Start the control plane and wait until it answers: about four seconds on two cores."""
        self.supervisor.__enter__()
        try:
            for name in _FRESH:
                _remove(self.folder / name)
            self._claim = network.claim()
            self._control = control.ControlPlane(self.folder, self._binaries, self._claim.network)
            self._control.prepare()
            self.supervisor.start(self._control.etcd_spec())
            self.supervisor.start(self._control.api_spec())
            self.supervisor.start(self._control.scheduler_spec(), self._control.controllers_spec())
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop everything. Safe to call twice."""
        self.supervisor.stop()
        if self._claim is not None:
            self._claim.release()
            self._claim = None

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig; mode 0600, with one context ``hearth``."""
        return self.folder / "admin.kubeconfig"

    @property
    def server(self) -> str:
        """``https://127.0.0.1:<port>``; the same for the whole life of the cluster."""
        return self.control.server

    @property
    def client(self) -> Client:
        """Calls the API server as the administrator."""
        return self.control.client

    @property
    def control(self) -> control.ControlPlane:
        """The control plane; only while the cluster runs."""
        assert self._control is not None, "this cluster was not started"
        return self._control

    def stop_api_server(self) -> None:
        """Kill the API server: open watches break without a word, new connections are refused."""
        self.supervisor.kill(control.API_SERVER)

    def start_api_server(self) -> None:
        """Start it again on the same port with the same data and wait until it is ready."""
        self.supervisor.restart(control.API_SERVER)

    def restart_api_server(self) -> None:
        """Kill it and start it again."""
        self.stop_api_server()
        self.start_api_server()

    def compact(self) -> None:
        """Make every older resource version unanswerable: watches and continued lists from it get 410.

        The database forgets, and the API server starts again because its memory would still answer.
        """
        self.stop_api_server()
        self.control.compact()
        self.start_api_server()


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
