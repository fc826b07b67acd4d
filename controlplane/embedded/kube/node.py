"""One real node: containerd and kubelet with their own file systems, network and control group."""

from __future__ import annotations

import datetime as dt
import os
import shutil
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from controlplane.embedded.direct import open_direct
from controlplane.embedded.kube import cgroups, links, mounts, namespace
from controlplane.embedded.kube.api import ApiError
from controlplane.embedded.kube.runtime import KUBELET_ROOT, SOCKET, Layout
from controlplane.embedded.problems import EmbeddedError
from controlplane.embedded.processes import Spec

if TYPE_CHECKING:
    from controlplane.embedded.kube.cluster import KubeCluster

MEBIBYTE = 2**20
_READY_WITHIN = 150.0  # seconds
_HEALTH_PORT = 10248
# Labels of these domains are the control plane's: a kubelet may not give them to itself.
_RESERVED = ("kubernetes.io", "k8s.io")
# Joins the group first, so that everything it ever starts can be ended together.
_JOIN = 'echo $$ >"$0" && exec "$@"'


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """What a node is made of. ``taints`` are written ``key=value:Effect``; ``disk_bytes`` is the size of its store."""

    name: str
    index: int
    labels: Mapping[str, str]
    taints: Sequence[str]
    disk_bytes: int


class KubeNode:
    """A node of a cluster. ``store`` is its cache disk as this machine sees it; pods see it at ``cache_path``."""

    def __init__(self, cluster: KubeCluster, options: NodeOptions) -> None:
        self.options = options
        self.name = options.name
        self.folder = cluster.folder / "nodes" / options.name
        self.store = self.folder / "store"
        self.cache_path = cluster.cache_path
        self._cluster = cluster
        self._rejoined: dt.datetime | None = None
        self._scope = f"node-{options.name}"
        self._namespace = self.folder / "namespace" / "mnt"
        self._layout = Layout(
            name=options.name,
            folder=self.folder,
            index=options.index,
            network=cluster.control.network,
            bridge=f"hk{cluster.token}n{options.index}",
            cgroup=f"hearth-{cluster.token}-{options.index}",
            registry=cluster.registry,
            pause_image=cluster.pause_image,
        )

    @property
    def uid(self) -> str:
        """The uid of its Node object as it is now."""
        return str(self._cluster.client.get(f"/api/v1/nodes/{self.name}")["metadata"]["uid"])

    @property
    def address(self) -> str:
        """The node's address, also that of pods with ``hostNetwork``."""
        return self._layout.address

    @property
    def cgroup(self) -> str:
        """The control group of all its processes."""
        return self._layout.cgroup

    def join(self) -> None:
        """Make the machine, start it and wait until it is Ready: about a second."""
        self._make()
        cluster = self._cluster
        certificates = cluster.control.certificates
        identity = certificates.issue_node(self.name)
        cluster.control.write_kubeconfig(identity, self.folder / "kubelet.kubeconfig")
        self._layout.write(certificates.crt("ca"))
        cluster.supervisor.start(self._containerd())
        cluster.supervisor.start(self._kubelet())
        reserved = {key: value for key, value in self.options.labels.items() if _is_reserved(key)}
        if reserved:
            cluster.client.merge(f"/api/v1/nodes/{self.name}", {"metadata": {"labels": reserved}})

    def kill(self, *, pods: bool = False) -> None:
        """End kubelet and containerd without a word. Its pods keep running, unless they are asked to die as well."""
        self._cluster.supervisor.kill(self._name("kubelet"))
        self._cluster.supervisor.kill(self._name("containerd"))
        if pods:
            cgroups.kill(self._layout.cgroup)

    def start(self) -> None:
        """Start them again, with the same disk, and wait until the node reports itself Ready."""
        self._cluster.supervisor.restart(self._name("containerd"))
        self._rejoined = dt.datetime.now(dt.UTC)
        self._cluster.supervisor.restart(self._name("kubelet"))

    def remove(self) -> None:
        """Take the machine away with all that was on it, and its Node object."""
        for program in ("kubelet", "containerd"):
            self._cluster.supervisor.forget(self._name(program))
        cgroups.kill(self._layout.cgroup)
        self._cluster.client.delete(f"/api/v1/nodes/{self.name}")
        self._cluster.ledger.undo(self._scope)
        shutil.rmtree(self.folder)
        del self._cluster.nodes[self.name]

    def replace(self) -> KubeNode:
        """A new machine under the same name: empty disk, new uid. This object must not be used any more."""
        self.remove()
        return self._cluster.place(KubeNode(self._cluster, self.options))

    def fill(self, size: int) -> None:
        """Let something else take ``size`` bytes of the store; 0 gives them back. EmbeddedError when it is too
        much, and nothing changes then."""
        filler = self.store / ".somebody-else"
        if not size:
            filler.unlink(missing_ok=True)
            return
        with filler.open("ab") as file:
            before = file.tell()
            try:
                os.posix_fallocate(file.fileno(), 0, size)
            except OSError as error:
                os.ftruncate(file.fileno(), before)
                held = f"; the {before // MEBIBYTE} MiB from before stay" if before else ""
                raise EmbeddedError(
                    f"the store of {self.name} has no room for {size} bytes: {error.strerror}{held}"
                ) from error
            os.ftruncate(file.fileno(), size)

    def store_bytes(self) -> tuple[int, int]:
        """Size of the store, and what is free of it."""
        usage = shutil.disk_usage(self.store)
        return usage.total, usage.free

    def _make(self) -> None:
        """The parts of the machine, each written down first."""
        note, layout = self._cluster.ledger.note, self._layout
        self.folder.mkdir(parents=True)
        for name in ("kubelet", "containerd"):
            (self.folder / name).mkdir()
        note(self._scope, "mounts", str(self.folder))
        mounts.tmpfs(self.store, self.options.disk_bytes)
        self.store.chmod(0o777)  # whoever the agent runs as
        note(self._scope, "link", layout.bridge)
        links.create_bridge(layout.bridge, f"{layout.address}/24")
        note(self._scope, "cgroup", layout.cgroup)
        cgroups.create(layout.cgroup)
        others = [folder / self.store.name for folder in self.folder.parent.iterdir() if folder != self.folder]
        binds = {self.folder / "kubelet": KUBELET_ROOT, self.store: str(self.cache_path)}
        # Unpacking images to a disk, and deleting them again, takes longer than everything else together.
        namespace.create(self._namespace.parent, binds=binds, memory=self.folder / "containerd", hide=others)

    def _containerd(self) -> Spec:
        def ready() -> bool:
            pid = self._cluster.supervisor.pid(self._name("containerd"))
            with socket.socket(socket.AF_UNIX) as connection:
                try:
                    connection.connect(f"/proc/{pid}/root{SOCKET}")
                except OSError:
                    return False
            return True

        return self._spec("containerd", ["containerd", "--config", str(self.folder / "containerd.toml")], ready)

    def _kubelet(self) -> Spec:
        options = {
            "config": str(self.folder / "kubelet.json"),
            "kubeconfig": str(self.folder / "kubelet.kubeconfig"),
            "hostname-override": self.name,
            "node-ip": self.address,
            "root-dir": KUBELET_ROOT,
            "cert-dir": f"{KUBELET_ROOT}/pki",
            "v": "2",
        }
        own = {key: value for key, value in self.options.labels.items() if not _is_reserved(key)}
        if own:
            options["node-labels"] = ",".join(f"{key}={value}" for key, value in own.items())
        if self.options.taints:
            options["register-with-taints"] = ",".join(self.options.taints)
        argv = [str(self._cluster.binaries.kubelet), *(f"--{key}={value}" for key, value in options.items())]
        return self._spec("kubelet", argv, self._is_ready)

    def _spec(self, program: str, argv: list[str], ready: Callable[[], bool]) -> Spec:
        group = str(cgroups.entry(self._layout.cgroup))
        return Spec(
            name=self._name(program),
            argv=["sh", "-c", _JOIN, group, *namespace.inside(self._namespace, argv)],
            cwd=self.folder,
            ready=ready,
            ready_within=_READY_WITHIN,
            stop_within=3.0,
        )

    def _is_ready(self) -> bool:
        """Whether this very kubelet is alive and has told the API server that its node is Ready."""
        client = self._cluster.client
        try:
            with open_direct(f"http://{self.address}:{_HEALTH_PORT}/healthz", timeout=1):
                pass
            node = client.get(f"/api/v1/nodes/{self.name}")
            if self._rejoined is not None:
                # What the API server holds may still be the last word of the kubelet that was killed.
                leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
                renewed = client.get(f"{leases}/{self.name}")["spec"]["renewTime"]
                if dt.datetime.fromisoformat(renewed) < self._rejoined:
                    return False
        except (OSError, ApiError):
            return False
        return any(row["type"] == "Ready" and row["status"] == "True" for row in node["status"].get("conditions", []))

    def _name(self, program: str) -> str:
        return f"{self.name}-{program}"


def _is_reserved(label: str) -> bool:
    domain = label.partition("/")[0] if "/" in label else ""
    return any(domain == suffix or domain.endswith(f".{suffix}") for suffix in _RESERVED)
