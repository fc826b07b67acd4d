"""Which pool each live node belongs to, and what pools say about nodes that two of them select."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from controlplane.clusters.documents import Condition
from controlplane.clusters.models import Cluster, Node, NodePool
from controlplane.clusters.pool_rules import PoolChoice, pools_of
from controlplane.clusters.sinks import tell_pools_changed

OVERLAP = "Overlap"


def cluster_lock(cluster_id: UUID) -> Cluster:
    """Serialise everybody who writes nodes and pools of one cluster. Cluster.DoesNotExist when it is gone."""
    return Cluster.objects.select_for_update(no_key=True).get(pk=cluster_id)


def node_assign_pools(*, cluster_id: UUID) -> frozenset[UUID]:
    """Give every live node to the first of its matching pools (pools_of); the pools that lost or won nodes."""
    with transaction.atomic():
        cluster_lock(cluster_id)
        pools = [PoolChoice(p.id, p.name, p.selector, p.priority) for p in NodePool.objects.filter(cluster=cluster_id)]
        moved: dict[UUID | None, list[UUID]] = defaultdict(list)
        changed: set[UUID | None] = set()
        shared: dict[UUID, dict[tuple[str, str], set[str]]] = defaultdict(lambda: defaultdict(set))
        live = Node.objects.filter(cluster=cluster_id, lost_at=None)
        for node in live.only("id", "name", "labels", "pool_id"):
            matching = pools_of(node.labels, pools, has=node.pool_id)
            for pool in matching:
                for other in matching if len(matching) > 1 else ():
                    if other is not pool:
                        shared[pool.id][other.name, matching[0].name].add(node.name)
            chosen = matching[0].id if matching else None
            if chosen != node.pool_id:
                moved[chosen].append(node.id)
                changed |= {chosen, node.pool_id}
        for target, node_ids in moved.items():
            live.filter(pk__in=node_ids).update(pool=target)
        _write_overlaps(cluster_id, shared)
        tell_pools_changed(changed)
    return frozenset(pool_id for pool_id in changed if pool_id is not None)


def condition_row(condition: Condition) -> dict[str, Any]:
    """A condition as rows keep it and REST shows it."""
    return {
        "type": condition.type,
        "status": condition.status,
        "reason": condition.reason,
        "message": condition.message,
        "last_transition": condition.last_transition.astimezone(UTC).isoformat().replace("+00:00", "Z"),
    }


def _write_overlaps(cluster_id: UUID, shared: Mapping[UUID, Mapping[tuple[str, str], set[str]]]) -> None:
    for pool in NodePool.objects.filter(cluster=cluster_id):
        conditions = _with_overlap(pool, shared.get(pool.id, {}), now=timezone.now())
        if conditions != pool.conditions:
            # update, not save: an observation must not change the pool's ETag
            NodePool.objects.filter(pk=pool.pk).update(conditions=conditions)


def _with_overlap(pool: NodePool, others: Mapping[tuple[str, str], set[str]], *, now: datetime) -> list[dict[str, Any]]:
    """The pool's conditions with Overlap present exactly while there is one. ``others``: nodes by the other pool that
    they match and the pool that has them."""
    kept = [condition for condition in pool.conditions if condition.get("type") != OVERLAP]
    if not others:
        return kept
    parts = [
        f"{_some(names)} also {'matches' if len(names) == 1 else 'match'} pool {other}, "
        f"and {'this pool' if holder == pool.name else f'pool {holder}'} has {'it' if len(names) == 1 else 'them'}"
        for (other, holder), names in sorted(others.items())
    ]
    message = "; ".join(parts) + ". The highest priority has a node; among equals, the pool that had it first."
    before = next((c for c in pool.conditions if c.get("type") == OVERLAP), None)
    made = condition_row(Condition(OVERLAP, "True", "SelectorsOverlap", message, now))
    if before is not None:
        made["last_transition"] = before["last_transition"]
    return [*kept, made]


def _some(names: set[str], show: int = 3) -> str:
    ordered = sorted(names)
    more = f" and {len(ordered) - show} more" if len(ordered) > show else ""
    return f"{'nodes' if len(ordered) > 1 else 'node'} {', '.join(ordered[:show])}{more}"
