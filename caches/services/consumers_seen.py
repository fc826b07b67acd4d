"""Who mounts what, as the watcher sees it. For pages and forecasts; an eviction asks the cluster afresh."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from uuid import UUID

from django.db import transaction

from caches.models import ConsumerSeen
from controlplane.clusters.documents import Consumer
from controlplane.clusters.models import Node


def consumers_relisted(*, cluster_id: UUID, items: Sequence[Consumer], at: datetime) -> None:
    """Replace what is known of the whole cluster."""
    with transaction.atomic():
        _upsert(cluster_id, items, at)
        gone = ConsumerSeen.objects.filter(node__cluster_id=cluster_id).exclude(uid__in=[item.uid for item in items])
        gone.delete()


def consumers_changed(*, cluster_id: UUID, seen: Sequence[Consumer], gone: Iterable[str], at: datetime) -> None:
    """Add or update ``seen``; forget the uids in ``gone``."""
    with transaction.atomic():
        _upsert(cluster_id, seen, at)
        ConsumerSeen.objects.filter(node__cluster_id=cluster_id, uid__in=list(gone)).delete()


def _upsert(cluster_id: UUID, items: Sequence[Consumer], at: datetime) -> None:
    uids = {item.node_uid for item in items}
    nodes = dict(Node.objects.filter(cluster_id=cluster_id, uid__in=uids).values_list("uid", "pk"))
    rows = {
        (nodes[item.node_uid], item.uid): ConsumerSeen(
            node_id=nodes[item.node_uid],
            uid=item.uid,
            name=item.name,
            digests=sorted(item.digests),
            observed_at=at,
        )
        for item in items
        if item.node_uid in nodes
    }
    ConsumerSeen.objects.bulk_create(
        rows.values(),
        update_conflicts=True,
        unique_fields=["node", "uid"],
        update_fields=["name", "digests", "observed_at"],
    )
