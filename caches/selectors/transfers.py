"""How fast each source delivers, from the transfers that nodes finished lately."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from django.db.models import F, FloatField, Window
from django.db.models.functions import Cast, RowNumber

from caches.domain.pool_view import Throughput
from caches.models import Transfer

SAMPLES = 50
WINDOW = timedelta(days=7)
# Below this a transfer measures latency, not throughput.
SMALLEST_BYTES = 1024 * 1024


def throughput_by_connection(*, now: datetime) -> Mapping[str, Throughput]:
    """Median bytes per second of the last 50 transfers of each connection within a week, in one query."""
    recent = (
        Transfer.objects.filter(ended_at__gte=now - WINDOW, bytes_moved__gte=SMALLEST_BYTES, seconds__gt=0)
        .annotate(
            rank=Window(RowNumber(), partition_by=F("connection_id"), order_by=F("ended_at").desc()),
            rate=Cast(F("bytes_moved"), FloatField()) / F("seconds"),
        )
        .filter(rank__lte=SAMPLES)
        .values_list("connection__name", "rate")
    )
    rates: dict[str, list[float]] = {}
    for name, rate in recent:
        rates.setdefault(name, []).append(rate)
    return {name: Throughput(bytes_per_second=_median(found), samples=len(found)) for name, found in rates.items()}


def _median(values: list[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
