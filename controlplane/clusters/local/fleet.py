"""The local fleet as people and tests handle it: nodes come, go, fill up and become unreachable.

Every verb is a change of the store, so it works from any process, whether or not a supervisor runs; a running one
(supervisor.py) follows. Errors are the gateway's, and Invalid for a wrong argument. Imports no Django.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from controlplane.clusters import codec
from controlplane.clusters.documents import Consumer
from controlplane.clusters.gateway import Conflict, Kind
from controlplane.clusters.local import database, disks, nodes
from controlplane.clusters.local.link import event_put
from controlplane.clusters.local.nodes import POOL_LABEL, ZONE_LABEL, LocalNode, valid_name
from controlplane.clusters.local.serving import NODE_LOST, engines_all, event_of
from controlplane.clusters.local.sizes import format_size
from controlplane.clusters.local.store import Session, Store
from controlplane.errors import Invalid

HARDWARE_LABEL = "hearth.dev/hardware"
MIB = 1024 * 1024
MIN_CAPACITY = MIB


@dataclass(frozen=True, slots=True)
class PoolLayout:
    """One pool of a new fleet: every node in it has a disk of ``capacity_bytes``."""

    name: str
    capacity_bytes: int
    hardware: str


DEFAULT_POOLS = (
    PoolLayout("pool-a", 1024 * MIB, "nvme-large"),
    PoolLayout("pool-b", 512 * MIB, "nvme-small"),
)


@dataclass(frozen=True, slots=True)
class FleetNode:
    """A node as ``fleet list`` shows it."""

    node: LocalNode
    ready: bool | None
    other_bytes: int
    consumers: tuple[Consumer, ...]


class LocalFleet:
    """The fleet in one folder."""

    def __init__(self, fleet_dir: Path) -> None:
        self.folder = Path(fleet_dir)
        self.store = Store(self.folder)

    def create(self, *, nodes: int, pools: tuple[PoolLayout, ...] = DEFAULT_POOLS) -> bool:
        """Make the store and, in a new one, its nodes, shared evenly between the pools. False when it was there."""
        layouts = [(pools[number % len(pools)], number // len(pools)) for number in range(nodes)] if pools else []
        names = [f"{layout.name.removeprefix('pool-')}-{rank + 1}" for layout, rank in layouts]
        distinct = len({pool.name for pool in pools}) == len(pools) and len(set(names)) == len(names)
        if not pools or not distinct or not all(valid_name(name) for name in (*(pool.name for pool in pools), *names)):
            raise Invalid(
                "fleet:user:bad-pools",
                "The pools of a new fleet need different names of lower case letters, digits and dashes.",
                next_step="Give for example: --pool pool-a=1GiB --pool pool-b=512MiB",
            )
        for pool in pools:
            _check_bytes(pool.capacity_bytes, least=MIN_CAPACITY)
        database.database_create(self.folder)
        with self.store.write() as session:
            if session.meta("seeded"):
                return False
            for (layout, rank), name in zip(layouts, names, strict=True):
                labels = {**_labels(layout.name, rank), HARDWARE_LABEL: layout.hardware}
                self._add(session, name, labels, layout.capacity_bytes)
            session.set_meta("seeded", "yes")
            return True

    def nodes(self) -> tuple[FleetNode, ...]:
        """All nodes by name."""
        with self.store.read() as session:
            consumers = [codec.loads(Consumer, stored.spec) for stored in session.all(Kind.CONSUMER)]
            return tuple(
                FleetNode(
                    node=codec.loads(LocalNode, stored.spec),
                    ready=nodes.observed_node(stored).ready,
                    other_bytes=nodes.other_bytes(self.folder, stored.uid),
                    consumers=tuple(consumer for consumer in consumers if consumer.node_uid == stored.uid),
                )
                for stored in session.all(Kind.NODE)
            )

    def add(self, name: str, *, pool: str, capacity_bytes: int, labels: Mapping[str, str] | None = None) -> LocalNode:
        """A new node. Conflict when the name is taken."""
        if not valid_name(name):
            raise Invalid(
                "fleet:user:bad-name",
                f"{name!r:.80} cannot be a node's name.",
                next_step="Use lower case letters, digits and dashes, at most 63.",
            )
        if not valid_name(pool):
            raise Invalid(
                "fleet:user:bad-pool",
                f"{pool!r:.80} cannot be a pool's name.",
                next_step="Use lower case letters, digits and dashes, at most 63.",
            )
        _check_bytes(capacity_bytes, least=MIN_CAPACITY)
        with self.store.write() as session:
            if session.get(Kind.NODE, name) is not None:
                raise Conflict(f"There is a node {name} already.")
            peers = sum(
                1
                for stored in session.all(Kind.NODE)
                if codec.loads(LocalNode, stored.spec).labels.get(POOL_LABEL) == pool
            )
            return self._add(session, name, {**_labels(pool, peers), **(labels or {})}, capacity_bytes)

    def remove(self, name: str) -> LocalNode:
        """Take the node away with everything on its disk. The supervisor stops its agent, then wipes the folder."""
        with self.store.write() as session:
            node = nodes.node_get(session, name)
            _lose(session, name)
        nodes.fill_file(self.folder, node.uid).unlink(missing_ok=True)
        return node

    def replace(self, name: str) -> LocalNode:
        """Another machine under the same name: new uid, empty disk, same labels except those that a cache left."""
        with self.store.write() as session:
            node = nodes.node_get(session, name)
            _lose(session, name)
            labels = {label: value for label, value in node.labels.items() if "cache-ready" not in label}
            made = self._add(session, name, labels, node.capacity_bytes)
        nodes.fill_file(self.folder, node.uid).unlink(missing_ok=True)
        return made

    def cordon(self, name: str) -> LocalNode:
        return self._change(name, schedulable=False)

    def uncordon(self, name: str) -> LocalNode:
        return self._change(name, schedulable=True)

    def stop(self, name: str) -> LocalNode:
        """Make the node unreachable: its agent is stopped and stays so until ``start``."""
        return self._change(name, stopped=True)

    def start(self, name: str) -> LocalNode:
        return self._change(name, stopped=False)

    def resize(self, name: str, capacity_bytes: int) -> LocalNode:
        """Change the size of the node's disk."""
        _check_bytes(capacity_bytes, least=MIN_CAPACITY)
        return self._change(name, capacity_bytes=capacity_bytes)

    def fill(self, name: str, size_bytes: int) -> LocalNode:
        """Let this many bytes of the node's disk be taken by something that is not Hearth's; 0 frees it.

        The size replaces an earlier one. Invalid when the disk is smaller than what is on it already and this.
        """
        _check_bytes(size_bytes, least=0)
        with self.store.read() as session:
            node = nodes.node_get(session, name)
        self._check_room(node, size_bytes)
        path = nodes.fill_file(self.folder, node.uid)
        path.parent.mkdir(exist_ok=True)
        with path.open("ab") as file:
            file.truncate(size_bytes)
        return node

    def _check_room(self, node: LocalNode, size_bytes: int) -> None:
        if size_bytes == 0:
            return  # freeing is fine on any disk
        room = max(0, node.capacity_bytes - disks.disk_bytes(self.folder, node.name, node.uid))
        if size_bytes > room:
            raise Invalid(
                "fleet:user:no-room",
                f"{format_size(size_bytes)} do not fit on {node.name}: its disk has {format_size(node.capacity_bytes)},"
                f" of which {format_size(room)} ({room} bytes) can be taken.",
                next_step=f"Give at most {room} bytes.",
            )

    def use(self, name: str, digest: str) -> Consumer:
        """Put a consumer on the node that mounts the digest, as a running engine would. Twice is once."""
        with self.store.write() as session:
            node = nodes.node_get(session, name)
            key = hashlib.sha256(digest.encode()).hexdigest()[:12]
            consumer = Consumer(
                uid=str(uuid.uuid5(uuid.NAMESPACE_OID, f"{node.uid}/{digest}")),
                name=f"engine-{name}-{key}",
                node_name=name,
                node_uid=node.uid,
                digests=frozenset({digest}),
                ready=True,
            )
            session.put(Kind.CONSUMER, f"{name}/{key}", consumer.uid, spec=codec.dumps(consumer), status=None)
            return consumer

    def unuse(self, name: str, digest: str) -> bool:
        """End that consumer; False when there was none."""
        with self.store.write() as session:
            nodes.node_get(session, name)
            return session.delete(Kind.CONSUMER, f"{name}/{hashlib.sha256(digest.encode()).hexdigest()[:12]}")

    def _change(self, name: str, **changes: Any) -> LocalNode:
        with self.store.write() as session:
            return nodes.node_change(session, name, **changes)

    def _add(self, session: Session, name: str, labels: Mapping[str, str], capacity_bytes: int) -> LocalNode:
        node = LocalNode(
            name=name, uid=str(uuid.uuid4()), labels=labels, capacity_bytes=capacity_bytes, created_at=datetime.now(UTC)
        )
        nodes.node_put(session, node, None)
        return node


def _lose(session: Session, name: str) -> None:
    """The node goes, and every engine on it; one that was leaving anyway is not lost with it."""
    for engine in engines_all(session).values():
        if engine.node_name == name and not engine.leaving:
            message = f"{name} went away, and {engine.name} with it."
            event_put(session, event_of(engine, NODE_LOST, message, engine.restart_count))
    nodes.node_delete(session, name)


def _labels(pool: str, rank: int) -> dict[str, str]:
    """The labels of the n-th node of a pool; zones alternate."""
    return {POOL_LABEL: pool, ZONE_LABEL: f"zone-{rank % 2 + 1}", "kubernetes.io/arch": "amd64"}


def _check_bytes(size_bytes: int, *, least: int) -> None:
    if not least <= size_bytes < 2**50:
        raise Invalid(
            "fleet:user:bad-size",
            f"{size_bytes} bytes is no size for this.",
            next_step=f"Give a number of bytes from {least} on; 512MiB and 2GiB are understood too.",
        )
