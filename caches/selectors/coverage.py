"""Coverage for pages: per pool, per artifact of a pool, and as a matrix of nodes and versions.

Built on the domain's own counting (caches.domain.coverage) from a lean read: one row an entry, no model instances.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from caches.domain import coverage as counting
from caches.domain.coverage import Coverage
from caches.domain.pool_view import ArtifactFacts, EntryView, NodeView, PinView, PoolPolicy, PoolView
from caches.models import CacheEntry, ModelVersion, Pin
from caches.selectors.nodes import Targets, pools_list
from caches.selectors.pool_view import pin_view
from controlplane.clusters.documents import ArtifactKind, EntryState, NodeState
from controlplane.clusters.freshness import node_state
from controlplane.clusters.models import Node, NodePool

UNKNOWN = "Unknown"
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
    def nodes_total(self) -> int:
        return sum(self.nodes.values())


@dataclass(frozen=True, slots=True)
class MatrixCell:
    """One version on one node: a shown EntryState, Unknown, or "" where it is neither there nor wanted."""

    state: str
    bytes_done: int
    bytes_total: int
    wanted: bool


@dataclass(frozen=True, slots=True)
class Matrix:
    """Nodes (rows) by versions (columns); ``cells`` by (node id, artifact id)."""

    nodes: tuple[Node, ...]
    node_states: Mapping[UUID, NodeState]
    versions: tuple[ModelVersion, ...]
    cells: Mapping[tuple[UUID, UUID], MatrixCell]


@dataclass(frozen=True, slots=True)
class _Row:
    node_id: UUID
    artifact_id: UUID
    digest: str
    size_bytes: int
    state: EntryState
    bytes_done: int


def pools_coverage(*, now: datetime, targets: Targets = None, pool: NodePool | None = None) -> tuple[PoolCoverage, ...]:
    """Every visible pool (or one) in five queries, however many nodes and entries."""
    pools = [pool] if pool is not None else list(pools_list(targets=targets).order_by("cluster__name", "name"))
    nodes, pins, rows = _load(pools)
    return tuple(_pool_coverage(one, nodes[one.id], pins[one.id], rows, now) for one in pools)


def pool_matrix(pool: NodePool, *, now: datetime) -> Matrix:
    """What every live node of the pool holds of every version that is pinned there or present anywhere in it."""
    nodes, pins, rows = _load([pool])
    live = nodes[pool.id]
    states = {node.id: _state(node, pool, now) for node in live}
    present = {row.artifact_id for node in live for row in rows[node.id]}
    versions = _versions(present | {pin.version.artifact_id for pin in pins[pool.id] if pin.version.artifact_id})
    wanted = {
        (node.id, pin.version.artifact_id)
        for pin in pins[pool.id]
        for node in live
        if all(node.labels.get(label) == value for label, value in pin.node_selector.items())
    }
    sizes = {version.artifact_id: version.artifact.size_bytes for version in versions if version.artifact}
    found = {(row.node_id, row.artifact_id): row for node in live for row in rows[node.id]}
    cells = {}
    for node in live:
        for version in versions:
            key = (node.id, version.artifact_id)
            row = found.get(key)  # type: ignore[arg-type]  # versions here have an artifact
            cells[key] = _cell(row, states[node.id], key in wanted, sizes[version.artifact_id])
    return Matrix(tuple(live), states, versions, cells)  # type: ignore[arg-type]


def _cell(row: _Row | None, state: NodeState, wanted: bool, size: int) -> MatrixCell:
    if state is NodeState.UNKNOWN and (row is not None or wanted):
        return MatrixCell(UNKNOWN, row.bytes_done if row else 0, size, wanted)
    if row is None:
        return MatrixCell(EntryState.ABSENT.value if wanted else "", 0, size, wanted)
    return MatrixCell(row.state.value, row.bytes_done, size, wanted)


def _load(
    pools: Sequence[NodePool],
) -> tuple[Mapping[UUID, list[Node]], Mapping[UUID, list[Pin]], Mapping[UUID, list[_Row]]]:
    ids = [pool.id for pool in pools]
    nodes: dict[UUID, list[Node]] = defaultdict(list)
    for node in Node.objects.filter(pool__in=ids, lost_at__isnull=True).order_by("name"):
        nodes[node.pool_id].append(node)  # type: ignore[index]  # filtered by pool
    pins: dict[UUID, list[Pin]] = defaultdict(list)
    live = Pin.objects.filter(removed_at__isnull=True, version__artifact__isnull=False, pools__in=ids).distinct()
    live = live.select_related("version__model", "version__artifact").defer("version__artifact__manifest")
    for pin in live.prefetch_related("pools").order_by("version__model__name", "version__version"):
        for pool in pin.pools.all():
            pins[pool.id].append(pin)
    rows: dict[UUID, list[_Row]] = defaultdict(list)
    entries = CacheEntry.objects.filter(node__pool__in=ids, node__lost_at__isnull=True).exclude(state__in=_GONE)
    fields = ("node_id", "artifact_id", "artifact__digest", "artifact__size_bytes", "state", "bytes_done")
    for node_id, artifact_id, digest, size, state, done in entries.order_by().values_list(*fields):
        rows[node_id].append(_Row(node_id, artifact_id, digest, size, EntryState(state), done))
    return nodes, pins, rows


def _pool_coverage(
    pool: NodePool, nodes: Sequence[Node], pins: Sequence[Pin], rows: Mapping[UUID, Sequence[_Row]], now: datetime
) -> PoolCoverage:
    view = _view(pool, nodes, pins, rows, now)
    artifacts = tuple(_artifact_coverage(view, pin) for pin in pins)
    total = sum((one.coverage for one in artifacts), Coverage())
    failed, in_flight = sum(one.failed for one in artifacts), sum(one.in_flight for one in artifacts)
    return PoolCoverage(
        pool=pool,
        coverage=total,
        artifacts=artifacts,
        nodes=dict(Counter(node.state.value for node in view.nodes)),
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


def _artifact_coverage(view: PoolView, pin: Pin) -> ArtifactCoverage:
    assert pin.version.artifact is not None  # filtered in _load
    digest = pin.version.artifact.digest
    covered = counting.of_artifact(view, digest)
    states = Counter(
        entry.state
        for node in view.nodes
        if node.state is not NodeState.UNKNOWN
        for entry in node.entries
        if entry.digest == digest
    )
    failed = states[EntryState.FAILED]
    in_flight = sum(states[state] for state in _IN_FLIGHT)
    state = "Suspended" if pin.suspended and not covered.complete else ""
    return ArtifactCoverage(
        version=pin.version,
        pin_id=pin.id,
        coverage=covered,
        failed=failed,
        in_flight=in_flight,
        state=state or coverage_state(covered, failed=failed, in_flight=in_flight),
    )


def _view(
    pool: NodePool, nodes: Sequence[Node], pins: Sequence[Pin], rows: Mapping[UUID, Sequence[_Row]], now: datetime
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
        nodes=tuple(_node(node, pool, rows[node.id], wanted, now) for node in nodes),
        pins=tuple(views),
        artifacts=artifacts,
    )


def _node(node: Node, pool: NodePool, rows: Iterable[_Row], wanted: frozenset[str], now: datetime) -> NodeView:
    return NodeView(
        name=node.name,
        uid=node.uid,
        state=_state(node, pool, now),
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


def _state(node: Node, pool: NodePool, now: datetime) -> NodeState:
    return node_state(
        ready=node.ready,
        schedulable=node.schedulable,
        observed_at=node.observed_at,
        reported_at=node.reported_at,
        lost_at=node.lost_at,
        freshness_seconds=pool.freshness_seconds,
        now=now,
    )


def _versions(artifact_ids: Iterable[UUID]) -> tuple[ModelVersion, ...]:
    """One version for each artifact: those that share bytes share the column of the first."""
    rows = ModelVersion.objects.filter(artifact__in=list(artifact_ids)).select_related("model", "artifact")
    found: dict[UUID | None, ModelVersion] = {}
    for version in rows.defer("artifact__manifest").order_by("model__name", "version"):
        found.setdefault(version.artifact_id, version)
    return tuple(found.values())
