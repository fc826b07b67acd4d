"""Counts of launches by hour and day, made again from the launches themselves wherever something changed.

An hour is counted from its launches by one statement, a day from its hours once it is over: pages read today by hours.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import connection, transaction
from django.utils import timezone

from caches.domain.launches.period import LONGEST
from caches.domain.launches.sketch import Sketch, bucket_sql
from caches.domain.launches.words import TRIAL_NAMES, TRIAL_PREFIX
from caches.models import Launch, LaunchCount, LaunchHour
from caches.selectors.launches.lists import TOLD_APART
from controlplane.clusters.models import Cluster, ClusterType
from controlplane.locks import transaction_lock

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
CELL = TOLD_APART["Endpoint"]
# Where an hour of several thousand launches takes its time is in one statement, so that a batch may hold a day's hours.
BATCH = 200
# The longest period that is shown, and the one before it.
KEPT = 2 * LONGEST
PURGED = 5000  # at once
Key = tuple[bool, tuple[str, ...]]  # whether trials provoked them, and the cell


class Tally:
    """What is counted of the launches of one cell."""

    def __init__(self) -> None:
        self.launches = self.ready = self.ended = 0
        self.reasons: Counter[str] = Counter()
        self.sketch = Sketch()
        self.buckets = self.sketch.buckets


Tallies = defaultdict[tuple[datetime, str, Key], Tally]  # by the hour, LaunchCount.by and the cell


def hours_count(*, limit: int = BATCH) -> int:
    """Count the hours that changed, and the days that are over and whose hours did. Returns how many hours.

    The latest first: they are looked at, and thousands may wait after an update."""
    dirty = list(LaunchHour.objects.filter(step="Hour").order_by("-start", "dirty_at")[:limit])
    by_day: dict[tuple[UUID, datetime], list[LaunchHour]] = defaultdict(list)
    for row in dirty:
        by_day[row.cluster_id, day_of(row.start)].append(row)
    for cluster_id, day in sorted(by_day):
        _hours_count(cluster_id, day, by_day[cluster_id, day])
    days = LaunchHour.objects.filter(step="Day", start__lte=timezone.now() - DAY).order_by("dirty_at")
    for row in days[:limit]:
        _day_count(row)
    return len(dirty)


def counts_purge(*, now: datetime) -> int:
    """Delete counts whose time is over (KEPT). Returns how many, of a batch at most."""
    old = LaunchCount.objects.filter(by__in=TOLD_APART, step__in=("Hour", "Day"), start__lte=now - KEPT - DAY)
    keys = list(old.order_by().values_list("pk", flat=True)[:PURGED])
    LaunchCount.objects.filter(pk__in=keys).delete()
    return len(keys)


def day_of(moment: datetime) -> datetime:
    """The day (UTC) that ``moment`` lies in."""
    return moment.replace(hour=0, minute=0, second=0, microsecond=0)


@transaction.atomic
def _hours_count(cluster_id: UUID, day: datetime, marks: Sequence[LaunchHour]) -> None:
    """Hours of one day, counted from one snapshot; a mark goes unless something changed since it was read."""
    _lock(cluster_id, day)
    starts = [mark.start for mark in marks]
    tallies: Tallies = defaultdict(Tally)
    cells: dict[tuple[Any, ...], list[Tally]] = {}
    for start, trial, *cell, state, reason, bucket, count in _grouped(cluster_id, starts):
        alike = cells.get(key := (start, trial, *cell))
        if alike is None:  # told apart once for each cell: a busy hour has many rows of each
            alike = cells[key] = [
                tallies[start, by, (trial, _told_apart(cell, names))] for by, names in TOLD_APART.items()
            ]
        ready, ended = count if state == "Ready" else 0, count if state == "Ended" else 0
        for tally in alike:
            tally.launches += count
            tally.ready += ready
            tally.ended += ended
            if reason:
                tally.reasons[reason] += count
            if bucket is not None:
                tally.buckets[bucket] = tally.buckets.get(bucket, 0) + count
    _replace(cluster_id, "Hour", starts, tallies)
    now = timezone.now()
    LaunchHour.objects.bulk_create(
        [LaunchHour(cluster_id=cluster_id, step="Day", start=day, dirty_at=now)],
        update_conflicts=True, unique_fields=["cluster", "step", "start"], update_fields=["dirty_at"],
    )  # fmt: skip
    for mark in marks:
        LaunchHour.objects.filter(pk=mark.pk, dirty_at=mark.dirty_at).delete()


def _told_apart(cell: Sequence[str], names: Collection[str]) -> tuple[str, ...]:
    """``cell`` with "" for every column that is not told apart."""
    return tuple(value if name in names else "" for name, value in zip(CELL, cell, strict=True))


def _grouped(cluster_id: UUID, starts: Sequence[datetime]) -> Iterable[Any]:
    """(hour, of trials, cell, state, reason, bucket, how many) of the launches of these hours."""
    with connection.cursor() as cursor:
        cursor.execute(_GROUPED, [cluster_id, cluster_id, min(starts), max(starts) + HOUR, list(starts)])
        yield from cursor.fetchall()


@transaction.atomic
def _day_count(mark: LaunchHour) -> None:
    """A day that is over, from its hours."""
    _lock(mark.cluster_id, mark.start)
    tallies: Tallies = defaultdict(Tally)
    hours = LaunchCount.objects.filter(
        cluster_id=mark.cluster_id, step="Hour", start__gte=mark.start, start__lt=mark.start + DAY
    )
    columns = ("by", "trial", *CELL, "launches", "ready", "ended", "reasons", "sketch")
    for by, trial, *cell, launches, ready, ended, reasons, sketch in hours.order_by().values_list(*columns).iterator():
        tally = tallies[mark.start, by, (trial, tuple(cell))]
        tally.launches += launches
        tally.ready += ready
        tally.ended += ended
        tally.reasons.update(reasons)
        tally.sketch.merge_stored(sketch)
    _replace(mark.cluster_id, "Day", [mark.start], tallies)
    LaunchHour.objects.filter(pk=mark.pk, dirty_at=mark.dirty_at).delete()


def _replace(cluster_id: UUID, step: str, starts: Sequence[datetime], tallies: Tallies) -> None:
    LaunchCount.objects.filter(by__in=TOLD_APART, step=step, start__in=starts, cluster_id=cluster_id).delete()
    with connection.cursor() as cursor, cursor.copy(_COPY) as copy:
        for (start, by, (trial, cell)), tally in sorted(tallies.items(), key=lambda item: item[0]):
            counts = (tally.launches, tally.ready, tally.ended, json.dumps(tally.reasons), tally.sketch.to_bytes())
            copy.write_row((cluster_id, step, by, start, trial, *cell, *counts))


def _lock(cluster_id: UUID, day: datetime) -> None:
    """One at a time for each day: a day's counts are read from its hours' counts."""
    transaction_lock(f"launch-counts {cluster_id} {day.isoformat()}")


_COUNTED = ("cluster_id", "step", "by", "start", "trial", *CELL, "launches", "ready", "ended", "reasons", "sketch")
_COPY = f"COPY {LaunchCount._meta.db_table} ({', '.join(_COUNTED)}) FROM STDIN"
_GROUPED = f"""
    SELECT date_trunc('hour', began_at, 'UTC') AS hour,
           starts_with(endpoint_name, '{TRIAL_PREFIX}') AND endpoint_name ~ '{TRIAL_NAMES}'
           AND (SELECT type = '{ClusterType.LOCAL}' FROM {Cluster._meta.db_table} WHERE id = %s) AS trial,
           {", ".join(CELL)}, state, miss_reason,
           {bucket_sql("ready_seconds")} AS bucket, count(*)
      FROM {Launch._meta.db_table}
     WHERE cluster_id = %s AND began_at >= %s AND began_at < %s AND date_trunc('hour', began_at, 'UTC') = ANY(%s)
     GROUP BY hour, trial, {", ".join(CELL)}, state, miss_reason, bucket
"""
