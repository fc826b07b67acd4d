"""A real Kubernetes cluster under one folder, for ``make run-kube`` and for the tests."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

from controlplane.embedded import ports, records
from controlplane.embedded.kube import binaries, cleanup, control, links, machine, network, runtime
from controlplane.embedded.kube.api import Client
from controlplane.embedded.kube.images import Builder
from controlplane.embedded.kube.ledger import SHARED, Ledger
from controlplane.embedded.kube.node import MEBIBYTE, KubeNode, NodeOptions
from controlplane.embedded.kube.registry import Registry, busybox_layer
from controlplane.embedded.problems import EmbeddedError
from controlplane.embedded.processes import Supervisor

_FRESH = {"etcd", "pki", "admin.kubeconfig", "nodes", "registry", "cache", "ledger"}
_NEEDED = ("containerd", "runc", "buildah", "docker-registry", "busybox", "ip", "unshare", "nsenter")
_PROGRAMS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_ATTEMPTS = 20
_NO_LABELS: Mapping[str, str] = MappingProxyType({})


class KubeCluster:
    """``with KubeCluster(folder, label="This test run") as cluster:`` and it answers; leaving the block stops it all.

    Every start begins with an empty cluster and puts back what an earlier owner of the folder left on the machine.
    ``label`` says in messages whose it is. Nodes need root; a ``registry`` is there for their images, and with
    ``keep_images`` the next start finds them. A node that says nothing for ``silence`` seconds becomes Unknown.
    """

    def __init__(
        self,
        folder: Path,
        *,
        label: str,
        registry: bool = False,
        keep_images: bool = False,
        silence: int = control.SILENCE,
    ) -> None:
        self.folder = folder.absolute()
        self.cache_path = self.folder / "cache"
        self.token = secrets.token_hex(3)
        self.binaries = binaries.installed()
        self.ledger = Ledger(self.folder / "ledger")
        self.nodes: dict[str, KubeNode] = {}
        self.pause_image = ""
        self.supervisor = Supervisor(self.folder, label=label)
        self._registry = Registry(self.folder / "registry", ports.free_port()) if registry else None
        self._kept = {"registry"} if keep_images else set()
        self._claim: network.Claim | None = None
        self._control: control.ControlPlane | None = None
        self._silence = silence
        self._placed = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        """Start the control plane and wait until it answers: about four seconds on two cores."""
        if os.geteuid() == 0:
            cleanup.clean(self.folder)
            cleanup.clean_abandoned(but=self.folder)
        self.supervisor.__enter__()
        try:
            for name in _FRESH - self._kept:
                _remove(self.folder / name)
            self._claim = network.claim()
            self._control = control.ControlPlane(self.folder, self.binaries, self._claim.network, self._silence)
            self._control.prepare()
            self.supervisor.start(self._control.etcd_spec(), *([self._registry.spec()] if self._registry else []))
            self.supervisor.start(self._control.api_spec())
            self.supervisor.start(self._control.scheduler_spec(), self._control.controllers_spec())
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop everything and put the machine back. Safe to call twice."""
        self.supervisor.stop()
        self.ledger.undo_all()
        self.nodes.clear()
        for name in {"nodes", "registry"} - self._kept:
            _remove(self.folder / name)
        if self._claim is not None:
            self._claim.release()
            self._claim = None

    # -- where things are --------------------------------------------------------------------------------------

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig; mode 0600, with one context ``hearth``."""
        return self.folder / "admin.kubeconfig"

    @property
    def server(self) -> str:
        """``https://127.0.0.1:<port>``; the same for the whole life of the cluster."""
        return self.control.server

    @property
    def registry(self) -> str:
        """``127.0.0.1:<port>``, the same for pods' images on every node; empty without a registry."""
        return self._registry.host if self._registry is not None else ""

    @property
    def client(self) -> Client:
        """Calls the API server as the administrator."""
        return self.control.client

    @property
    def control(self) -> control.ControlPlane:
        """The control plane; only while the cluster runs."""
        assert self._control is not None, "this cluster was not started"
        return self._control

    # -- nodes -------------------------------------------------------------------------------------------------

    def add_node(
        self,
        name: str,
        *,
        labels: Mapping[str, str] = _NO_LABELS,
        taints: Sequence[str] = (),
        disk_bytes: int = 512 * MEBIBYTE,
    ) -> KubeNode:
        """A new node, Ready: about two seconds. ``taints`` are written ``key=value:Effect``."""
        if name in self.nodes:
            raise EmbeddedError(f"There is a node {name} already.")
        if self._placed >= network.MOST_NODES:
            raise EmbeddedError(f"A cluster has room for {network.MOST_NODES} nodes.")
        if not self.nodes and not self.pause_image:
            self._prepare_machine()
        self._placed += 1
        options = NodeOptions(name, self._placed, dict(labels), tuple(taints), disk_bytes)
        return self.place(KubeNode(self, options))

    def place(self, node: KubeNode) -> KubeNode:
        """Start a node and remember it; for ``KubeNode.replace``."""
        node.join()
        self.nodes[node.name] = node
        return node

    def _prepare_machine(self) -> None:
        """What all nodes stand on: the first image, the API server's address for pods, and no way out."""
        missing = missing_for_nodes()
        if missing:
            raise EmbeddedError(missing)
        if self._registry is None:
            raise EmbeddedError("Nodes get their images from the cluster's registry; start it with registry=True.")
        layer = busybox_layer()
        self.pause_image = self._registry.push("hearth/pause", "1", layer, ["/bin/sleep", "infinity"])
        self.cache_path.mkdir()
        addresses = self.control.network
        self.ledger.note(SHARED, "machine", str(self.folder))
        machine.join(str(self.folder))
        metric = secrets.randbelow(2**30) + 1
        self.ledger.note(SHARED, "blackhole", f"{addresses.whole} {metric}")
        links.create_blackhole(addresses.whole, metric)
        self.ledger.note(SHARED, "link", f"hk{self.token}")
        links.create_bridge(f"hk{self.token}", f"{addresses.service_address}/32")
        self.supervisor.start(self.control.door_spec())

    def build_image(self, context: Path, dockerfile: Path, tag: str) -> str:
        """Build ``repository:tag``, put it into the registry and return ``host:port/repository@digest``.

        Seconds when little changed; the first time on a machine a minute or two.
        """
        if not self.registry:
            raise EmbeddedError("This cluster was started without a registry.")
        return self.push_image(Builder().build(context, dockerfile, tag))

    def push_image(self, name: str) -> str:
        """Put an image that was built here into the registry; returns ``host:port/repository@digest``."""
        assert self._registry is not None, "this cluster was started without a registry"
        return Builder().push(name, self._registry)

    def let_in(self, name: str, port: int) -> str:
        """Let pods reach what listens on this loopback port; returns ``address:port``, good on this machine as well.

        Nobody but this machine and the cluster's pods comes in. Only with nodes, on whose network the address is.
        """
        spec = self.control.way_in_spec(name, port)
        self.supervisor.start(spec)
        return f"{self.control.network.service_address}:{port}"

    # -- faults ------------------------------------------------------------------------------------------------

    def stop_api_server(self) -> None:
        """Kill the API server: open watches break without a word, new connections are refused.

        Scheduler and controllers stand still meanwhile: with each refusal they would wait longer, up to a minute, and
        long after it is back nobody would do their work.
        """
        self._signal_those_behind(signal.SIGSTOP)
        self.supervisor.kill(control.API_SERVER)

    def start_api_server(self) -> None:
        """Start it again on the same port with the same data and wait until it is ready."""
        try:
            self.supervisor.restart(control.API_SERVER)
        finally:
            self._signal_those_behind(signal.SIGCONT)

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

    def _signal_those_behind(self, number: int) -> None:
        for name in (control.SCHEDULER, control.CONTROLLERS):
            records.signal_group(self.supervisor.pid(name), number)


def missing_for_nodes() -> str:
    """Why this machine cannot run nodes, in a sentence; empty when it can."""
    if os.geteuid() != 0:
        return "Kubernetes nodes need root: they mount, they make networks and control groups."
    missing = [name for name in _NEEDED if shutil.which(name, path=_PROGRAMS) is None]
    if not (Path(runtime.PLUGINS) / "bridge").exists():
        missing.append("the CNI plugins")
    if missing:
        return f"Kubernetes nodes need {', '.join(missing)}, which this machine lacks. Run tools/kube_packages.sh"
    return ""


def _remove(path: Path) -> None:
    for _ in range(_ATTEMPTS):
        try:
            if path.is_dir():
                shutil.rmtree(path)
            path.unlink(missing_ok=True)
            return
        except (FileNotFoundError, IsADirectoryError):
            continue  # the last act of a process that was killed took a part of it away
    raise EmbeddedError(f"{path} cannot be removed: something still changes it.")
