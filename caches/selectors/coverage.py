"""Coverage for pages: per pool and per artifact of a pool.

The database counts what pins for every node have; pins that choose nodes are counted by the domain itself.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import Count, QuerySet, Sum
from django.db.models.functions import Least

from caches.domain import coverage as counting
from caches.domain.coverage import Coverage
from caches.domain.pool_view import ArtifactFacts, EntryView, NodeView, PinView, PlacementType, PoolPolicy, PoolView
from caches.models import CacheEntry, ModelVersion, Pin
from caches.selectors.nodes import Targets, nodes_list, pools_list
from caches.selectors.pool_view import pin_view, state_of
from controlplane.clusters.documents import ArtifactKind, EntryState, NodeState
from controlplane.clusters.freshness import is_fresh
from controlplane.clusters.models import Node, NodePool

UNKNOWN = "Unknown"
SHOWN = 6
_BAD_FIRST = ("Degraded", UNKNOWN, "Partial", "Warming", "Suspended", "Warm", "Empty")
_IN_FLIGHT = frozenset({EntryState.QUEUED, EntryState.DOWNLOADING, EntryState.VERIFYING, EntryState.REPAIRING})
_GONE = frozenset({EntryState.ABSENT, EntryState.LOST})


@dataclass(frozen=True, slots=True)
class ArtifactCoverage:
    """One pinned version in one pool. ``state`` is Warm, Warming, Partial, Degraded, Unknown or Empty."""

    version: ModelVersion
    pin_id: UUID
    coverage: Coverage
    failed: int
    in_flight: int
    state: str

    @property
    def missing(self) -> int:
        return self.coverage.required - self.coverage.ready - self.coverage.unknown


@dataclass(frozen=True, slots=True)
class PoolCoverage:
    """One pool with the sum over its artifacts, its nodes by state and its disks."""

    pool: NodePool
    coverage: Coverage
    artifacts: tuple[ArtifactCoverage, ...]
    nodes: Mapping[str, int]
    failed: int
    in_flight: int
    state: str
    capacity_bytes: int
    used_bytes: int
    other_bytes: int
    reserved_bytes: int

    @property
    def missing(self) -> int:
        return self.coverage.required - self.coverage.ready - self.coverage.unknown

    @property
    def worst(self) -> Sequence[ArtifactCoverage]:
        """The versions that a summary names: the first SHOWN, those that are not warm before those that are."""
        return sorted(self.artifacts, key=lambda one: _BAD_FIRST.index(one.state))[:SHOWN]

    @property
    def others(self) -> int:
        return max(0, len(self.artifacts) - SHOWN)

    @property
    def others_warm(self) -> bool:
        """What the summary leaves out is all warm."""
        return sum(one.state != "Warm" for one in self.artifacts) <= SHOWN

    @property
    def nodes_total(self) -> int:
        return sum(self.nodes.values())


@dataclass(frozen=True, slots=True)
class EntryRow:
    """What pages read of an entry."""

    node_id: UUID
    artifact_id: UUID
    digest: str
    size_bytes: int
    state: EntryState
    bytes_done: int


_Counts = Mapping[tuple[UUID, UUID], Mapping[EntryState, tuple[int, int]]]


def pools_coverage(*, now: datetime, targets: Targets = None, pool: NodePool | None = None) -> tuple[PoolCoverage, ...]:
    """Every visible pool (or one) in a handful of queries, however many nodes and entries."""
    visible = pools_list(targets=targets).order_by("cluster__name", "name")
    pools = [pool] if pool is not None else list(visible)
    nodes, pins = live_nodes(pools), live_pins(pools)
    counts = _counts(pools, now)
    chosen = {pin.version.artifact_id for found in pins.values() for pin in found if not _is_everywhere(pin)}
    rows = entry_rows(pools, chosen) if chosen else {}
    return tuple(_pool_coverage(one, nodes[one.id], pins[one.id], counts, rows, now) for one in pools)


def live_nodes(pools: Sequence[NodePool]) -> Mapping[UUID, list[Node]]:
    """Nodes that are not lost, by pool."""
    found: dict[UUID, list[Node]] = defaultdict(list)
    for node in Node.objects.filter(pool__in=pools, lost_at__isnull=True).order_by("name"):
        found[node.pool_id].append(node)  # type: ignore[index]  # filtered by pool
    return found


def live_pins(pools: Sequence[NodePool]) -> Mapping[UUID, list[Pin]]:
    """Pins in force whose version is Available, by pool and in the order of their versions' names."""
    found: dict[UUID, list[Pin]] = defaultdict(list)
    live = Pin.objects.filter(removed_at__isnull=True, version__artifact__isnull=False, pools__in=pools).distinct()
    live = live.select_related("version__model", "version__artifact").defer("version__artifact__manifest")
    for pin in live.prefetch_related("pools").order_by("version__model__name", "version__version"):
        for pool in pin.pools.all():
            found[pool.id].append(pin)
    return found


def entry_rows(
    pools: Sequence[NodePool], artifacts: Collection[UUID | None] | None = None
) -> Mapping[UUID, list[EntryRow]]:
    """Entries by node, one tuple each: model instances would be most of the time."""
    entries = CacheEntry.objects.filter(node__pool__in=pools, node__lost_at__isnull=True).exclude(state__in=_GONE)
    if artifacts is not None:
        entries = entries.filter(artifact__in=artifacts)
    fields = ("node_id", "artifact_id", "artifact__digest", "artifact__size_bytes", "state", "bytes_done")
    found: dict[UUID, list[EntryRow]] = defaultdict(list)
    for node_id, artifact_id, digest, size, state, done in entries.order_by().values_list(*fields):
        found[node_id].append(EntryRow(node_id, artifact_id, digest, size, EntryState(state), done))
    return found


def _counts(pools: Sequence[NodePool], now: datetime) -> _Counts:
    """Entries on nodes whose reports are fresh, counted by the database: (pool, artifact) → state → (copies, bytes)."""
    known: QuerySet[Any] = nodes_list(now=now).filter(pool__in=pools, lost_at__isnull=True)
    known = known.filter(silent=False).exclude(shown_state=NodeState.UNKNOWN)
    grouped = (
        CacheEntry.objects.filter(node__in=known.values("pk"))
        .exclude(state__in=_GONE)
        .order_by()
        .values_list("node__pool", "artifact", "state")
        .annotate(copies=Count("id"), arrived=Sum(Least("bytes_done", "artifact__size_bytes")))
    )
    found: dict[tuple[UUID, UUID], dict[EntryState, tuple[int, int]]] = defaultdict(dict)
    for pool_id, artifact_id, state, copies, arrived in grouped:
        found[pool_id, artifact_id][EntryState(state)] = (copies, arrived)
    return found


def _is_everywhere(pin: Pin) -> bool:
    """A pin for every node: the database's counts are its coverage. Others need the domain's choice of nodes."""
    return pin.placement_type == PlacementType.ALL and not pin.node_selector


def _pool_coverage(
    pool: NodePool,
    nodes: Sequence[Node],
    pins: Sequence[Pin],
    counts: _Counts,
    rows: Mapping[UUID, Sequence[EntryRow]],
    now: datetime,
) -> PoolCoverage:
    states = Counter(state_of(node, pool, now) for node in nodes)
    counted = Counter(counted_state(node, pool, now) for node in nodes)
    view = _view(pool, nodes, [pin for pin in pins if not _is_everywhere(pin)], rows, now)
    artifacts = tuple(_artifact_coverage(view, pin, counted, counts[pool.id, pin.version.artifact_id]) for pin in pins)  # type: ignore[index]
    # Versions that share bytes share copies: the sum counts them once.
    unique = {one.version.artifact_id: one for one in artifacts}.values()
    total = sum((one.coverage for one in unique), Coverage())
    failed, in_flight = sum(one.failed for one in unique), sum(one.in_flight for one in unique)
    return PoolCoverage(
        pool=pool,
        coverage=total,
        artifacts=artifacts,
        nodes={state.value: number for state, number in states.items()},
        failed=failed,
        in_flight=in_flight,
        state=coverage_state(total, failed=failed, in_flight=in_flight),
        capacity_bytes=sum(node.capacity_bytes or 0 for node in nodes),
        used_bytes=sum(node.used_bytes for node in nodes),
        other_bytes=sum(node.other_bytes for node in nodes),
        reserved_bytes=sum(node.reserved_bytes for node in nodes),
    )


def coverage_state(total: Coverage, *, failed: int, in_flight: int) -> str:
    """One word for a coverage. Bad news first; unknown is never read as warm."""
    if not total.required:
        return "Empty"
    if failed:
        return "Degraded"
    if total.complete:
        return "Warm"
    if in_flight:
        return "Warming"
    return UNKNOWN if total.unknown else "Partial"


def _artifact_coverage(
    view: PoolView, pin: Pin, nodes: Mapping[NodeState, int], states: Mapping[EntryState, tuple[int, int]]
) -> ArtifactCoverage:
    assert pin.version.artifact is not None  # filtered in _pins
    artifact = pin.version.artifact
    if _is_everywhere(pin):
        covered = _everywhere(artifact.size_bytes, nodes, states)
    else:
        covered = counting.of_artifact(view, artifact.digest)
    failed = states.get(EntryState.FAILED, (0, 0))[0]
    in_flight = sum(states.get(state, (0, 0))[0] for state in _IN_FLIGHT)
    suspended = pin.suspended and not covered.complete
    return ArtifactCoverage(
        version=pin.version,
        pin_id=pin.id,
        coverage=covered,
        failed=failed,
        in_flight=in_flight,
        state="Suspended" if suspended else coverage_state(covered, failed=failed, in_flight=in_flight),
    )


def _everywhere(size: int, nodes: Mapping[NodeState, int], states: Mapping[EntryState, tuple[int, int]]) -> Coverage:
    """caches.domain.coverage.of_artifact for a pin on every node, from counts (tests hold the two together)."""
    required, unknown = sum(nodes.values()), nodes.get(NodeState.UNKNOWN, 0)
    ready = states.get(EntryState.READY, (0, 0))[0]
    arriving = sum(states.get(state, (0, 0))[1] for state in _IN_FLIGHT)
    return Coverage(
        required=required,
        ready=ready,
        unknown=unknown,
        bytes_required=required * size,
        bytes_ready=ready * size,
        bytes_unknown=unknown * size,
        bytes_arrived=ready * size + arriving,
    )


def _view(
    pool: NodePool, nodes: Sequence[Node], pins: Sequence[Pin], rows: Mapping[UUID, Sequence[EntryRow]], now: datetime
) -> PoolView:
    """Only what counting reads: no policy, holds or throughput."""
    views: list[PinView] = []
    artifacts: dict[str, ArtifactFacts] = {}
    for pin in pins:
        artifact = pin.version.artifact
        assert artifact is not None
        views.append(pin_view(pin, digest=artifact.digest))
        artifacts[artifact.digest] = ArtifactFacts(
            artifact.digest, pin.version.full_name, ArtifactKind(artifact.kind), artifact.size_bytes, "", ""
        )
    wanted = frozenset(artifacts)
    return PoolView(
        cluster=pool.cluster.name,
        pool=pool.name,
        policy=PoolPolicy(),
        nodes=tuple(_node(node, pool, rows.get(node.id, ()), wanted, now) for node in nodes),
        pins=tuple(views),
        artifacts=artifacts,
    )


def _node(node: Node, pool: NodePool, rows: Iterable[EntryRow], wanted: frozenset[str], now: datetime) -> NodeView:
    return NodeView(
        name=node.name,
        uid=node.uid,
        state=counted_state(node, pool, now),
        labels=node.labels,
        joined_at=node.joined_at,
        capacity_bytes=node.capacity_bytes,
        other_bytes=node.other_bytes,
        orphan_bytes=0,
        entries=tuple(
            EntryView(row.digest, row.state, row.size_bytes, row.bytes_done, None)
            for row in rows
            if row.digest in wanted
        ),
        in_use=None,
    )


def counted_state(node: Node, pool: NodePool, now: datetime) -> NodeState:
    """The state by which copies are counted: what a silent agent once reported is unknown, NotReady or not."""
    state = state_of(node, pool, now)
    silent = not is_fresh(node.reported_at, freshness_seconds=pool.freshness_seconds, now=now)
    return NodeState.UNKNOWN if silent and state is not NodeState.LOST else state
