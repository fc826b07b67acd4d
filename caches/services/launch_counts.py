"""Counts of launches by hour and day, made again from the launches themselves wherever something changed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta
from uuid import UUID

from django.db import transaction

from caches.domain.launch_sketch import Sketch
from caches.models import Launch, LaunchCount, LaunchHour
from controlplane.locks import transaction_lock

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
_CELL = ("pool_name", "version_name", "event_class", "weights", "image")
Cell = tuple[str, ...]


class Tally:
    """What is counted of the launches of one cell."""

    def __init__(self) -> None:
        self.launches = self.ready = self.ended = 0
        self.sketch = Sketch()


def hours_count(*, limit: int = 50) -> int:
    """Count the hours that changed, and the days that they are of. Returns how many hours were counted."""
    dirty = list(LaunchHour.objects.order_by("dirty_at")[:limit])
    days = {(row.cluster_id, day_of(row.start)) for row in dirty}
    for row in dirty:
        _hour_count(row)
    for cluster_id, day in sorted(days):
        _day_count(cluster_id, day)
    return len(dirty)


def day_of(moment: datetime) -> datetime:
    """The day (UTC) that ``moment`` lies in."""
    return moment.replace(hour=0, minute=0, second=0, microsecond=0)


def _hour_count(row: LaunchHour) -> None:
    """Counted from one snapshot; the mark goes unless something changed since it was read."""
    with transaction.atomic():
        _lock(row.cluster_id, day_of(row.start))
        tallies: dict[Cell, Tally] = defaultdict(Tally)
        launches = Launch.objects.filter(
            cluster_id=row.cluster_id, began_at__gte=row.start, began_at__lt=row.start + HOUR
        )
        for *cell, state, seconds in launches.values_list(*_CELL, "state", "ready_seconds").iterator():
            tally = tallies[tuple(cell)]
            tally.launches += 1
            tally.ready += state == "Ready"
            tally.ended += state == "Ended"
            if seconds is not None:
                tally.sketch.add(seconds)
        _replace(row.cluster_id, "Hour", row.start, tallies)
        LaunchHour.objects.filter(pk=row.pk, dirty_at=row.dirty_at).delete()


def _day_count(cluster_id: UUID, day: datetime) -> None:
    with transaction.atomic():
        _lock(cluster_id, day)
        tallies: dict[Cell, Tally] = defaultdict(Tally)
        for row in _hours_of(cluster_id, day):
            tally = tallies[tuple(getattr(row, name) for name in _CELL)]
            tally.launches += row.launches
            tally.ready += row.ready
            tally.ended += row.ended
            tally.sketch.merge(Sketch.from_json(row.sketch))
        _replace(cluster_id, "Day", day, tallies)


def _hours_of(cluster_id: UUID, day: datetime) -> Iterable[LaunchCount]:
    return LaunchCount.objects.filter(cluster_id=cluster_id, step="Hour", start__gte=day, start__lt=day + DAY)


def _replace(cluster_id: UUID, step: str, start: datetime, tallies: dict[Cell, Tally]) -> None:
    LaunchCount.objects.filter(cluster_id=cluster_id, step=step, start=start).delete()
    LaunchCount.objects.bulk_create(
        LaunchCount(
            cluster_id=cluster_id,
            step=step,
            start=start,
            launches=tally.launches,
            ready=tally.ready,
            ended=tally.ended,
            sketch=tally.sketch.to_json(),
            **dict(zip(_CELL, cell, strict=True)),
        )
        for cell, tally in sorted(tallies.items())
    )


def _lock(cluster_id: UUID, day: datetime) -> None:
    """One at a time for each day: a day's counts are read from its hours' counts."""
    transaction_lock(f"launch-counts {cluster_id} {day.isoformat()}")
