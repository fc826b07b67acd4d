"""Node rows from observations: batched, guarded by uid, and the same however often they are repeated."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import connection, transaction
from django.db.models import F, Q
from django.db.models.functions import Greatest

from controlplane.clusters import codec
from controlplane.clusters.assignment import cluster_lock, condition_row, node_assign_pools
from controlplane.clusters.documents import NodeCacheStatus
from controlplane.clusters.gateway import EventType, Kind, ObservedNode, ObservedNodeCache, WatchEvent
from controlplane.clusters.models import Cluster, Node, NodePool
from controlplane.clusters.sinks import tell_cluster_replaced

log = logging.getLogger(__name__)
ERROR_LENGTH = 1000
_FACTS = {  # what a report overwrites, with its type
    "capacity_bytes": "bigint",
    "used_bytes": "bigint",
    "other_bytes": "bigint",
    "reserved_bytes": "bigint",
    "orphans": "jsonb",
    "agent_version": "text",
    "conditions": "jsonb",
}
_TAKEN = ("labels", "ready", "schedulable", "taints", "terminating_at", "lost_at")  # what an observation overwrites


@dataclass(slots=True)
class _Batch:
    """What one set of observations does to the rows."""

    created: list[Node] = field(default_factory=list)
    changed: list[Node] = field(default_factory=list)
    lost: list[Node] = field(default_factory=list)
    regroup: bool = False  # labels or membership changed: pools are assigned anew


def nodes_relisted(*, cluster_id: UUID, items: Sequence[ObservedNode], at: datetime) -> frozenset[UUID]:
    """Make the rows agree with a complete listing; whoever is missing is lost. The pools that changed."""
    uids = {item.uid for item in items}
    with transaction.atomic():
        cluster = cluster_lock(cluster_id)
        # A row that is newer than this listing's word for its name was seen by somebody with a later listing.
        newest = {item.name: item.created_at for item in items}
        gone = [
            row.uid
            for row in Node.objects.filter(cluster=cluster, lost_at=None).exclude(uid__in=uids)
            if row.name not in newest or row.joined_at <= newest[row.name]
        ]
        return _apply(cluster, items, gone, at, reopen=True)


def nodes_changed(*, cluster_id: UUID, events: Sequence[WatchEvent], at: datetime) -> frozenset[UUID]:
    """Apply increments of kind Node; the last word about each uid counts. The pools that changed."""
    last: dict[str, tuple[EventType, ObservedNode]] = {}
    for event in events:
        if event.kind is Kind.NODE and isinstance(event.object, ObservedNode):
            last.pop(event.object.uid, None)  # keeps the order of the last words
            last[event.object.uid] = (event.type, event.object)
    if not last:
        return frozenset()
    items = [item for type_, item in last.values() if type_ is not EventType.DELETED]
    gone = [uid for uid, (type_, _) in last.items() if type_ is EventType.DELETED]
    with transaction.atomic():
        return _apply(cluster_lock(cluster_id), items, gone, at, reopen=False)


def node_statuses(*, cluster_id: UUID, items: Iterable[ObservedNodeCache], at: datetime) -> int:
    """Write what agents reported into the rows of live nodes; older reports than the known one change nothing.

    Returns how many rows changed. A report from the future counts as made now, so that a wrong clock cannot make a
    silent node look alive.
    """
    reports: dict[str, NodeCacheStatus] = {}
    for item in items:
        # What an earlier incarnation left in the object is no word about this one.
        if (status := item.status) is not None and status.node_uid == item.node_uid:
            other = reports.get(item.node_uid)
            if other is None or status.reported_at >= other.reported_at:
                reports[item.node_uid] = status
    when = {uid: min(status.reported_at, at) for uid, status in reports.items()}
    live = Node.objects.filter(cluster=cluster_id, lost_at=None, uid__in=reports)
    newer = [
        (pk, uid)
        for pk, uid, reported_at in live.values_list("pk", "uid", "reported_at")
        if reported_at is None or when[uid] > reported_at
    ]
    return _reports_write({pk: (when[uid], reports[uid]) for pk, uid in newer}) if newer else 0


def _reports_write(told: Mapping[UUID, tuple[datetime, NodeCacheStatus]]) -> int:
    """One statement for however many; by node id, when it was reported and what."""
    columns = {"reported_at": "timestamptz", **_FACTS}
    arrays = ", ".join(f"%s::{kind}[]" for kind in columns.values())
    changes = ", ".join(f"{name} = told.{name}" for name in columns)
    table = connection.ops.quote_name(Node._meta.db_table)
    with transaction.atomic(), connection.cursor() as cursor:
        # Locked in the order of ids, as everywhere, so that two callers never wait for each other.
        locked = Node.objects.select_for_update(no_key=True).filter(pk__in=list(told), lost_at=None).order_by("pk")
        ids = list(locked.values_list("pk", flat=True))
        rows = [{"reported_at": told[pk][0], **_facts(told[pk][1])} for pk in ids]
        cursor.execute(
            f"UPDATE {table} AS node SET {changes} "
            f"FROM unnest(%s::uuid[], {arrays}) AS told (id, {', '.join(columns)}) "
            "WHERE node.id = told.id AND (node.reported_at IS NULL OR node.reported_at < told.reported_at)",
            [ids, *([_column(row[name]) for row in rows] for name in columns)],
        )
        return int(cursor.rowcount)


def _column(value: object) -> object:
    return json.dumps(value) if isinstance(value, list) else value


def cluster_contacted(*, cluster_id: UUID, at: datetime, nodes_too: bool = False, error: str = "") -> None:
    """The cluster answered; ``error`` is what is wrong all the same.

    With ``nodes_too`` the watch of its nodes is up to date, which confirms all of them.
    """
    Cluster.objects.filter(pk=cluster_id).update(observed_at=Greatest(F("observed_at"), at), error=_clean(error))
    if nodes_too:
        Node.objects.filter(cluster=cluster_id, lost_at=None).update(observed_at=Greatest(F("observed_at"), at))


def cluster_identified(*, cluster_id: UUID, uid: str) -> None:
    """Remember which cluster answers; tell the listeners first where it is another one than before. Nothing for ""."""
    if not uid or Cluster.objects.filter(pk=cluster_id, uid=uid).exists():
        return
    with transaction.atomic():
        cluster = cluster_lock(cluster_id)
        if cluster.uid not in ("", uid):
            log.warning("%s: another cluster answers at its address; it is told everything again", cluster.name)
            tell_cluster_replaced(cluster)
        Cluster.objects.filter(pk=cluster_id).update(uid=uid)


def cluster_failed(*, cluster_id: UUID, error: str) -> None:
    """The cluster did not answer. What was seen of it grows old by itself."""
    Cluster.objects.filter(pk=cluster_id).exclude(error=_clean(error)).update(error=_clean(error))


def _clean(error: str) -> str:
    cleaned: str = _storable(error)
    return cleaned[:ERROR_LENGTH]


def _facts(status: NodeCacheStatus) -> dict[str, object]:
    return {
        "capacity_bytes": _size(status.capacity.capacity_bytes),
        "used_bytes": _size(status.capacity.used_bytes),
        "other_bytes": _size(status.capacity.other_bytes),
        "reserved_bytes": _size(status.capacity.reserved_bytes),
        "orphans": _storable(codec.encode(status.orphans)),
        "agent_version": _storable(status.agent_version)[:40],
        "conditions": _storable([condition_row(condition) for condition in status.conditions]),
    }


def _size(size_bytes: int) -> int:
    """One agent's nonsense must not stop what the others say from being stored."""
    return min(max(size_bytes, 0), 2**63 - 1)


def _storable(value: Any) -> Any:
    """What an agent says, without the characters that PostgreSQL refuses: NUL, and bytes that are not UTF-8."""
    if isinstance(value, str):
        return value.replace("\0", "").encode(errors="backslashreplace").decode()
    if isinstance(value, list):
        return [_storable(item) for item in value]
    return {_storable(key): _storable(item) for key, item in value.items()} if isinstance(value, dict) else value


def _apply(
    cluster: Cluster, items: Sequence[ObservedNode], gone: Sequence[str], at: datetime, *, reopen: bool
) -> frozenset[UUID]:
    batch, confirmed = _decide(cluster, items, gone, at, reopen=reopen)
    live = Node.objects.filter(cluster=cluster, lost_at=None)
    live.filter(pk__in=[row.pk for row in batch.lost]).update(lost_at=at, ready=None)
    Node.objects.bulk_update(batch.changed, list(_TAKEN), batch_size=500)
    Node.objects.bulk_create(batch.created, batch_size=500)
    live.filter(uid__in=confirmed).update(observed_at=Greatest(F("observed_at"), at))
    pools = {row.pool_id for row in (*batch.lost, *batch.changed)}
    if batch.regroup:
        pools |= node_assign_pools(cluster_id=cluster.pk)
    return frozenset(NodePool.objects.filter(pk__in=[p for p in pools if p]).values_list("pk", flat=True))


def _decide(
    cluster: Cluster, items: Sequence[ObservedNode], gone: Sequence[str], at: datetime, *, reopen: bool
) -> tuple[_Batch, list[str]]:
    """What changes, and the uids that the cluster confirmed."""
    uids = [item.uid for item in items]
    rows = {row.uid: row for row in Node.objects.filter(Q(lost_at=None) | Q(uid__in=uids), cluster=cluster)}
    live = {row.name: row for row in rows.values() if row.lost_at is None}
    batch, confirmed = _Batch(), []
    for uid in gone:
        if uid in rows and live.get(rows[uid].name) is rows[uid]:
            batch.lost.append(live.pop(rows[uid].name))
    for item in _newest(items):
        current, row = live.get(item.name), rows.get(item.uid)
        if current is not None and current.uid != item.uid:
            if item.created_at < current.joined_at:
                continue  # an old observation of a machine that was replaced since
            batch.lost.append(current)
        if row is None:
            row = _new(cluster, item, at)
            batch.created.append(row)
            batch.regroup = True
        elif row.lost_at is not None and not reopen:
            continue  # an echo from before its end; only a complete listing may say that it lives
        elif _take(row, item):
            batch.changed.append(row)
            batch.regroup = True
        live[item.name] = row
        confirmed.append(item.uid)
    batch.regroup = batch.regroup or bool(batch.lost)
    return batch, confirmed


def _newest(items: Sequence[ObservedNode]) -> list[ObservedNode]:
    """One incarnation of each name: an older one that is told in the same breath is history already."""
    newest: dict[str, ObservedNode] = {}
    for item in items:
        known = newest.get(item.name)
        if known is None or item.created_at >= known.created_at:
            newest[item.name] = item
    return list(newest.values())


def _new(cluster: Cluster, item: ObservedNode, at: datetime) -> Node:
    return Node(
        cluster=cluster,
        name=item.name,
        uid=item.uid,
        labels=dict(item.labels),
        ready=item.ready,
        schedulable=item.schedulable,
        taints=list(item.taints),
        terminating_at=item.terminating_at,
        joined_at=item.created_at,
        observed_at=at,
    )


def _take(row: Node, item: ObservedNode) -> bool:
    """Copy what was observed into the row; False when it said so already."""
    seen = (dict(item.labels), item.ready, item.schedulable, list(item.taints), item.terminating_at, None)
    if tuple(getattr(row, name) for name in _TAKEN) == seen:
        return False
    for name, value in zip(_TAKEN, seen, strict=True):
        setattr(row, name, value)
    return True
