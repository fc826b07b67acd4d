"""The Kubernetes of ``make run-kube``: a real cluster of three nodes on which Hearth is installed.

Hearth itself runs beside it, let in by the account and with the rights that deploy/ gives it. Every start makes a new,
empty cluster; what people pinned is in the database and is warmed again.
"""

from __future__ import annotations

import json
import platform
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from controlplane.clusters.gateway import NotFound
from controlplane.clusters.kubernetes import names
from controlplane.clusters.kubernetes.access import Access
from controlplane.clusters.kubernetes.client import KubeClient
from controlplane.clusters.kubernetes.install import documents, install
from controlplane.embedded.files import write_private
from controlplane.embedded.kube import binaries, own_image
from controlplane.embedded.kube.cluster import KubeCluster, missing_for_nodes
from controlplane.embedded.kube.images import Builder
from controlplane.embedded.kube.node import MEBIBYTE
from controlplane.embedded.kube.verbs import POOL_LABEL, Machines
from controlplane.embedded.moving import Moving
from controlplane.embedded.problems import EmbeddedError
from controlplane.embedded.processes import ROOT
from controlplane.embedded.seaweed import S3

Say = Callable[[str], object]
ZONE_LABEL = "topology.kubernetes.io/zone"
# As the local fleet: pool-a has large disks, pool-b small ones.
NODES = (("node-a", "pool-a", 1024), ("node-b", "pool-a", 1024), ("node-c", "pool-b", 512))
_BASE = ROOT / "deploy" / "base"
_ACCOUNT = f"/api/v1/namespaces/{names.SYSTEM_NAMESPACE}/serviceaccounts/hearth"
_TOKEN_SECONDS = 365 * 86400  # a run does not last longer
_MEMORY = 4_000_000_000  # bytes: three nodes with the image and their stores, all in memory, and the control plane


class KubeSide:
    """``prepare``, then ``with`` it, then ``start``; ``check`` it every half second until the block is left."""

    def __init__(self, state: Path, say: Say) -> None:
        self.folder = state.absolute() / "kube"
        self._say = say
        self._cluster: KubeCluster | None = None
        self._machines: Machines | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._cluster is not None:
            self._say("Stopping Kubernetes and putting the machine back …")
            self._cluster.stop()

    def prepare(self) -> None:
        """Build the programs, once for a machine. EmbeddedError where nodes cannot run."""
        require_machine(self.folder)
        binaries.build(self._say)

    def start(self, s3: S3 | None) -> dict[str, str]:
        """Start the cluster and install Hearth on it; returns what Hearth's processes must know.

        The S3 server listens on loopback; pods reach it at an address of their own network, and so do we.
        """
        built = self._build()
        with Moving("Starting Kubernetes: etcd, API server, scheduler, controllers", self._say):
            self._cluster = cluster = KubeCluster(self.folder, label="Kubernetes", registry=True, keep_images=True)
            cluster.start()
        for index, (name, pool, size) in enumerate(NODES):
            labels = {POOL_LABEL: pool, ZONE_LABEL: f"zone-{index + 1}"}
            with Moving(f"Starting {name} of {pool}: containerd and kubelet, a store of {size} MiB", self._say):
                cluster.add_node(name, labels=labels, disk_bytes=size * MEBIBYTE)
        self._machines = Machines(cluster)
        with Moving("Putting the agent's image into the cluster's registry", self._say):
            image = cluster.push_image(built)
        with Moving("Installing Hearth's definitions, rights and admission policies", self._say):
            client = _administrator(cluster)
            install_around(client, cluster.cache_path)
            kubeconfig = self._let_hearth_in(client)
        env = {
            "HEARTH_AGENT_IMAGE": image,
            "HEARTH_DEMO_KUBECONFIG": str(kubeconfig),
            "HEARTH_DEMO_CACHE_PATH": str(cluster.cache_path),
        }
        if s3 is not None:
            place = cluster.let_in("s3", int(s3.endpoint.rpartition(":")[2]))
            connection = self.folder / "s3.json"
            write_private(connection, json.dumps(asdict(replace(s3, endpoint=f"http://{place}"))))
            env["HEARTH_DEMO_S3_FILE"] = str(connection)
        return env

    def _build(self) -> str:
        """The image's local name."""
        builder = Builder()
        if builder.has(own_image.tag()):
            return own_image.build()
        often = "once for this machine (about two minutes)" if builder.is_new else "from what changed"
        with Moving(f"Building the agent's image {often}", self._say):
            shutil.rmtree(self.folder / "registry", ignore_errors=True)  # whose images would only grow in number
            return own_image.build()

    def check(self) -> list[str]:
        """Keep it running and do what people asked of its machines; returns a sentence for each event."""
        return self._machines.check() if self._machines is not None else []

    def greeting(self) -> str:
        """How a person looks at it."""
        assert self._cluster is not None, "only after start"
        programs = Path(sys.executable).parent
        kubectl = "kubectl" if shutil.which("kubectl") else str(programs / "kubectl")
        return (
            f"\n  Kubernetes {binaries.kubernetes_version()} with {len(NODES)} nodes; look at it from another window:\n"
            f"    export KUBECONFIG={self._cluster.kubeconfig}\n"
            f"    {kubectl} get nodecaches\n"
            "  Kill a node and see what happens, then bring it back:\n"
            f"    {programs / 'python'} {ROOT / 'manage.py'} kube stop node-a\n"
            f"    {programs / 'python'} {ROOT / 'manage.py'} kube start node-a\n"
        )

    def _let_hearth_in(self, client: KubeClient) -> Path:
        """A kubeconfig for Hearth's account: what deploy/ allows, and no more."""
        assert self._cluster is not None
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": _TOKEN_SECONDS},
        }
        answer = client.create(f"{_ACCOUNT}/token", body, manager="hearth-install")
        document = json.loads(self._cluster.kubeconfig.read_text())
        document["users"][0]["user"] = {"token": answer["status"]["token"]}
        path = self.folder / "hearth.kubeconfig"
        write_private(path, json.dumps(document, indent=1) + "\n")
        return path


def require_machine(folder: Path) -> None:
    """Raise EmbeddedError, with what to do, where real nodes cannot run."""
    if platform.system() != "Linux":
        raise EmbeddedError(
            f"Real nodes need Linux, and this is {platform.system()}. "
            "Use 'make run', whose nodes are folders, or a Linux machine."
        )
    if missing := missing_for_nodes():
        raise EmbeddedError(missing)
    # An agent's folder becomes part of a pod; deploy/ takes plain names only.
    if not re.fullmatch(r"(/[A-Za-z0-9._-]+)+", str(folder)):
        raise EmbeddedError(
            f"{folder} has characters that the path of a node's store may not have. "
            "Put the state elsewhere: HEARTH_STATE_DIR=/var/tmp/hearth make run-kube"
        )
    available = _memory_available()
    if available < _MEMORY:
        raise EmbeddedError(
            f"Three nodes need {_MEMORY / 1e9:.0f} GB of free memory and there are {available / 1e9:.1f} GB. "
            "Close something, or use 'make run', whose nodes need little."
        )


def install_around(client: KubeClient, cache_path: Path) -> None:
    """Apply deploy/base but for Hearth's own processes, which run beside the cluster, and name the nodes' folder."""
    own = {(item["kind"], item["metadata"]["name"]) for item in documents(_BASE / "hearth")}
    wanted = [item for item in documents(_BASE) if (item["kind"], item["metadata"]["name"]) not in own]
    try:
        install(client, [_with_root(item, str(cache_path)) for item in wanted])
    except NotFound as error:
        raise EmbeddedError(f"{error} Its log: logs/apiserver.log") from None


def _with_root(item: dict[str, Any], cache_path: str) -> Mapping[str, Any]:
    return {**item, "spec": {"paths": [cache_path]}} if item["kind"] == names.ROOTS_KIND else item


def _administrator(cluster: KubeCluster) -> KubeClient:
    """Without the kubeconfig, whose reader costs seconds."""
    pki = cluster.folder / "pki"
    access = Access(
        server=cluster.server,
        authorization=lambda again: "",
        ca_file=str(pki / "ca.crt"),
        certificate_file=str(pki / "admin.crt"),
        key_file=str(pki / "admin.key"),
    )
    return KubeClient(lambda: access, agent="hearth-install")


def _memory_available() -> int:
    found = re.search(r"^MemAvailable:\s+(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE)
    return int(found[1]) * 1024 if found else _MEMORY
