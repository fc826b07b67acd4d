"""When the launches of a class begin to take longer: since when, which phase it is, and what was changed before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from caches.domain.launches.comparison import SEED, Sample
from caches.domain.launches.resampling import Difference, difference
from caches.domain.launches.shifts import Break, Shift, breaks, matters
from caches.domain.launches.sketch import exact_quantile
from caches.domain.launches.words import PHASES, Phase

# Changes that were made longer before than this are not shown beside a step.
LOOK_BACK = timedelta(hours=6)
MOST_CHANGES = 10
_SLOW = 0.9  # the slowest tenth is what a p95 is made of


@dataclass(frozen=True, slots=True)
class Point:
    """One ready launch. ``missed``: its node lacked weights; None where nobody measured that."""

    at: datetime
    sample: Sample
    missed: bool | None = None


@dataclass(frozen=True, slots=True)
class Share:
    """How much of the move a phase is: seconds that it grew by in the slow launches. ``phase`` None: what nobody
    measured. ``measured``: launches of both sides that say so."""

    phase: Phase | None
    before: float
    after: float
    measured: int

    @property
    def change(self) -> float:
        return self.after - self.before


@dataclass(frozen=True, slots=True)
class Move:
    """One change. It happened after ``last_before`` and by ``first_after``; ``shares`` from the largest on.

    ``missed``: (of, with) launches before and after of which it was measured.
    """

    shift: Shift
    last_before: datetime
    first_after: datetime
    counts: tuple[int, int]
    median: Difference
    p95: Difference
    shares: tuple[Share, ...]
    missed_before: tuple[int, int]
    missed_after: tuple[int, int]

    @property
    def slower(self) -> bool:
        return _change(self.p95) + _change(self.median) > 0

    @property
    def phase(self) -> Phase | None:
        """The phase that it is; None where what moved was not measured, or where nothing in particular did."""
        return self.shares[0].phase if self.shares else None

    @property
    def known(self) -> bool:
        """Whether a phase that was measured is most of it."""
        return bool(self.shares) and self.shares[0].phase is not None


@dataclass(frozen=True, slots=True)
class Change:
    """Something that somebody did: ``what``, by which equal ones are known, "" where it is like nothing else. It was
    done ``times`` in a row, ``at`` and ``key`` are of the latest."""

    at: datetime
    key: str
    what: str = ""
    times: int = 1


def moves(points: Iterable[Point], *, seed: int = SEED) -> list[Move]:
    """The changes among launches of one class, in the order of time. Too few launches have none."""
    ordered = sorted(points, key=lambda one: (one.at, one.sample.ready_seconds))
    return [_move(ordered, one, seed) for one in breaks([point.sample.ready_seconds for point in ordered])]


def earliest(move: Move) -> datetime:
    """From when on a change may have brought it about."""
    return min(move.last_before, move.first_after - LOOK_BACK)


def suspects(move: Move, changes: Iterable[Change]) -> list[Change]:
    """What may have brought it about: nothing that came after, the latest first; those between the two launches that
    it lies between are among them, however long that is. Equal neighbours are one, and push out no other."""
    before = [one for one in changes if earliest(move) <= one.at <= move.first_after]
    found: list[Change] = []
    for one in sorted(before, key=lambda one: (one.at, one.key), reverse=True):
        if found and one.what and found[-1].what == one.what:
            found[-1] = replace(found[-1], times=found[-1].times + one.times)
        else:
            found.append(one)
    return found[:MOST_CHANGES]


def _move(ordered: Sequence[Point], found: Break, seed: int) -> Move:
    before, after = ordered[found.since : found.begins], ordered[found.at : found.until]
    first, second = [_seconds(one) for one in before], [_seconds(one) for one in after]
    return Move(
        shift=found.shift,
        last_before=before[-1].at,
        first_after=ordered[found.begins].at,
        counts=(len(before), len(after)),
        median=difference(first, second, 0.5, seed=seed),
        p95=difference(first, second, 0.95, seed=seed + 1),
        shares=_shares(before, after),
        missed_before=_missed(before),
        missed_after=_missed(after),
    )


def _seconds(point: Point) -> float:
    return point.sample.ready_seconds


def _change(of: Difference) -> float:
    return of.change or 0.0


def _missed(points: Sequence[Point]) -> tuple[int, int]:
    return sum(one.missed is True for one in points), sum(one.missed is not None for one in points)


def _shares(before: Sequence[Point], after: Sequence[Point]) -> tuple[Share, ...]:
    """Phases by what they grew (or shrank) in the launches that the move is seen in, those of its direction alone."""
    level = _level(before, after)
    first, second = _slow(before, level), _slow(after, level)
    direction = 1 if _middle(second, None) > _middle(first, None) else -1
    phases: list[Phase | None] = [*PHASES[: PHASES.index(Phase.FIRST_REQUEST)], None]
    shares = [share for phase in phases if (share := _share(phase, first, second)) is not None]
    moved = [one for one in shares if direction * one.change > 0 and abs(one.change) >= 0.5]
    return tuple(sorted(moved, key=lambda one: -direction * one.change))


def _level(before: Sequence[Point], after: Sequence[Point]) -> float:
    """0 (every launch) where the median moved as people would say it, else where the slow ones begin."""
    first, second = (exact_quantile([_seconds(one) for one in side], 0.5) or 0.0 for side in (before, after))
    return 0.0 if matters(first, second) else _SLOW


def _slow(points: Sequence[Point], level: float) -> Sequence[Point]:
    ordered = sorted(points, key=_seconds)
    return ordered[int(level * len(ordered)) :]


def _share(phase: Phase | None, first: Sequence[Point], second: Sequence[Point]) -> Share | None:
    left, right = ([value for one in side if (value := _part(one, phase)) is not None] for side in (first, second))
    if not left or not right:
        return None  # measured on one side alone, it cannot be compared
    return Share(phase, _mean(left), _mean(right), len(left) + len(right))


def _part(point: Point, phase: Phase | None) -> float | None:
    return point.sample.unknown if phase is None else point.sample.phase(phase)


def _middle(points: Sequence[Point], phase: Phase | None) -> float:
    return _mean([_seconds(one) for one in points])


def _mean(values: Sequence[float]) -> float:
    """Parts of one whole add up in their means and not in their medians."""
    return sum(values) / len(values) if values else 0.0
