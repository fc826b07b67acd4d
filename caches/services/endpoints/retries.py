"""What failed for want of credentials, once there are others: tried now instead of when its own turn comes."""

from __future__ import annotations

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from caches.models import CacheEntry, SourceConnection
from caches.services.loop.pool_rounds import pools_mark_dirty
from controlplane.audit.services import SYSTEM, audit_write
from controlplane.clusters.documents import Action, EntryState, Reason


def entries_retry_denied(*, connection: SourceConnection) -> int:
    """Have the nodes try again at once what they were denied through this connection. The number of entries."""
    with transaction.atomic():
        denied = CacheEntry.objects.filter(
            artifact__in=connection.versions.values("artifact"),
            node__pool__isnull=False,
            node__lost_at__isnull=True,
            desired=Action.ENSURE,
            state=EntryState.FAILED,
            reason=Reason.ACCESS_DENIED,
        )
        # In one order, so that nobody who has them locked waits for us while we wait for them.
        found = list(denied.select_for_update(of=("self",)).order_by("pk").values_list("pk", "node__pool_id"))
        if not found:
            return 0
        rows = CacheEntry.objects.filter(pk__in=[key for key, _ in found], state=EntryState.FAILED)
        count = rows.update(retry_round=F("retry_round") + 1, updated_at=timezone.now())
        audit_write(
            actor=SYSTEM,
            action="connection.retry",
            object_type="connection",
            object_id=str(connection.pk),
            object_name=connection.name,
            after={"entries": count},
            message="Its credentials are others: what was denied is tried again.",
        )
        pools_mark_dirty(pool_ids={pool for _, pool in found})
    return count
