"""Random fleets as rows, and what they say counted the slow way: row by row, with no help of the code under test."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from caches.models import CacheEntry, ModelVersion, Pin
from controlplane.clusters.documents import EntryState
from controlplane.clusters.models import Node, NodePool
from tests import factories

MIB = 1024 * 1024
ARRIVING = ("Queued", "Downloading", "Verifying", "Repairing")
SEEDS = range(4)


@dataclass
class Fleet:
    """Rows as they were stored; ``entries`` by (node id, artifact id)."""

    now: datetime
    pools: list[NodePool] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    versions: list[ModelVersion] = field(default_factory=list)
    pins: list[Pin] = field(default_factory=list)
    asked: dict[UUID, list[NodePool]] = field(default_factory=dict)  # by pin
    entries: dict[tuple[UUID, UUID], CacheEntry] = field(default_factory=dict)

    def live(self, pool: NodePool) -> list[Node]:
        return [node for node in self.nodes if node.pool_id == pool.pk and node.lost_at is None]

    def pins_of(self, pool: NodePool) -> list[Pin]:
        mine = [pin for pin in self.pins if pin.removed_at is None and pool in self.asked[pin.pk]]
        return sorted(mine, key=_by_name)

    def copy(self, node: Node, pin: Pin) -> CacheEntry | None:
        return self.entries.get((node.pk, size_and_id(pin)[1]))

    def heard(self, node: Node) -> bool:
        """Somebody knows what the node holds: both observations are young, and its cluster knows its state."""
        assert node.pool is not None
        limit = timedelta(seconds=node.pool.freshness_seconds)
        times = (node.observed_at, node.reported_at)
        return node.ready is not None and all(at is not None and self.now - at <= limit for at in times)

    def shown(self, node: Node, entry: CacheEntry) -> str:
        if node.lost_at is not None or entry.state == EntryState.LOST:
            return "Lost"
        return str(entry.state) if self.heard(node) else "Unknown"


def _by_name(pin: Pin) -> tuple[str, str]:
    version = factories.version_of(pin)
    return version.model.name, version.version


def size_and_id(pin: Pin) -> tuple[int, UUID]:
    artifact = factories.version_of(pin).artifact
    assert artifact is not None
    return artifact.size_bytes, artifact.pk


def matches(pin: Pin, node: Node) -> bool:
    return all(node.labels.get(name) == value for name, value in pin.node_selector.items())


def wants(pin: Pin, node: Node, entry: CacheEntry | None) -> bool:
    return matches(pin, node) and (pin.placement_type == "All" or (entry is not None and entry.desired == "Ensure"))


def required(fleet: Fleet, pool: NodePool, pins: Sequence[Pin]) -> tuple[list[Node], int]:
    """The nodes on which pins of one artifact are counted, and how many copies have no node to be on."""
    chosen: list[Node] = []
    without = 0

    def rank(node: Node) -> tuple[int, int, str]:
        entry = fleet.copy(node, pins[0])
        state = "Absent" if entry is None else entry.state
        if entry is None or state in ("Absent", "Lost", "Evicting"):
            return (3, 0, node.uid)
        if state == "Ready":
            return (0 if fleet.heard(node) else 1, 0, node.uid)
        return (2, -entry.bytes_done, node.uid)

    everywhere = [pin for pin in pins if pin.placement_type == "All"]
    for pin in everywhere:
        chosen += [node for node in fleet.live(pool) if matches(pin, node) and node not in chosen]
    some = [pin for pin in pins if pin.placement_type != "All"]
    for pin in sorted(some, key=lambda pin: (-pin.priority, pin.created_at, str(pin.pk))):
        open_to = [node for node in fleet.live(pool) if matches(pin, node)]
        wanted = pin.placement_value
        if pin.placement_type == "Percent":
            wanted = (len(open_to) * pin.placement_value + 99) // 100
        without = max(without, wanted - len(open_to))
        best = sorted(open_to, key=lambda node: (node not in chosen, rank(node)))[:wanted]
        chosen += [node for node in best if node not in chosen]
    return chosen, without


@dataclass
class Counted:
    """What the rows say of some pins of one artifact in one pool."""

    required: int = 0
    ready: int = 0
    unknown: int = 0
    bytes_required: int = 0
    bytes_ready: int = 0
    bytes_unknown: int = 0
    bytes_arrived: int = 0
    failed: int = 0
    in_flight: int = 0


def counted(fleet: Fleet, pool: NodePool, pins: Sequence[Pin]) -> Counted:
    """Coverage, failures and transfers of pins that name one artifact, one node after the other."""
    size, _ = size_and_id(pins[0])
    chosen, without = required(fleet, pool, pins)
    found = Counted(required=without, bytes_required=without * size)
    for node in chosen:
        entry = fleet.copy(node, pins[0])
        found.required += 1
        found.bytes_required += size
        if not fleet.heard(node):
            found.unknown += 1
            found.bytes_unknown += size
        elif entry is not None and entry.state == "Ready":
            found.ready += 1
            found.bytes_ready += size
            found.bytes_arrived += size
        elif entry is not None and entry.state in ARRIVING:
            found.bytes_arrived += min(size, entry.bytes_done)
    for node in fleet.live(pool):
        entry = fleet.copy(node, pins[0])
        if entry is None or not fleet.heard(node) or not any(wants(pin, node, entry) for pin in pins):
            continue
        found.failed += entry.state == "Failed"
        found.in_flight += entry.state in ARRIVING
    return found


def random_fleet(seed: int, now: datetime) -> Fleet:
    """Two clusters with pools and nodes of the same names; every state, placement and kind of silence."""
    chance = random.Random(seed)
    fleet = Fleet(now)
    for name in ("east", "west"):
        cluster = factories.cluster(name=f"{name}-{seed}")
        for kind in ("gpu", "cpu", "empty"):
            fleet.pools.append(factories.pool(of=cluster, name=kind, freshness_seconds=chance.choice([30, 120])))
    for pool in fleet.pools:
        if pool.name != "empty":
            fleet.nodes += _nodes(chance, pool, now)
    fleet.nodes = Node.objects.bulk_create(fleet.nodes)
    shared = factories.artifact(size_bytes=chance.randrange(1, 300 * MIB))
    for number in range(6):
        artifact = shared if number < 3 else factories.artifact(size_bytes=chance.choice([1, 7 * MIB, 900 * MIB]))
        fleet.versions.append(factories.version(model=f"model-{seed}-{number % 3}", artifact=artifact))
    for version in fleet.versions[:5]:
        _pin(chance, fleet, version)
    fleet.entries = {(entry.node_id, entry.artifact_id): entry for entry in _entries(chance, fleet)}
    CacheEntry.objects.bulk_create(fleet.entries.values())
    return fleet


def _nodes(chance: random.Random, pool: NodePool, now: datetime) -> Iterator[Node]:
    young, old = now - timedelta(seconds=5), now - timedelta(hours=1)
    for number in range(6):
        yield Node(
            cluster=pool.cluster,
            pool=pool,
            # A live node of each name, and for some an incarnation that is gone.
            name=f"{pool.name}-{number}",
            uid=f"{pool.name}-{number}-{chance.random()}",
            labels={"zone": chance.choice("ab")},
            ready=chance.choice([True, True, True, False, None]),
            schedulable=chance.random() < 0.8,
            joined_at=now - timedelta(hours=2),
            observed_at=chance.choice([young, young, young, old, None]),
            reported_at=chance.choice([young, young, young, old, None]),
            capacity_bytes=chance.choice([None, 1000 * MIB]),
            used_bytes=chance.randrange(500 * MIB),
            other_bytes=chance.randrange(500 * MIB),
            reserved_bytes=chance.randrange(100 * MIB),
        )
        if chance.random() < 0.3:
            yield Node(
                cluster=pool.cluster,
                pool=pool,
                name=f"{pool.name}-{number}",
                uid=f"gone-{pool.name}-{number}-{chance.random()}",
                labels={"zone": chance.choice("ab")},
                ready=None,
                joined_at=now - timedelta(hours=3),
                observed_at=young,
                reported_at=young,
                capacity_bytes=1000 * MIB,
                lost_at=now - timedelta(minutes=5),
            )


def _pin(chance: random.Random, fleet: Fleet, version: ModelVersion) -> None:
    placement, value = chance.choice([("All", 100), ("All", 100), ("Count", 2), ("Count", 9), ("Percent", 34)])
    pin = factories.pin(
        of=version,
        pools=tuple(chance.sample(fleet.pools, chance.randrange(1, len(fleet.pools)))),
        placement_type=placement,
        placement_value=value,
        node_selector=chance.choice([{}, {}, {"zone": "a"}]),
        priority=chance.choice([100, 500]),
        suspended=chance.random() < 0.2,
        removed_at=fleet.now if chance.random() < 0.1 else None,
    )
    fleet.pins.append(pin)
    fleet.asked[pin.pk] = list(pin.pools.all())


def _entries(chance: random.Random, fleet: Fleet) -> Iterator[CacheEntry]:
    states = [state.value for state in EntryState if state is not EntryState.LOST]
    for node in fleet.nodes:
        for artifact in {version.artifact for version in fleet.versions}:
            if artifact is None or chance.random() < 0.25:
                continue
            # A lost node whose entries were not closed yet still carries its last word.
            state = "Lost" if node.lost_at is not None and chance.random() < 0.5 else chance.choice(states)
            done = artifact.size_bytes if state == "Ready" else chance.randrange(2 * artifact.size_bytes)
            yield CacheEntry(
                node=node,
                artifact=artifact,
                state=state,
                desired=chance.choice(["Ensure", "Ensure", "Evict", ""]),
                reason="AccessDenied" if state == "Failed" else "",
                bytes_done=done,
                bytes_total=artifact.size_bytes,
                bytes_moved=chance.randrange(3 * artifact.size_bytes),
                rate_bytes_per_second=chance.choice([None, 0.0, 5.0 * MIB]) if state == "Downloading" else None,
                eta_seconds=chance.choice([None, 1.5, 60.0]) if state == "Downloading" else None,
                state_since=fleet.now - timedelta(minutes=chance.randrange(1, 90)),
                observed_at=fleet.now,
            )
