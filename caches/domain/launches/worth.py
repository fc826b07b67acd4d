"""Whether keeping a model's weights on nodes was worth it: its launches with and without, and what it cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from caches.domain.launches.attribution import Point
from caches.domain.launches.comparison import SEED
from caches.domain.launches.resampling import ENOUGH, Difference, Verdict, difference, share_interval
from caches.domain.launches.sketch import exact_quantile
from caches.domain.launches.words import Phase


class Basis(StrEnum):
    """What the launches without a cache are."""

    BEFORE = "Before"  # those before the first pin
    MISSES = "Misses"  # those that did not find their weights although they were to be there
    PHASES = "Phases"  # nobody pinned it: those of now, of which a cache would save the fetch
    NONE = "None"


class Worth(StrEnum):
    YES = "Yes"
    NOT_YET = "NotYet"  # each hit saves time, but fewer launches hit than the copies took time to make
    NO = "No"  # hits are no faster
    EXPECTED = "Expected"  # not cached: what it would save
    UNKNOWN = "Unknown"  # not enough launches to say


@dataclass(frozen=True, slots=True)
class Cost:
    """``held_bytes`` on ``copies`` nodes now; ``moved_bytes`` in ``moved_seconds`` of transfers within the period."""

    copies: int = 0
    held_bytes: int = 0
    moved_bytes: int = 0
    moved_seconds: float = 0.0
    transfers: int = 0


@dataclass(frozen=True, slots=True)
class Judged:
    """One model version. ``with_cache`` are all launches since it was pinned, misses and new nodes among them;
    ``without`` those that ``basis`` says. ``saving`` is without less with: positive is what caching saves.

    ``hit_saving_seconds`` is by how much the median hit (``hit_seconds``) is faster than the median launch without;
    ``saved_seconds`` that, for all ``hits``. ``break_even`` is how many hits pay for one copy: its transfer, in seconds
    saved.
    """

    basis: Basis
    worth: Worth
    with_cache: tuple[float, ...]
    without: tuple[float, ...]
    hits: int
    known: int
    hit_share: tuple[float, float] | None
    saving: Difference
    p95_saving: Difference
    hit_seconds: float | None = None
    hit_saving_seconds: float | None = None
    saved_seconds: float | None = None
    break_even: int | None = None
    fetch_seconds: float | None = None


def judge(points: Sequence[Point], *, pinned_at: datetime | None, cost: Cost, seed: int = SEED) -> Judged:
    """``points`` are the version's ready launches of the period; ``pinned_at`` when it was first pinned, None never."""
    before = [one for one in points if pinned_at is None or one.at < pinned_at]
    after = [one for one in points if pinned_at is not None and one.at >= pinned_at]
    basis, without = _without(before, after, pinned_at)
    hits = [one for one in after if one.missed is False]
    known = sum(one.missed is not None for one in after)
    with_cache = _seconds(after)
    saving = difference(with_cache, without, 0.5, seed=seed)
    hit_seconds = exact_quantile(_seconds(hits), 0.5)
    hit_saving = _less(saving.second, hit_seconds)
    fetch = exact_quantile(_fetched(before if pinned_at is None else [*before, *_missed(after)]), 0.5)
    break_even = _break_even(cost, hit_saving if pinned_at is not None else fetch)
    return Judged(
        basis=basis,
        worth=_worth(basis, _seconds(hits), without, len(hits), cost, break_even, seed),
        with_cache=tuple(with_cache),
        without=tuple(without),
        hits=len(hits),
        known=known,
        hit_share=share_interval(len(hits), known),
        saving=saving,
        p95_saving=difference(with_cache, without, 0.95, seed=seed + 1),
        hit_seconds=hit_seconds,
        hit_saving_seconds=hit_saving,
        saved_seconds=hit_saving * len(hits) if hit_saving is not None else None,
        break_even=break_even,
        fetch_seconds=fetch,
    )


def _without(before: Sequence[Point], after: Sequence[Point], pinned_at: datetime | None) -> tuple[Basis, list[float]]:
    missed = _missed(after)
    if pinned_at is None:
        return (Basis.PHASES if before else Basis.NONE), _seconds(before)
    # Those before it are what it changed; where they are few, those that it did not help tell more.
    if len(before) >= ENOUGH or len(before) >= len(missed) > 0 or (before and not missed):
        return Basis.BEFORE, _seconds(before)
    return (Basis.MISSES if missed else Basis.NONE), _seconds(missed)


def _worth(
    basis: Basis,
    hits: Sequence[float],
    without: Sequence[float],
    count: int,
    cost: Cost,
    break_even: int | None,
    seed: int,
) -> Worth:
    if basis is Basis.PHASES:
        return Worth.EXPECTED
    verdict = difference(hits, without, 0.5, seed=seed).verdict
    if verdict is Verdict.NOT_ENOUGH:
        return Worth.UNKNOWN
    if verdict is not Verdict.SLOWER:  # without a cache they are not
        return Worth.NO
    return Worth.NOT_YET if break_even is not None and count < break_even * cost.transfers else Worth.YES


def _break_even(cost: Cost, saving: float | None) -> int | None:
    """Hits that pay for the transfer of one copy; None where nothing is saved, or nothing was measured of transfers."""
    if not saving or saving <= 0 or not cost.transfers:
        return None
    return max(1, math.ceil(cost.moved_seconds / cost.transfers / saving))


def _missed(points: Sequence[Point]) -> list[Point]:
    return [one for one in points if one.missed]


def _seconds(points: Sequence[Point]) -> list[float]:
    return [one.sample.ready_seconds for one in points]


def _fetched(points: Sequence[Point]) -> list[float]:
    """What the fetch took those that had to fetch, where that was measured."""
    measured = (one.sample.phase(Phase.WEIGHTS_FETCH) for one in points if one.missed is not False)
    return [seconds for seconds in measured if seconds is not None]


def _less(one: float | None, other: float | None) -> float | None:
    return one - other if one is not None and other is not None else None
