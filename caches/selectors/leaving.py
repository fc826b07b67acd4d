"""What deleting a pool takes away: which copies leave which node now, and which stay for a while, and why."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import QuerySet
from django.utils import timezone

from caches.domain.plans import Plan
from caches.domain.pool_view import NodeView
from caches.models import Pin
from caches.selectors.pool_view import pool_view
from controlplane.clusters.documents import ANY_DIGEST, EntryState, NodeState
from controlplane.clusters.models import NodePool

_GONE = (EntryState.ABSENT, EntryState.LOST)


@dataclass(frozen=True, slots=True)
class Leaving:
    """One copy on one node. ``stays`` says why it does not leave at once; "" when it does."""

    node: str
    artifact: str
    bytes: int
    stays: str


def pool_leaving(pool: NodePool, plan: Plan) -> Sequence[Leaving]:
    """Every copy of the pool, by node. ``plan`` is pool_delete_preview's."""
    changed = copy.copy(pool)
    changed.deleting_at = pool.deleting_at or timezone.now()
    view = pool_view(changed, now=timezone.now())
    going = {(line.node_uid, line.digest) for line in plan.evictions}
    found = []
    for node in view.nodes:
        for entry in node.entries:
            if entry.state in _GONE:
                continue
            facts = view.artifacts.get(entry.digest)
            name = facts.name if facts is not None else entry.digest[:19]
            stays = "" if (node.uid, entry.digest) in going else _why(node, entry.digest)
            found.append(Leaving(node.name, name, entry.bytes_on_disk or entry.size_bytes, stays))
    return found


def pins_of(pool: NodePool) -> QuerySet[Pin]:
    """Live pins that want something there: while there are any, the pool cannot be deleted."""
    rows = Pin.objects.filter(pools=pool, removed_at__isnull=True).select_related("version__model", "image")
    return rows.order_by("version__model__name", "version__version")


def _why(node: NodeView, digest: str) -> str:
    if node.state in (NodeState.NOT_READY, NodeState.UNKNOWN, NodeState.TERMINATING):
        return "Its node does not answer: it leaves once the node is back."
    if node.in_use is None:
        return "Who uses it is not known now: it leaves once that is known and nobody does."
    if digest in node.in_use or ANY_DIGEST in node.in_use:
        return "In use: it leaves once nobody uses it."
    return "It leaves in one of the next rounds."
