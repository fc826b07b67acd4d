"""How many launches a selection of any moments holds: whole hours as they are counted, the rest from launches."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import reduce
from operator import or_
from typing import Any

from django.db.models import Count, Q, QuerySet, Sum
from django.utils import timezone

from caches.domain.launches.period import HOUR, day_of, hour_of
from caches.models import LaunchHour
from caches.selectors.launches.lists import Selection, launch_rows, rows_of_parts
from caches.selectors.nodes import Targets

# Launches of hours that are older may be gone, although they are still counted.
_THERE = timedelta(days=89)
Cell = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Totals:
    launches: int = 0
    ready: int = 0
    ended: int = 0

    def __add__(self, other: Totals) -> Totals:
        return Totals(self.launches + other.launches, self.ready + other.ready, self.ended + other.ended)


def totals(selection: Selection, targets: Targets) -> Totals:
    """Exact: hours whose counts are to be made again are counted from their launches as well."""
    return totals_by(selection, targets, ()).get((), Totals())


def totals_by(selection: Selection, targets: Targets, told_apart: Sequence[str]) -> Mapping[Cell, Totals]:
    """The same by columns that counts and launches both have; cells that hold launches, in the order of the columns."""
    period = selection.period
    since = hour_of(max(period.since, timezone.now() - _THERE) + HOUR - timedelta(microseconds=1))
    until = hour_of(period.until)
    if until <= since:
        return _summed(_of_rows(selection, targets, told_apart, Q()))
    marks = list(LaunchHour.objects.filter(start__gte=day_of(since), start__lt=until).values_list("step", "start"))
    dirty = {start for step, start in marks if step == "Hour"}
    whole = replace(period, since=since, until=until, end=until)
    parts = whole.parts(uncounted=frozenset({*map(day_of, dirty), *(start for step, start in marks if step == "Day")}))
    counts = rows_of_parts(selection, targets, told_apart, parts).exclude(step="Hour", start__in=dirty)
    counted = _grouped(counts, told_apart, became=Sum("ready"), never=Sum("ended"), of=Sum("launches"))
    spans = [_within(period.since, since), _within(until, period.until), *(_within(*run) for run in _runs(dirty))]
    return _summed([*counted, *_of_rows(selection, targets, told_apart, reduce(or_, spans))])


def _summed(rows: Sequence[tuple[Cell, Totals]]) -> Mapping[Cell, Totals]:
    found: dict[Cell, Totals] = {}
    for cell, one in rows:
        found[cell] = found.get(cell, Totals()) + one
    return found


def _runs(hours: Collection[datetime]) -> Sequence[tuple[datetime, datetime]]:
    """(since, until) of hours that follow each other: all of a month may wait to be counted again."""
    found: list[tuple[datetime, datetime]] = []
    for hour in sorted(hours):
        if found and found[-1][1] == hour:
            found[-1] = (found[-1][0], hour + HOUR)
        else:
            found.append((hour, hour + HOUR))
    return found


def _within(since: datetime, until: datetime) -> Q:
    return Q(began_at__gte=since, began_at__lt=until)


def _of_rows(
    selection: Selection, targets: Targets, told_apart: Sequence[str], where: Q
) -> Sequence[tuple[Cell, Totals]]:
    rows = launch_rows(selection, targets).order_by().filter(where)
    became, never = Count("pk", filter=Q(state="Ready")), Count("pk", filter=Q(state="Ended"))
    return _grouped(rows, told_apart, became=became, never=never, of=Count("pk"))


def _grouped(rows: QuerySet[Any], told_apart: Sequence[str], **sums: Any) -> Sequence[tuple[Cell, Totals]]:
    found = list(rows.values(*told_apart).annotate(**sums)) if told_apart else [rows.aggregate(**sums)]
    return [
        (
            tuple(row[name] for name in told_apart),
            Totals(row["of"] or 0, row["became"] or 0, row["never"] or 0),
        )
        for row in found
    ]
