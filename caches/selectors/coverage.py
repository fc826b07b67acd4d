"""Coverage for pages: per pool and per artifact of a pool.

The database counts what pins for every node have; pins that choose nodes are counted by the domain itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from uuid import UUID

from django.db.models import F

from caches.domain import coverage as counting
from caches.domain.coverage import Coverage
from caches.domain.demand import selects
from caches.domain.pool_view import ArtifactFacts, EntryView, NodeView, PinView, PlacementType, PoolPolicy, PoolView
from caches.models import Image, ModelVersion, Pin
from caches.selectors.coverage_rows import (
    GONE,
    Counts,
    EntryRow,
    counted_state,
    entry_counts,
    entry_rows,
    live_nodes,
)
from caches.selectors.entries import UNKNOWN
from caches.selectors.image_demand import holds_images
from caches.selectors.live_pins import Want, images_wanted, is_everywhere, live_pins, weights_wanted
from caches.selectors.nodes import Targets, pools_list
from caches.selectors.pin_artifacts import wants_weights
from caches.selectors.pool_view import pin_view, state_of
from controlplane.clusters.documents import Action, ArtifactKind, EntryState, NodeState
from controlplane.clusters.models import Node, NodePool

SHOWN = 6
SUSPENDED = "Suspended"
DELETING = "Deleting"  # a pool's state while its nodes are emptied
_BAD_FIRST = ("Degraded", UNKNOWN, "Partial", "Warming", SUSPENDED, "Warm", "Empty")
_IN_FLIGHT = frozenset({EntryState.QUEUED, EntryState.DOWNLOADING, EntryState.VERIFYING, EntryState.REPAIRING})


@dataclass(frozen=True, slots=True)
class ArtifactCoverage:
    """One pinned version, or the ``image`` that serves it, in one pool. ``state``: Warm, Warming, Partial, Degraded,
    Unknown, Suspended or Empty."""

    version: ModelVersion | None  # None: an image that nobody's version names
    image: Image | None
    pin_id: UUID
    coverage: Coverage
    failed: int
    in_flight: int
    state: str

    @property
    def missing(self) -> int:
        """Wanted copies that are neither ready nor on their way."""
        return max(0, self.coverage.required - self.coverage.ready - self.in_flight)


@dataclass(frozen=True, slots=True)
class PoolCoverage:
    """One pool with its nodes by state and its disks.

    ``artifacts`` is by pin; ``unique``, of which ``coverage`` is the sum, has versions that share bytes only once.
    ``images`` have their own, ``image_coverage`` in sum, each of them once.
    """

    pool: NodePool
    coverage: Coverage
    artifacts: tuple[ArtifactCoverage, ...]
    unique: tuple[ArtifactCoverage, ...]
    images: tuple[ArtifactCoverage, ...]
    nodes: Mapping[str, int]
    failed: int
    in_flight: int
    state: str
    capacity_bytes: int
    used_bytes: int
    other_bytes: int
    reserved_bytes: int

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
    def image_coverage(self) -> Coverage:
        return sum((one.coverage for one in self.images), Coverage())

    @property
    def nodes_total(self) -> int:
        return sum(self.nodes.values())


def pools_coverage(*, now: datetime, targets: Targets = None, pool: NodePool | None = None) -> tuple[PoolCoverage, ...]:
    """Every visible pool (or one) in a handful of queries, however many nodes and entries."""
    visible = pools_list(targets=targets).order_by("cluster__name", "name")
    return _coverage_of([pool] if pool is not None else list(visible), now)


def _coverage_of(pools: Sequence[NodePool], now: datetime) -> tuple[PoolCoverage, ...]:
    nodes, pins, counts = live_nodes(pools), live_pins(pools), entry_counts(pools, now)
    wants = {one.id: _wants(one, pins[one.id]) for one in pools}
    chosen = {want.artifact.pk for found in wants.values() for want in found if not is_everywhere(want.pin)}
    rows = entry_rows(pools, chosen) if chosen else {}
    return tuple(_pool_coverage(one, nodes[one.id], wants[one.id], counts, rows, now) for one in pools)


def unknown_copies(silent: Mapping[UUID, int], *, now: datetime) -> int:
    """What pools_coverage counts as unknown in sum. ``silent`` is the number of silent nodes of each pool that has any:
    where pins want all nodes, that is all there is to count."""
    live = Pin.objects.filter(removed_at__isnull=True, version__artifact__isnull=False, pools__in=silent)
    live = live.annotate(pool=F("pools"), artifact=F("version__artifact"))
    wanted: dict[UUID, set[UUID]] = {}
    choosing = set()
    for pin in live.only("artifacts", "placement_type", "node_selector").order_by():
        if wants_weights(pin):
            wanted.setdefault(pin.pool, set()).add(pin.artifact)
            choosing |= set() if is_everywhere(pin) else {pin.pool}
    total = sum(silent[pool] * len(artifacts) for pool, artifacts in wanted.items() if pool not in choosing)
    if choosing:
        pools = list(NodePool.objects.filter(pk__in=choosing).select_related("cluster"))
        total += sum(one.coverage.unknown for one in _coverage_of(pools, now))
    return total


def _wants(pool: NodePool, pins: Sequence[Pin]) -> list[Want]:
    return [*weights_wanted(pins), *(images_wanted(pins) if holds_images(pool) else [])]


def _pool_coverage(
    pool: NodePool,
    nodes: Sequence[Node],
    wants: Sequence[Want],
    counts: Counts,
    rows: Mapping[UUID, Sequence[EntryRow]],
    now: datetime,
) -> PoolCoverage:
    counted = Counter(counted_state(node, pool, now) for node in nodes)
    view = _view(pool, nodes, wants, rows, now)
    sharing: dict[UUID, list[Want]] = {}
    for want in wants:
        sharing.setdefault(want.artifact.id, []).append(want)

    def covered(some: Sequence[Want]) -> ArtifactCoverage:
        return _artifact_coverage(view, some, counted, counts.get((pool.id, some[0].artifact.id), {}))

    together = tuple(covered(some) for some in sharing.values())
    unique = tuple(one for one in together if one.image is None)
    total = sum((one.coverage for one in unique), Coverage())
    failed, in_flight = sum(one.failed for one in unique), sum(one.in_flight for one in unique)
    return PoolCoverage(
        pool=pool,
        coverage=total,
        artifacts=tuple(covered([want]) for want in wants if want.image is None),
        unique=unique,
        images=tuple(one for one in together if one.image is not None),
        nodes=dict(Counter(state_of(node, pool, now).value for node in nodes)),
        failed=failed,
        in_flight=in_flight,
        state=DELETING if pool.deleting_at else _pool_state(total, unique),
        capacity_bytes=sum(node.capacity_bytes or 0 for node in nodes),
        used_bytes=sum(node.used_bytes for node in nodes),
        other_bytes=sum(node.other_bytes for node in nodes),
        reserved_bytes=sum(node.reserved_bytes for node in nodes),
    )


def _pool_state(total: Coverage, unique: Sequence[ArtifactCoverage]) -> str:
    """Copies that failed before their pin was suspended are not tried again, and degrade nothing."""
    awake = [one for one in unique if one.state != SUSPENDED]
    return coverage_state(total, failed=sum(one.failed for one in awake), in_flight=sum(one.in_flight for one in awake))


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
    view: PoolView,
    wants: Sequence[Want],
    nodes: Mapping[NodeState, int],
    states: Mapping[EntryState, tuple[int, int]],
) -> ArtifactCoverage:
    """What pins of one artifact ask for together: a copy that several of them want is required once."""
    artifact, pins = wants[0].artifact, [want.pin for want in wants]
    if all(is_everywhere(pin) for pin in pins):
        covered = _everywhere(artifact.size_bytes, nodes, states)
        failed, in_flight = _copies(states, {EntryState.FAILED}), _copies(states, _IN_FLIGHT)
    else:
        views = tuple(pin_view(pin, digest=artifact.digest) for pin in pins)
        covered = counting.of_artifact(replace(view, pins=views), artifact.digest)
        found = Counter(_wanted_states(view.nodes, views, artifact.digest))
        failed, in_flight = found[EntryState.FAILED], sum(found[state] for state in _IN_FLIGHT)
    suspended = all(pin.suspended for pin in pins) and not covered.complete
    return ArtifactCoverage(
        version=pins[0].version,
        image=wants[0].image,
        pin_id=pins[0].id,
        coverage=covered,
        failed=failed,
        in_flight=in_flight,
        state=SUSPENDED if suspended else coverage_state(covered, failed=failed, in_flight=in_flight),
    )


def _copies(states: Mapping[EntryState, tuple[int, int]], wanted: Iterable[EntryState]) -> int:
    return sum(states.get(state, (0, 0))[0] for state in wanted)


def _wanted_states(nodes: Iterable[NodeView], pins: Sequence[PinView], digest: str) -> Iterable[EntryState]:
    """States of the copies that the pins want, on nodes that are heard of."""
    for node in nodes:
        mine = [pin for pin in pins if node.state is not NodeState.UNKNOWN and selects(pin.node_selector, node.labels)]
        everywhere = any(pin.placement.type is PlacementType.ALL for pin in mine)
        for entry in node.entries if mine else ():
            if entry.digest == digest and (everywhere or entry.desired is Action.ENSURE):
                yield entry.state


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
    pool: NodePool, nodes: Sequence[Node], wants: Sequence[Want], rows: Mapping[UUID, Sequence[EntryRow]], now: datetime
) -> PoolView:
    """Only what counting reads: no policy, holds or throughput, and the pins of one count at a time."""
    choosing = not all(is_everywhere(want.pin) for want in wants)
    artifacts = {
        artifact.digest: ArtifactFacts(artifact.digest, "", ArtifactKind(artifact.kind), artifact.size_bytes, "", "")
        for artifact in (want.artifact for want in wants)
    }
    return PoolView(
        cluster=pool.cluster.name,
        pool=pool.name,
        policy=PoolPolicy(),
        nodes=tuple(_node(node, pool, rows.get(node.id, ()), now) for node in nodes if choosing),
        pins=(),
        artifacts=artifacts,
    )


def _node(node: Node, pool: NodePool, rows: Iterable[EntryRow], now: datetime) -> NodeView:
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
            EntryView(
                row.digest, row.state, row.size_bytes, row.bytes_done, Action(row.desired) if row.desired else None
            )
            for row in rows
            if row.state not in GONE
        ),
        in_use=None,
    )
