"""Patience that a cluster asked for: no round of its pools begins before, and those of other clusters go on."""

from __future__ import annotations

from datetime import timedelta

from django.db import transaction
from django.db.models import F, Value
from django.db.models.functions import Greatest
from django.utils import timezone

from caches.models import PoolLoop
from controlplane.clusters.gateway import Throttled
from controlplane.clusters.models import Cluster

LONGEST = timedelta(minutes=5)  # what a cluster asks for beyond it is not believed


def patience_keep(*, cluster: Cluster, error: Throttled) -> None:
    """Hold back every pool of the cluster: it counts what Hearth asks, not for which pool."""
    asked = timezone.now() + min(LONGEST, timedelta(seconds=error.retry_after_seconds))
    with transaction.atomic():
        # Locked in id order, as everywhere, so that two callers never wait for each other.
        locked = PoolLoop.objects.select_for_update(no_key=True).filter(pool__cluster=cluster).order_by("id")
        rows = list(locked.values_list("pk", flat=True))
        PoolLoop.objects.filter(pk__in=rows).update(not_before=Greatest(F("not_before"), Value(asked)))
