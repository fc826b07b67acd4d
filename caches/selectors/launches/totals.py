"""How many launches a selection of any moments holds: whole hours as they are counted, the rest from launches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import reduce
from operator import or_

from django.db.models import Count, Q, Sum
from django.utils import timezone

from caches.domain.launches.period import HOUR, day_of, hour_of
from caches.models import LaunchHour
from caches.selectors.launches.lists import Selection, launch_rows, rows_of_parts
from caches.selectors.nodes import Targets

# Launches of hours that are older may be gone, although they are still counted.
_THERE = timedelta(days=89)


@dataclass(frozen=True, slots=True)
class Totals:
    launches: int
    ready: int
    ended: int


def totals(selection: Selection, targets: Targets) -> Totals:
    """Exact: hours whose counts are to be made again are counted from their launches as well."""
    period = selection.period
    since = hour_of(max(period.since, timezone.now() - _THERE) + HOUR - timedelta(microseconds=1))
    until = hour_of(period.until)
    marks = list(LaunchHour.objects.filter(start__gte=day_of(since), start__lt=until).values_list("step", "start"))
    dirty = {start for step, start in marks if step == "Hour"}
    if until <= since:
        return _of_rows(selection, targets, Q())
    whole = replace(period, since=since, until=until, end=until)
    parts = whole.parts(uncounted=frozenset({*map(day_of, dirty), *(start for step, start in marks if step == "Day")}))
    counts = rows_of_parts(selection, targets, (), parts).exclude(step="Hour", start__in=dirty)
    counted = counts.aggregate(launches=Sum("launches"), became=Sum("ready"), never=Sum("ended"))
    spans = [_within(period.since, since), _within(until, period.until), *(_within(one, one + HOUR) for one in dirty)]
    rest = _of_rows(selection, targets, reduce(or_, spans))
    launches, ready, ended = (counted[name] or 0 for name in ("launches", "became", "never"))
    return Totals(launches + rest.launches, ready + rest.ready, ended + rest.ended)


def _within(since: datetime, until: datetime) -> Q:
    return Q(began_at__gte=since, began_at__lt=until)


def _of_rows(selection: Selection, targets: Targets, where: Q) -> Totals:
    found = launch_rows(selection, targets).order_by().filter(where).aggregate(
        launches=Count("pk"),
        became=Count("pk", filter=Q(ready_seconds__isnull=False)),
        never=Count("pk", filter=Q(state="Ended")),
    )  # fmt: skip
    return Totals(found["launches"], found["became"], found["never"])
