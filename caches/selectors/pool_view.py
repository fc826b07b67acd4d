"""Rows to PoolView: everything a plan depends on, in the same few queries whatever the size of the pool."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from caches.domain.pool_view import (
    ArtifactFacts,
    DailyWindow,
    EntryView,
    HoldView,
    NodeView,
    PinView,
    Placement,
    PlacementType,
    PoolPolicy,
    PoolView,
)
from caches.models import ConsumerSeen, Pin
from caches.selectors.artifact_facts import artifact_origins
from caches.selectors.entry_rows import EntryRow, PoolRows, pool_rows
from caches.selectors.image_demand import image_facts, image_pins, image_rows, with_images
from caches.selectors.transfers import throughput_by_connection
from controlplane.clusters.documents import Action, ArtifactKind, EntryState, NodeState
from controlplane.clusters.freshness import is_fresh, node_state
from controlplane.clusters.models import Node, NodePool

_GONE = (EntryState.ABSENT, EntryState.LOST)
_DIGEST_NAME = re.compile(r"sha256-[0-9a-f]{64}")  # as the agent names trees


def pool_view(
    pool: NodePool,
    *,
    now: datetime,
    extra_pins: Sequence[PinView] = (),
    without_pins: Collection[UUID] = (),
    rows: PoolRows | None = None,
) -> PoolView:
    """The pool as stored. ``in_use`` is what the watcher last saw of the consumers (None when that is too old): good
    for pages and forecasts, never for an eviction. ``extra_pins`` and ``without_pins`` ask "what if"; ``rows`` are the
    pool's where the caller has read them already.
    """
    rows = rows if rows is not None else pool_rows(pool)
    nodes = rows.nodes
    entries = {node_id: [row for row in of.values() if _counts(row, now)] for node_id, of in rows.entries.items()}
    leaving = pool.deleting_at is not None
    pins = () if leaving else (*_pins(pool, without_pins), *extra_pins)
    digests = {pin.digest for pin in pins} | {row.digest for of in entries.values() for row in of}
    partials = {node.pk: _partials(node, whole_too=leaving) for node in nodes}
    digests.update(*partials.values())
    origins = artifact_origins(digests)
    artifacts = {digest: origin.facts for digest, origin in origins.items()}
    artifacts |= {digest: image_facts(image) for digest, image in image_rows(digests - artifacts.keys()).items()}
    for row in (row for of in entries.values() for row in of if row.digest not in artifacts):
        artifacts[row.digest] = _unversioned(row)
    if leaving:
        for digest, size in {digest: size for sizes in partials.values() for digest, size in sizes.items()}.items():
            artifacts.setdefault(digest, ArtifactFacts(digest, digest[:19], ArtifactKind.WEIGHTS, size, "", ""))
    in_use = _in_use(pool, nodes, now)
    views = tuple(
        with_images(
            _node_view(node, pool, entries.get(node.pk, ()), partials[node.pk], in_use[node.pk], now),
            node,
            entries.get(node.pk, ()),
        )
        for node in nodes
    )
    return PoolView(
        cluster=pool.cluster.name,
        pool=pool.name,
        policy=pool_policy(pool),
        nodes=views,
        pins=pins,
        artifacts=artifacts,
        holds=() if leaving else _holds(nodes, entries, now),
        throughput=throughput_by_connection(now=now),
    )


def pool_policy(pool: NodePool) -> PoolPolicy:
    """The pool's rules; a paused cluster pauses each of its pools."""
    return PoolPolicy(
        high_watermark=pool.high_watermark,
        low_watermark=pool.low_watermark,
        max_downloads_per_node=pool.max_downloads_per_node,
        max_downloads=pool.max_downloads,
        max_requests_per_node=pool.max_requests_per_node,
        node_bytes_per_second=pool.node_bytes_per_second,
        evict_grace=timedelta(seconds=pool.evict_grace_seconds),
        settle=timedelta(seconds=pool.settle_seconds),
        paused=pool.paused or pool.cluster.paused,
    )


def pin_view(pin: Pin, *, digest: str, kind: ArtifactKind = ArtifactKind.WEIGHTS) -> PinView:
    """A pin's row (saved or not) as the planner sees it."""
    window = None
    if pin.window_start is not None and pin.window_end is not None:
        window = DailyWindow(start=pin.window_start, end=pin.window_end, time_zone=pin.window_time_zone or "UTC")
    return PinView(
        id=str(pin.pk),
        digest=digest,
        priority=pin.priority,
        created_at=pin.created_at,
        placement=Placement(PlacementType(pin.placement_type), pin.placement_value, pin.spread_label),
        node_selector=pin.node_selector,
        window=window,
        needed_at=pin.needed_at,
        suspended=pin.suspended,
        kind=kind,
    )


def _pins(pool: NodePool, without: Collection[UUID]) -> tuple[PinView, ...]:
    rows = (
        Pin.objects.filter(pools=pool, removed_at__isnull=True, artifacts__contains=[ArtifactKind.WEIGHTS])
        .exclude(pk__in=list(without))
        .select_related("version__artifact")
        .defer("version__artifact__manifest")
        .order_by("id")
    )
    weights = [
        pin_view(pin, digest=pin.version.artifact.digest)
        for pin in rows
        if pin.version is not None and pin.version.artifact is not None
    ]
    images = [
        pin_view(pin, digest=image.artifact.digest, kind=ArtifactKind.IMAGE)
        for pin, image in image_pins(pool, without)
        if image.artifact
    ]
    return (*weights, *images)


def _counts(row: EntryRow, now: datetime) -> bool:
    """Whether it is there, is to be, or is held: of what is gone nothing else is told.

    An image that nothing holds any more stays on its node for as long as that likes: nothing is left to decide.
    """
    if row.kind == ArtifactKind.IMAGE and row.state == EntryState.EVICTING and row.desired != Action.ENSURE:
        return False
    if row.state not in _GONE or row.desired == Action.ENSURE:
        return True
    return row.hold_until is not None and row.hold_until > now


def _node_view(
    node: Node,
    pool: NodePool,
    rows: Iterable[EntryRow],
    partials: Mapping[str, int],
    in_use: frozenset[str] | None,
    now: datetime,
) -> NodeView:
    return NodeView(
        name=node.name,
        uid=node.uid,
        state=state_of(node, pool, now),
        labels=node.labels,
        joined_at=node.joined_at,
        capacity_bytes=node.capacity_bytes,
        other_bytes=node.other_bytes,
        orphan_bytes=sum(int(orphan["bytes"]) for orphan in node.orphans),
        entries=tuple(_entry_view(row, pool) for row in rows if row.state not in _GONE),
        in_use=in_use,
        partials=partials,
    )


def state_of(node: Node, pool: NodePool, now: datetime) -> NodeState:
    """The node's derived state at ``now``, by its pool's freshness limit."""
    return node_state(
        ready=node.ready,
        schedulable=node.schedulable,
        observed_at=node.observed_at,
        reported_at=node.reported_at,
        lost_at=node.lost_at,
        freshness_seconds=pool.freshness_seconds,
        now=now,
        terminating=node.terminating_at is not None,
    )


def _entry_view(row: EntryRow, pool: NodePool) -> EntryView:
    return EntryView(
        digest=row.digest,
        state=EntryState(row.state),
        size_bytes=row.size_bytes,
        bytes_on_disk=row.bytes_done,
        desired=Action(row.desired) if row.desired else None,
        attempts=row.attempts,
        reason=row.reason,
        retry_at=row.retry_at,
        ready_at=row.ready_at,
        last_used_at=row.last_used_at,
        evict_requested=row.evict_requested_at is not None or pool.deleting_at is not None,
        verify_round=row.verify_round,
        retry_round=row.retry_round,
        unlabeled_at=row.unlabeled_at,
    )


def has_leftovers(node: Node) -> bool:
    """Whether trees are left on the node that Hearth could have put there, known to it or not."""
    return bool(_partials(node, whole_too=True))


def _partials(node: Node, *, whole_too: bool = False) -> dict[str, int]:
    """Unfinished trees among the orphans (finished ones too if asked), by digest: their folder is named after it."""
    found: dict[str, int] = {}
    for orphan in node.orphans:
        name = str(orphan["name"])
        if orphan["partial"] or (whole_too and _DIGEST_NAME.fullmatch(name)):
            digest = name.replace("-", ":", 1)
            found[digest] = found.get(digest, 0) + int(orphan["bytes"])
    return found


def _unversioned(row: EntryRow) -> ArtifactFacts:
    """An artifact whose versions were deleted: it can be kept and evicted, not fetched."""
    return ArtifactFacts(row.digest, row.digest[:19], ArtifactKind(row.kind), row.size_bytes, "", "", row.witness)


def _holds(nodes: Sequence[Node], entries: Mapping[UUID, Sequence[EntryRow]], now: datetime) -> tuple[HoldView, ...]:
    uids = {node.pk: node.uid for node in nodes}
    return tuple(
        HoldView(row.digest, row.hold_reason, row.hold_until, frozenset({uids[node_id]}))
        for node_id, rows in entries.items()
        for row in rows
        if row.hold_reason and (row.hold_until is None or row.hold_until > now)
    )


def _in_use(pool: NodePool, nodes: Sequence[Node], now: datetime) -> Mapping[UUID, frozenset[str] | None]:
    if not is_fresh(pool.cluster.observed_at, freshness_seconds=pool.freshness_seconds, now=now):
        return dict.fromkeys((node.pk for node in nodes), None)
    found: dict[UUID, set[str]] = {node.pk: set() for node in nodes}
    for node_id, digests in ConsumerSeen.objects.filter(node__in=nodes).values_list("node_id", "digests"):
        found[node_id].update(digests)
    return {node_id: frozenset(digests) for node_id, digests in found.items()}
