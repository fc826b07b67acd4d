"""Clusters that the contract suite runs against. A new kind of cluster adds its factory here and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from controlplane.clusters.documents import Consumer
from controlplane.clusters.gateway import ClusterGateway
from controlplane.clusters.local import database
from controlplane.clusters.local.fleet import LocalFleet, PoolLayout
from controlplane.clusters.local.gateway import LocalGateway
from controlplane.clusters.local.link import LocalLink

if TYPE_CHECKING:
    from collections.abc import Iterator

    from caches.agent.link import NodeLink


DISK_BYTES = 64 * 1024 * 1024


class ContractCluster(Protocol):
    """A cluster with one pool, empty at first, and the few things that happen to it from outside."""

    gateway: ClusterGateway
    disk_bytes: int | None  # what a node's disk holds where the cluster knows it
    bookmark_seconds: float  # how long a watch must be for a bookmark that moved

    def add_node(self, name: str) -> str: ...
    def remove_node(self, name: str) -> None: ...
    def replace_node(self, name: str) -> str: ...
    def cordon(self, name: str) -> None: ...
    def link(self, name: str, uid: str) -> NodeLink: ...
    def use(self, name: str, digest: str) -> Consumer: ...
    def unuse(self, name: str, digest: str) -> None: ...
    def compact(self) -> None:
        """Make every token that was given out before this call too old."""
        ...

    def cut_off(self) -> None:
        """From now on nothing answers."""
        ...


class LocalContractCluster:
    """The embedded fleet without its supervisor: the contract is about objects, not processes."""

    disk_bytes: int | None = DISK_BYTES
    bookmark_seconds = 0.0

    def __init__(self, folder: Path) -> None:
        self.fleet = LocalFleet(folder)
        self.fleet.create(nodes=0, pools=(PoolLayout("pool-a", DISK_BYTES, "test"),))
        self.gateway: ClusterGateway = LocalGateway(folder, poll_seconds=0.02)

    def add_node(self, name: str) -> str:
        return self.fleet.add(name, pool="pool-a", capacity_bytes=DISK_BYTES).uid

    def remove_node(self, name: str) -> None:
        self.fleet.remove(name)

    def replace_node(self, name: str) -> str:
        return self.fleet.replace(name).uid

    def cordon(self, name: str) -> None:
        self.fleet.cordon(name)

    def link(self, name: str, uid: str) -> NodeLink:
        return LocalLink(self.fleet.folder, name, uid, poll_seconds=0.02)

    def use(self, name: str, digest: str) -> Consumer:
        return self.fleet.use(name, digest)

    def unuse(self, name: str, digest: str) -> None:
        self.fleet.unuse(name, digest)

    def compact(self) -> None:
        with self.fleet.store.write() as session:
            session.set_meta("unrelated", "")  # a change that is in no log
            session.put("Other", "bump", "bump", spec=str(session.version()), status=None)
            session.compact(session.version())

    def cut_off(self) -> None:
        for path in self.fleet.folder.glob(f"{database.FILE_NAME}*"):
            path.unlink()


@contextmanager
def _local(folder: Path) -> Iterator[ContractCluster]:
    yield LocalContractCluster(folder / "fleet")


Factory = Callable[[Path], AbstractContextManager[ContractCluster]]
FACTORIES: Mapping[str, Factory] = {"local": _local}
