"""What launches took, by class and hit: percentiles with their counts, dots where there are few, and never a mean."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from caches.domain.launches.sketch import ACCURACY, Sketch
from caches.domain.launches.words import Cached, EventClass
from caches.models import Launch
from caches.selectors.launches.lists import Selection, count_rows, launch_rows, step_rows
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
    columns = ("event_class", "weights", "launches", "ready", "ended", "reasons", "sketch")
    for name, label, launches, ready, ended, reasons, sketch in rows.values_list(*columns):
        part = parts[EventClass(name)][Cached(label)]
        part.launches += launches
        part.ready += ready
        part.ended += ended
        part.reasons.update(reasons)
        part.sketch.merge_stored(sketch)
    found = {kind: ClassStats(kind, _together(by_weights.values()), by_weights) for kind, by_weights in parts.items()}
    _add_dots([stats for stats in found.values() if _has_few(stats)], selection, targets)
    return [found[kind] for kind in EventClass if kind in found]


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
    found = []
    for one in stats:
        for quantile, seconds in zip((0.5, 0.95), one.whole.quantiles, strict=False):
            launch = _at(one.event_class, seconds, selection, targets) if seconds is not None else None
            if launch is not None and seconds is not None:
                found.append(Example(one.event_class, quantile, seconds, launch))
    return found


def _at(kind: EventClass, seconds: float, selection: Selection, targets: Targets) -> Launch | None:
    low, high = seconds * (1 - 2 * ACCURACY) - 0.001, seconds * (1 + 2 * ACCURACY) + 0.001
    rows = launch_rows(selection, targets).filter(event_class=kind, ready_seconds__range=(low, high))
    return rows.order_by("ready_seconds", "pk").first()


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
    sketches: dict[datetime, Sketch] = defaultdict(Sketch)
    for start, sketch in step_rows(selection, targets).values_list("start", "sketch"):
        sketches[steps[bisect_right(steps, start) - 1]].merge_stored(sketch)
    cells: dict[tuple[datetime, float], int] = defaultdict(int)
    for start, whole in sketches.items():
        for low, high, count in whole.ranges():
            middle = 2 * low * high / (low + high) if low else 0.0
            cells[(start, EDGES[bisect_right(EDGES, middle) - 1])] += count
    return [HeatCell(start, low, count) for (start, low), count in sorted(cells.items())]
