"""Marking pools dirty: the one way in which anything asks the loop to look again."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from django.db import transaction
from django.db.models import Case, DateTimeField, F, Value, When
from django.utils import timezone

from caches.models import PoolLoop
from controlplane.celery import publish_on_commit


def pools_mark_dirty(*, pool_ids: Iterable[UUID]) -> int:
    """Ask for a round of each pool and queue it on commit. Returns how many pools were marked.

    ``wanted_at`` keeps the time of the oldest unanswered request: the loop's lag is measured from it.
    """
    ids = sorted(set(pool_ids))
    if not ids:
        return 0
    now = timezone.now()
    with transaction.atomic():
        PoolLoop.objects.bulk_create(
            [PoolLoop(pool_id=pool_id, wanted_round=0) for pool_id in ids], ignore_conflicts=True
        )
        # Locked in id order, as the admission of pins does, so that two callers never wait for each other.
        locked = PoolLoop.objects.select_for_update(no_key=True).filter(pool_id__in=ids).order_by("id")
        rows = list(locked.values_list("pk", flat=True))
        PoolLoop.objects.filter(pk__in=rows).update(
            wanted_round=F("wanted_round") + 1,
            wanted_at=Case(
                When(wanted_round__gt=F("done_round"), wanted_at__isnull=False, then=F("wanted_at")),
                default=Value(now),
                output_field=DateTimeField(),
            ),
            updated_at=now,
        )
        for pool_id in ids:
            publish_on_commit("caches.pool_reconcile", str(pool_id))
    return len(rows)
