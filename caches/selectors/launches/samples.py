"""Launches of a selection for statistics that counts cannot give: all of them, or as many as are enough, by chance.

A launch's id is a digest of its names, so those below a bound are a random part of any selection, and always the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db.models import QuerySet

from caches.domain.launches.attribution import Point
from caches.domain.launches.comparison import Sample
from caches.domain.launches.words import Cached
from caches.models import Launch
from caches.selectors.launches.lists import Selection, launch_rows
from caches.selectors.launches.totals import totals
from caches.selectors.nodes import Targets

MOST = 2000  # beyond it an interval gets no narrower that anybody would notice
_IDS = 1 << 128
# What point_of() takes.
COLUMNS = ("began_at", "ready_seconds", "phase_seconds", "unknown_seconds", "weights")


@dataclass(frozen=True, slots=True)
class Drawn:
    """``launches`` of the selection, ``ended`` of them never became ready; ``points`` are of all ``ready`` ones, or of
    a random part of those, in the order of time."""

    launches: int
    ready: int
    ended: int
    points: tuple[Point, ...]

    @property
    def samples(self) -> list[Sample]:
        return [one.sample for one in self.points]

    @property
    def partial(self) -> bool:
        return len(self.points) < self.ready


def drawn(selection: Selection, *, targets: Targets = None, most: int = MOST) -> Drawn:
    """What the selection holds, and at most about ``most`` of its ready launches."""
    found = totals(selection, targets)
    ready = launch_rows(selection, targets).filter(ready_seconds__isnull=False)
    listed = points(ready, found.ready, most)
    return Drawn(found.launches, max(found.ready, len(listed)), found.ended, listed)


def points(ready: QuerySet[Launch], count: int, most: int) -> tuple[Point, ...]:
    """``ready`` launches, of which there are ``count``, or about ``most`` of them, in the order of time."""
    found = (point_of(*row) for row in part_of(ready, count, most).values_list(*COLUMNS))
    return tuple(sorted(found, key=time_of))


def time_of(one: Point) -> tuple[datetime, float]:
    """What points are in the order of."""
    return one.at, one.sample.ready_seconds


def part_of(rows: QuerySet[Launch], count: int, most: int) -> QuerySet[Launch]:
    """All of ``count`` rows, or about ``most`` of them, in no order."""
    bound = bound_of(count, most)
    return rows.order_by().filter(pk__lt=bound) if bound is not None else rows.order_by()


def bound_of(count: int, most: int) -> UUID | None:
    """Below which ids about ``most`` of ``count`` launches are; None where all are wanted."""
    return UUID(int=_IDS * most // count) if count > most else None


def point_of(
    began_at: datetime, ready: float | None, phases: Iterable[float | None], unknown: float | None, weights: str
) -> Point:
    """One launch from its columns."""
    missed = None if weights == Cached.UNKNOWN else weights != Cached.HIT
    return Point(began_at, Sample(ready or 0.0, tuple(phases), unknown), missed)
