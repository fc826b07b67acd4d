"""Mirroring what agents report into CacheEntry rows: guarded, batched, idempotent. Nothing else writes observed fields.

A status counts only when its node incarnation lives, it is not older than the node's last report, and its uid is the
NodeCache's. Every change of a state leaves an EntryChange.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

import structlog
from django.db import transaction
from django.db.models import F
from django.utils import timezone

from caches.models import Artifact, CacheEntry, EntryChange, NodeProjection, Transfer
from caches.selectors.artifact_facts import artifact_origins
from caches.services.drift import rechecks_suspected
from caches.services.loop.pool_rounds import pools_mark_dirty
from caches.services.webhooks.announcing import webhook_announce
from caches.services.witnesses import witness_check
from controlplane.clusters.documents import ArtifactKind, EntryState, EntryStatus, NodeCacheStatus, Reason
from controlplane.clusters.gateway import ObservedNodeCache
from controlplane.clusters.models import Node

log = structlog.get_logger(__name__)

_COPIED = (
    "message",
    "attempts",
    "retry_at",
    "bytes_done",
    "bytes_total",
    "bytes_moved",
    "rate_bytes_per_second",
    "eta_seconds",
    "started_at",
    "ready_at",
    "verified_at",
    "last_used_at",
)
_WRITTEN = [
    *_COPIED,
    "state",
    "reason",
    "damaged",
    "scrub",
    "observed_verify_round",
    "observed_retry_round",
    "observed_generation",
    "observed_at",
    "state_since",
    "bytes_recorded",
    "updated_at",
]  # never a field that a service writes: bulk_update would take its change back


@dataclass(slots=True)
class Mirror:
    """What one pass over one batch of statuses will write."""

    made: list[CacheEntry] = field(default_factory=list)
    changed: list[CacheEntry] = field(default_factory=list)
    changes: list[EntryChange] = field(default_factory=list)
    finished: list[tuple[CacheEntry, EntryStatus]] = field(default_factory=list)
    failed: list[tuple[CacheEntry, Node]] = field(default_factory=list)
    suspect: list[CacheEntry] = field(default_factory=list)
    source_changed: set[UUID] = field(default_factory=set)  # artifacts of entries that failed for it just now
    dirty: set[UUID] = field(default_factory=set)


def statuses_mirror(*, cluster_id: UUID, caches: Sequence[ObservedNodeCache]) -> int:
    """Mirror a batch of observed NodeCaches of one cluster; returns how many statuses counted."""
    statuses = {c.node_uid: c.status for c in caches if c.status is not None and c.status.node_uid == c.node_uid}
    with transaction.atomic():
        # The locks make two watchers (an old one that is still ending, and its successor) take turns.
        rows = Node.objects.select_for_update(no_key=True).filter(
            cluster_id=cluster_id, uid__in=list(statuses), lost_at__isnull=True
        )
        nodes = [n for n in rows.order_by("pk") if not _is_old(n, statuses[n.uid])]
        mirror = Mirror()
        _read(mirror, nodes, {node.pk: statuses[node.uid] for node in nodes}, _applied(nodes))
        _write(mirror)
        pools_mark_dirty(pool_ids=mirror.dirty)
    # After the commit: nodes and versions are never locked together. What a kill loses here, the hourly round finds.
    if mirror.source_changed:
        rechecks_suspected(artifact_ids=mirror.source_changed)
    return len(nodes)


def entries_close_lost(*, cluster_id: UUID | None = None) -> int:
    """Entries of node incarnations that are gone become Lost; returns how many did."""
    now = timezone.now()
    with transaction.atomic():
        gone = CacheEntry.objects.filter(node__lost_at__isnull=False).exclude(state=EntryState.LOST)
        if cluster_id is not None:
            gone = gone.filter(node__cluster_id=cluster_id)
        rows = list(gone.select_for_update(no_key=True, of=("self",)).only("pk", "state"))
        EntryChange.objects.bulk_create(
            EntryChange(entry=row, at=now, old_state=row.state, new_state=EntryState.LOST, message="Its node is gone.")
            for row in rows
        )
        CacheEntry.objects.filter(pk__in=[row.pk for row in rows]).update(
            state=EntryState.LOST,
            reason="",
            message="Its node is gone.",
            desired="",
            evict_requested_at=None,
            retry_at=None,
            rate_bytes_per_second=None,
            eta_seconds=None,
            state_since=now,
            updated_at=now,
        )
    return len(rows)


def _is_old(node: Node, status: NodeCacheStatus) -> bool:
    return node.reported_at is not None and status.reported_at < node.reported_at


def _applied(nodes: Sequence[Node]) -> Mapping[UUID, int]:
    """The generation of each node's NodeCache as Hearth last applied it."""
    return dict(NodeProjection.objects.filter(node__in=nodes).values_list("node_id", "generation"))


def _read(
    mirror: Mirror, nodes: Sequence[Node], statuses: Mapping[UUID, NodeCacheStatus], applied: Mapping[UUID, int]
) -> None:
    digests = {entry.digest for status in statuses.values() for entry in status.entries}
    known = Artifact.objects.filter(digest__in=digests).defer("manifest").in_bulk(field_name="digest")
    rows: dict[UUID, dict[str, CacheEntry]] = {node.pk: {} for node in nodes}
    # Agents know nothing of images: that they do not name them says nothing.
    stored = CacheEntry.objects.filter(node__in=nodes, artifact__kind=ArtifactKind.WEIGHTS)
    stored = stored.select_related("artifact").defer("artifact__manifest")
    for row in stored.order_by("pk"):
        rows[row.node_id][row.artifact.digest] = row
    for node in nodes:
        status = statuses[node.pk]
        for entry in status.entries:
            artifact = known.get(entry.digest)
            if artifact is None:
                log.warning("entry.unknown-artifact", node=node.name, digest=entry.digest)
                continue
            stored_row = rows[node.pk].pop(entry.digest, None)
            row = CacheEntry(node=node, artifact=artifact) if stored_row is None else stored_row
            _observe(mirror, node, row, entry, status)
        _observe_absent(mirror, node, rows[node.pk].values(), status, applied.get(node.pk))


def _observe(mirror: Mirror, node: Node, row: CacheEntry, entry: EntryStatus, status: NodeCacheStatus) -> None:
    state, reason, message = witness_check(artifact=row.artifact, entry=entry)
    seen: dict[str, Any] = {name: getattr(entry, name) for name in _COPIED}
    seen |= {
        "message": message.replace("\0", "\N{REPLACEMENT CHARACTER}")[:1000],
        "reason": reason if reason in set(Reason) else (Reason.INTERNAL if reason else ""),
        "damaged": list(entry.damaged),
        "scrub": asdict(entry.scrub) | {"damaged": list(entry.scrub.damaged)} if entry.scrub else None,
        "observed_verify_round": entry.verify_round,
        "observed_retry_round": entry.retry_round,
        "state": state,
    }
    old_state = row.state if not row._state.adding else EntryState.ABSENT
    if not row._state.adding and all(getattr(row, name) == value for name, value in seen.items()):
        return
    failure = (EntryState.FAILED, Reason.SOURCE_CHANGED)
    if (state, seen["reason"]) == failure != (old_state, row.reason):
        mirror.source_changed.add(row.artifact_id)
    for name, value in seen.items():
        setattr(row, name, value)
    _record(mirror, node, row, old_state, status)
    if state == EntryState.READY and old_state == EntryState.REPAIRING:
        row.bytes_recorded = entry.bytes_moved  # a repair says nothing about the speed of a download
    elif state == EntryState.READY and old_state != EntryState.READY:
        mirror.finished.append((row, entry))
    if state != entry.state and old_state != EntryState.FAILED:
        mirror.suspect.append(row)


def _observe_absent(
    mirror: Mirror, node: Node, rows: Iterable[CacheEntry], status: NodeCacheStatus, applied: int | None
) -> None:
    # A NodeCache that was deleted and made again counts from 1: then what was applied last is the measure.
    is_current = applied is not None and 0 < applied <= status.observed_generation
    for row in rows:
        if row.state in (EntryState.ABSENT, EntryState.LOST):
            continue
        if status.observed_generation < row.observed_generation and not is_current:
            continue  # the agent has just started and has not read its spec yet: it says nothing about this entry
        old_state, row.state, row.reason, row.message = row.state, EntryState.ABSENT, "", ""
        row.bytes_done, row.rate_bytes_per_second, row.eta_seconds, row.retry_at = 0, None, None, None
        row.ready_at = row.verified_at = None
        row.damaged, row.scrub = [], None
        _record(mirror, node, row, old_state, status)


def _record(mirror: Mirror, node: Node, row: CacheEntry, old_state: str, status: NodeCacheStatus) -> None:
    row.observed_at = row.updated_at = status.reported_at
    row.observed_generation = status.observed_generation
    if row._state.adding:
        row.state_since = status.reported_at
        mirror.made.append(row)
    else:
        mirror.changed.append(row)
    if row.state == old_state:
        return
    row.state_since = status.reported_at
    if node.pool_id:
        mirror.dirty.add(node.pool_id)
    mirror.changes.append(
        EntryChange(
            entry=row,
            at=status.reported_at,
            old_state=old_state,
            new_state=row.state,
            reason=row.reason,
            message=row.message,
        )
    )
    if row.state == EntryState.FAILED:
        mirror.failed.append((row, node))


def _write(mirror: Mirror) -> None:
    transfers = _transfers(mirror.finished)
    CacheEntry.objects.bulk_create(mirror.made)
    for row in mirror.changed:
        row.updated_at = timezone.now()
    # Every row is there, so nothing is inserted: a bulk_update of as many columns would take ten times as long.
    CacheEntry.objects.bulk_create(
        mirror.changed,
        update_conflicts=True,
        unique_fields=["node", "artifact"],
        update_fields=_WRITTEN,
        batch_size=500,
    )
    absent = [row.pk for row in mirror.changed if row.state == EntryState.ABSENT]
    CacheEntry.objects.filter(pk__in=absent).update(evict_requested_at=None)
    CacheEntry.objects.filter(pk__in=[row.pk for row in mirror.suspect]).update(verify_round=F("verify_round") + 1)
    EntryChange.objects.bulk_create(mirror.changes)
    Transfer.objects.bulk_create(transfers)
    for row, node in mirror.failed:
        webhook_announce(
            event="entry.failed",
            dedup_key=f"entry.failed:{row.pk}:{row.reason}:{row.started_at or row.state_since}",
            payload={
                "node": node.name,
                "node_uid": node.uid,
                "digest": row.artifact.digest,
                "reason": row.reason,
                "message": row.message,
                "attempts": row.attempts,
                "retry_at": row.retry_at.isoformat() if row.retry_at else None,
            },
        )


def _transfers(finished: Sequence[tuple[CacheEntry, EntryStatus]]) -> list[Transfer]:
    """Rows for downloads that ended Ready. What an earlier row already holds is not counted twice."""
    if not finished:
        return []
    origins = artifact_origins({row.artifact.digest for row, _ in finished})
    made = []
    for row, entry in finished:
        moved = entry.bytes_moved - row.bytes_recorded
        if moved < 0:  # the agent began to count anew: it lost its journal, or the artifact was evicted in between
            moved = entry.bytes_moved
        row.bytes_recorded = entry.bytes_moved
        origin = origins.get(row.artifact.digest)
        if moved <= 0 or origin is None or entry.started_at is None or entry.ready_at is None:
            continue
        made.append(
            Transfer(
                entry=row,
                connection=origin.connection,
                bytes_moved=moved,
                seconds=max(0.001, (entry.ready_at - entry.started_at).total_seconds()),
                queued_seconds=_seconds(row.wanted_at, entry.started_at),
                ended_at=entry.ready_at,
            )
        )
    return made


def _seconds(start: datetime | None, end: datetime) -> float:
    return max(0.0, (end - start).total_seconds()) if start is not None else 0.0
