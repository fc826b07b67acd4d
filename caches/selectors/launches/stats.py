"""What launches took, by class and hit: percentiles with their counts, dots where there are few, and never a mean."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache, lru_cache
from typing import Any
from uuid import UUID

from django.contrib.postgres.aggregates import ArrayAgg, JSONBAgg
from django.db import connection
from django.db.models import BooleanField, ExpressionWrapper, Q, Sum
from django.db.models.expressions import RawSQL

from caches.domain.launches.period import day_of
from caches.domain.launches.sketch import ACCURACY, Sketch, range_of, stored_counts
from caches.domain.launches.words import Cached, EventClass
from caches.models import Launch
from caches.selectors.launches.lists import Selection, count_rows, launch_rows, launches_list, step_rows
from caches.selectors.nodes import Targets

# Below this a percentile would be one launch's luck: the launches themselves are shown.
ENOUGH = 20
QUANTILES = (0.5, 0.95, 0.99)
_MISSED = (Cached.MISS.value, Cached.PARTIAL.value)


@dataclass(slots=True)
class Part:
    """Launches that are alike. ``quantiles`` are p50, p95 and p99 of the seconds until ready, None of too few;
    ``dots`` the seconds of each where there are too few; ``reasons`` why how many of them missed their weights."""

    launches: int = 0
    ready: int = 0
    ended: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    sketch: Sketch = field(default_factory=Sketch)
    dots: list[tuple[float, UUID]] = field(default_factory=list)

    @property
    def enough(self) -> bool:
        return self.sketch.count >= ENOUGH

    @property
    def quantiles(self) -> list[float | None]:
        return self.sketch.quantiles(*QUANTILES) if self.enough else [None] * len(QUANTILES)

    def add(self, other: Part) -> None:
        """Count in launches that are alike."""
        self.launches += other.launches
        self.ready += other.ready
        self.ended += other.ended
        self.reasons.update(other.reasons)
        self.sketch.merge(other.sketch)


@dataclass(slots=True)
class ClassStats:
    """One event class as a whole, and by what its launches found: Hit, Partial, Miss, Unknown."""

    event_class: EventClass
    whole: Part
    by_weights: dict[Cached, Part]

    @property
    def missed(self) -> int:
        """Launches that lacked weights on their node."""
        return sum(part.launches for label, part in self.by_weights.items() if label.value in _MISSED)

    @property
    def known(self) -> int:
        """Launches of which it was measured."""
        return self.whole.launches - self.by_weights.get(Cached.UNKNOWN, Part()).launches


@dataclass(frozen=True, slots=True)
class Example:
    """A launch that stands at a quantile of its class, within the accuracy of the counts."""

    event_class: EventClass
    quantile: float
    seconds: float
    launch: Launch


def class_stats(selection: Selection, *, targets: Targets = None) -> list[ClassStats]:
    """Every class that has launches, in the order of the classes."""
    parts: dict[EventClass, dict[Cached, Part]] = defaultdict(lambda: defaultdict(Part))
    rows = count_rows(selection, targets, told_apart=("event_class", "weights"))
    # PostgreSQL hands over two rows for each class and hit, not one for each hour of them: what is over hardly changes,
    # and what was made of the same sketches before is known.
    over = ExpressionWrapper(Q(start__lt=day_of(selection.period.end)), output_field=BooleanField())
    grouped = rows.values_list("event_class", "weights").annotate(
        Sum("launches"),
        Sum("ready"),
        Sum("ended"),
        sketches=ArrayAgg("sketch", order_by=("start", "pk")),
        why=JSONBAgg("reasons", filter=~Q(reasons={})),
        over=over,
    )
    for name, label, launches, ready, ended, sketches, reasons, is_over in grouped:
        part = parts[EventClass(name)][Cached(label)]
        part.launches += launches
        part.ready += ready
        part.ended += ended
        for one in reasons or ():
            part.reasons.update(one)
        if is_over:
            part.sketch.merge(_merged(*sketches))
        else:
            part.sketch.merge_stored(*sketches)
    found = {kind: ClassStats(kind, _together(by_weights.values()), by_weights) for kind, by_weights in parts.items()}
    _add_dots([stats for stats in found.values() if _has_few(stats)], selection, targets)
    return [found[kind] for kind in EventClass if kind in found]


@lru_cache(maxsize=128)
def _merged(*stored: bytes) -> Sketch:
    """Not to be changed: whoever asks for the same again is given this one."""
    made = Sketch()
    made.merge_stored(*stored)
    return made


def _together(parts: Iterable[Part]) -> Part:
    whole = Part()
    for part in parts:
        whole.add(part)
    return whole


def _has_few(stats: ClassStats) -> bool:
    return any(0 < part.sketch.count < ENOUGH for part in (stats.whole, *stats.by_weights.values()))


def _add_dots(few: Sequence[ClassStats], selection: Selection, targets: Targets) -> None:
    for stats in few:
        rows = launch_rows(selection, targets).filter(event_class=stats.event_class, ready_seconds__isnull=False)
        for label, part in stats.by_weights.items():
            if 0 < part.sketch.count < ENOUGH:
                listed = rows.filter(weights=label).order_by("ready_seconds")
                pairs = listed.values_list("ready_seconds", "pk")[: ENOUGH - 1]
                part.dots = [(seconds, key) for seconds, key in pairs if seconds is not None]
        if not stats.whole.enough:
            stats.whole.dots = sorted(dot for part in stats.by_weights.values() for dot in part.dots)


def examples(stats: Iterable[ClassStats], selection: Selection, *, targets: Targets = None) -> list[Example]:
    """For each class with enough launches the one at its median and the one at its p95, with their phases."""
    wanted = [
        (one.event_class, quantile, seconds)
        for one in stats
        for quantile, seconds in zip((0.5, 0.95), one.whole.quantiles, strict=False)
        if seconds is not None
    ]
    keys = _keys_at([(kind, seconds) for kind, _, seconds in wanted], selection, targets) if wanted else {}
    listed = launches_list(targets=targets).select_related(None).filter(pk__in=keys.values())
    rows = {row.pk: row for row in listed} if keys else {}
    return [
        Example(kind, quantile, seconds, rows[keys[number]])
        for number, (kind, quantile, seconds) in enumerate(wanted, start=1)
        if keys.get(number) in rows
    ]


def _keys_at(wanted: Sequence[tuple[EventClass, float]], selection: Selection, targets: Targets) -> dict[int, UUID]:
    """For each class and seconds, numbered from 1, a launch that took so long, if there is one: by one statement."""
    kind, low, high = object(), object(), object()
    alike: dict[str, Any] = {
        "event_class": RawSQL("%s", (kind,)),
        "ready_seconds__range": (RawSQL("%s", (low,)), RawSQL("%s", (high,))),
    }
    rows = launch_rows(selection, targets).filter(**alike).order_by("ready_seconds", "pk").values("pk")[:1]
    # Composed once; with the values in it, so that PostgreSQL knows which index serves each.
    one, values = rows.query.sql_with_params()
    parts: list[str] = []
    given: list[Any] = []
    for number, (event_class, seconds) in enumerate(wanted, start=1):
        parts.append(f"SELECT {number}, found.* FROM ({one}) AS found")
        mine = dict(zip((kind, low, high), (event_class.value, *_around(seconds)), strict=True))
        given += [mine.get(value, value) if type(value) is object else value for value in values]
    with connection.cursor() as cursor:
        cursor.execute(" UNION ALL ".join(parts), given)
        return dict(cursor.fetchall())


def _around(seconds: float) -> tuple[float, float]:
    return seconds * (1 - 2 * ACCURACY) - 0.001, seconds * (1 + 2 * ACCURACY) + 0.001


@dataclass(frozen=True, slots=True)
class HeatCell:
    start: datetime
    low: float  # seconds, the lower edge of the row
    count: int


# Edges of the heatmap's rows, in seconds: what people tell apart when they wait.
EDGES = (0, 5, 10, 20, 30, 60, 120, 180, 300, 600, 900, 1800, 3600, 7200)


def heat(selection: Selection, *, targets: Targets = None) -> list[HeatCell]:
    """How many launches of each of the period's steps took how long; only cells that hold some."""
    steps = selection.period.steps
    cells: dict[tuple[datetime, float], int] = defaultdict(int)
    for start, sketch in step_rows(selection, targets).values_list("start", "sketch"):
        step = steps[bisect_right(steps, start) - 1]
        for bucket, count in stored_counts(sketch):
            cells[step, _edge(bucket)] += count
    return [HeatCell(start, low, count) for (start, low), count in sorted(cells.items())]


@cache
def _edge(bucket: int) -> float:
    """The row of the heatmap that a bucket's launches are in."""
    low, high = range_of(bucket)
    return EDGES[bisect_right(EDGES, 2 * low * high / (low + high) if low else 0.0) - 1]
