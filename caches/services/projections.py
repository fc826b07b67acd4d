"""Forgetting what was projected to a node when the cluster no longer holds it, so that it is applied again."""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

from django.db import transaction

from caches.models import NodeProjection
from caches.services.pool_rounds import pools_mark_dirty
from controlplane.clusters.models import Node


def projections_forget(*, cluster_id: UUID, present: Collection[str] | None = None, gone: Collection[str] = ()) -> int:
    """Forget the projections of live nodes whose uid is not in ``present`` (a complete listing) or is in ``gone``."""
    with transaction.atomic():
        rows = NodeProjection.objects.filter(node__cluster_id=cluster_id, node__lost_at__isnull=True)
        rows = rows.filter(node__uid__in=list(gone)) if present is None else rows.exclude(node__uid__in=list(present))
        found = list(rows.values_list("pk", "node_id"))
        NodeProjection.objects.filter(pk__in=[pk for pk, _ in found]).delete()
        pools = Node.objects.filter(pk__in=[node_id for _, node_id in found], pool__isnull=False)
        pools_mark_dirty(pool_ids=set(pools.values_list("pool_id", flat=True)))
    return len(found)
