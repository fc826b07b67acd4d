"""The rows behind coverage: live nodes, and entries as plain tuples or counted, each in one query."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import Count, Q, QuerySet, Sum
from django.db.models.functions import Least

from caches.models import CacheEntry
from caches.selectors.nodes import nodes_list
from caches.selectors.pool_view import state_of
from controlplane.clusters.documents import Action, EntryState, NodeState
from controlplane.clusters.freshness import is_fresh
from controlplane.clusters.models import Node, NodePool

GONE = frozenset({EntryState.ABSENT, EntryState.LOST})
_STATES = {state.value: state for state in EntryState}
# By pool and artifact: copies and their bytes in each state.
Counts = Mapping[tuple[UUID, UUID], Mapping[EntryState, tuple[int, int]]]


class EntryRow(NamedTuple):
    """What pages read of an entry; ``desired`` is an Action, or "" for nothing."""

    node_id: UUID
    artifact_id: UUID
    digest: str
    size_bytes: int
    state: EntryState
    bytes_done: int
    desired: str


def live_nodes(pools: Sequence[NodePool]) -> Mapping[UUID, list[Node]]:
    """Nodes that are not lost, by pool; without what no page says of all nodes."""
    found: dict[UUID, list[Node]] = defaultdict(list)
    rows = Node.objects.filter(pool__in=pools, lost_at__isnull=True).defer("orphans", "conditions", "taints")
    for node in rows.order_by("name"):
        found[node.pool_id].append(node)  # type: ignore[index]  # filtered by pool
    return found


def entry_rows(
    pools: Sequence[NodePool], artifacts: Collection[UUID | None] | None = None
) -> Mapping[UUID, list[EntryRow]]:
    """Entries by node that are there or wanted, one tuple each: model instances would be most of the time."""
    entries = CacheEntry.objects.filter(node__pool__in=pools, node__lost_at__isnull=True)
    entries = entries.filter(~Q(state__in=GONE) | Q(state=EntryState.ABSENT, desired=Action.ENSURE))
    if artifacts is not None:
        entries = entries.filter(artifact__in=artifacts)
    fields = ("node_id", "artifact_id", "artifact__digest", "artifact__size_bytes", "state", "bytes_done", "desired")
    found: dict[UUID, list[EntryRow]] = defaultdict(list)
    for node_id, artifact_id, digest, size, state, done, desired in entries.order_by().values_list(*fields):
        found[node_id].append(EntryRow(node_id, artifact_id, digest, size, _STATES[state], done, desired))
    return found


def entry_counts(pools: Sequence[NodePool], now: datetime) -> Counts:
    """Entries on nodes that are not silent, counted by the database."""
    live: QuerySet[Any] = nodes_list(now=now).filter(pool__in=pools, lost_at__isnull=True)
    grouped = (
        CacheEntry.objects.filter(node__in=live.filter(silent=False).values("pk"))
        .exclude(state__in=GONE)
        .order_by()
        .values_list("node__pool", "artifact", "state")
        .annotate(copies=Count("id"), arrived=Sum(Least("bytes_done", "artifact__size_bytes")))
    )
    found: dict[tuple[UUID, UUID], dict[EntryState, tuple[int, int]]] = defaultdict(dict)
    for pool_id, artifact_id, state, copies, arrived in grouped:
        found[pool_id, artifact_id][EntryState(state)] = (copies, arrived)
    return found


def counted_state(node: Node, pool: NodePool, now: datetime) -> NodeState:
    """The state by which copies are counted: what a silent agent once reported is unknown, NotReady or not."""
    state = state_of(node, pool, now)
    silent = not is_fresh(node.reported_at, freshness_seconds=pool.freshness_seconds, now=now)
    return NodeState.UNKNOWN if silent and state is not NodeState.LOST else state
