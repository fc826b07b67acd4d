"""What launches took, by class and hit: percentiles with their counts, dots where there are few, and never a mean."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from caches.domain.launch_sketch import ACCURACY, Sketch
from caches.domain.launch_words import Cached, EventClass
from caches.models import Launch
from caches.selectors.launches import Selection, count_rows, launch_rows
from caches.selectors.nodes import Targets

# Below this a percentile would be one launch's luck: the launches themselves are shown.
ENOUGH = 20
QUANTILES = (0.5, 0.95, 0.99)
_MISSED = (Cached.MISS.value, Cached.PARTIAL.value)


@dataclass(slots=True)
class Part:
    """Launches that are alike. ``quantiles`` are p50, p95 and p99 of the seconds until ready, None of too few;
    ``dots`` the seconds of each where there are too few."""

    launches: int = 0
    ready: int = 0
    ended: int = 0
    sketch: Sketch = field(default_factory=Sketch)
    dots: list[tuple[float, UUID]] = field(default_factory=list)

    @property
    def enough(self) -> bool:
        return self.sketch.count >= ENOUGH

    @property
    def quantiles(self) -> list[float | None]:
        return self.sketch.quantiles(*QUANTILES) if self.enough else [None] * len(QUANTILES)

    def add(self, launches: int, ready: int, ended: int, sketch: Sketch) -> None:
        """Count in launches that are alike."""
        self.launches += launches
        self.ready += ready
        self.ended += ended
        self.sketch.merge(sketch)


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
    found: dict[EventClass, ClassStats] = {}
    rows = count_rows(selection, targets).order_by()
    columns = ("event_class", "weights", "launches", "ready", "ended", "sketch")
    for name, label, launches, ready, ended, stored in rows.values_list(*columns):
        kind, sketch = EventClass(name), Sketch.from_json(stored)
        stats = found.setdefault(kind, ClassStats(kind, Part(), defaultdict(Part)))
        stats.whole.add(launches, ready, ended, sketch)
        stats.by_weights[Cached(label)].add(launches, ready, ended, sketch)
    _add_dots([stats for stats in found.values() if _has_few(stats)], selection, targets)
    return [found[kind] for kind in EventClass if kind in found]


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
    """How many launches of each step took how long; only cells that hold some."""
    cells: dict[tuple[datetime, float], int] = defaultdict(int)
    for start, sketch in count_rows(selection, targets).values_list("start", "sketch"):
        for low, high, count in Sketch.from_json(sketch).ranges():
            middle = 2 * low * high / (low + high) if low else 0.0
            cells[(start, max(edge for edge in EDGES if edge <= middle))] += count
    return [HeatCell(start, low, count) for (start, low), count in sorted(cells.items())]
