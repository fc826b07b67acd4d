"""What beat asks for now and then: rechecks that are due, lost nodes' entries, and rows that nobody needs any more."""

from __future__ import annotations

from datetime import datetime, timedelta

import structlog
from django.utils import timezone

from caches.models import CacheEntry, EntryChange, Transfer, WebhookDelivery
from caches.services.catalogue import rechecks_due, version_recheck
from caches.services.entries import entries_close_lost
from controlplane.audit.services import SYSTEM
from controlplane.clusters.models import Node
from controlplane.errors import HearthError
from controlplane.operations.models import FINAL_STATES, Operation
from controlplane.rest.models import IdempotencyKey

KEEP_CHANGES = timedelta(days=30)
KEEP_TRANSFERS = timedelta(days=90)
KEEP_DELIVERIES = timedelta(days=30)
KEEP_OPERATIONS = timedelta(days=90)
KEEP_LOST_NODES = timedelta(days=90)
BATCH = 5000

log = structlog.get_logger(__name__)


def rechecks_start(*, now: datetime) -> int:
    """Start a recheck of every version whose last one is too old; returns how many were started."""
    started = 0
    for version_id in rechecks_due(now=now):
        try:
            version_recheck(actor=SYSTEM, version_id=version_id)
            started += 1
        except HearthError as error:
            log.warning("recheck.refused", version=str(version_id), code=error.code)
    return started


def lost_close(*, now: datetime) -> int:
    """Close the entries of lost nodes that the watcher's sink missed, and end holds whose time is over."""
    ended = CacheEntry.objects.filter(hold_until__lte=now).exclude(hold_reason="")
    ended.update(hold_reason="", hold_until=None, updated_at=timezone.now())
    return entries_close_lost()


def rows_purge(*, now: datetime) -> dict[str, int]:
    """Delete what is past its keeping time, in batches; the audit trail is kept. Returns the counts by kind."""
    old = {
        "idempotency_keys": IdempotencyKey.objects.filter(expires_at__lte=now),
        "entry_changes": EntryChange.objects.filter(at__lte=now - KEEP_CHANGES),
        "transfers": Transfer.objects.filter(ended_at__lte=now - KEEP_TRANSFERS),
        "deliveries": WebhookDelivery.objects.exclude(state="Pending").filter(updated_at__lte=now - KEEP_DELIVERIES),
        "operations": Operation.objects.filter(state__in=FINAL_STATES, ended_at__lte=now - KEEP_OPERATIONS),
        "lost_nodes": Node.objects.filter(lost_at__lte=now - KEEP_LOST_NODES),
    }
    deleted = {}
    for name, rows in old.items():
        ids = list(rows.values_list("pk", flat=True)[:BATCH])
        rows.model._default_manager.filter(pk__in=ids).delete()
        deleted[name] = len(ids)
    return deleted
