"""Forgetting what was projected to a node when the cluster no longer holds it, so that it is applied again."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from caches.models import NodeProjection
from caches.services.loop.pool_rounds import pools_mark_dirty
from controlplane.audit.services import SYSTEM, audit_write
from controlplane.clusters.models import Node

TOLD_WITHIN = timedelta(seconds=30)  # a listing that was begun before the apply knows nothing of it


def projections_forget(*, cluster_id: UUID, present: Collection[str] | None = None, gone: Collection[str] = ()) -> int:
    """Forget the projections of live nodes whose uid is not in ``present`` (a complete listing) or is in ``gone``. That
    somebody deleted what was applied is audited; what goes with its pool is Hearth's own doing."""
    with transaction.atomic():
        rows = NodeProjection.objects.filter(node__cluster_id=cluster_id, node__lost_at__isnull=True)
        rows = rows.filter(node__uid__in=list(gone)) if present is None else rows.exclude(node__uid__in=list(present))
        found = list(rows.values_list("pk", "node_id", "generation", "applied_at"))
        NodeProjection.objects.filter(pk__in=[pk for pk, *_ in found]).delete()
        known_by = timezone.now() - TOLD_WITHIN
        applied = {node_id: generation > 0 and at < known_by for _, node_id, generation, at in found}
        nodes = Node.objects.filter(pk__in=applied, pool__isnull=False).select_related("pool").order_by("name")
        for node in nodes:
            if applied[node.pk] and node.pool is not None and node.pool.deleting_at is None:
                _audit_deleted(node)
        pools_mark_dirty(pool_ids={node.pool_id for node in nodes if node.pool_id is not None})
    return len(found)


def _audit_deleted(node: Node) -> None:
    audit_write(
        actor=SYSTEM,
        action="node-cache.restored",
        object_type="node",
        object_id=str(node.pk),
        object_name=node.name,
        message="Its NodeCache was gone from the cluster: it is applied again.",
    )
