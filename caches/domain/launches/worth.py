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
from caches.domain.launches.words import PHASES, Phase

# What a copy on the node can spare.
SPARED = frozenset({Phase.WEIGHTS_FETCH, Phase.IMAGE_PULL})


class Basis(StrEnum):
    """What the launches without a cache are; those that are known as hits are none of them, whenever they were."""

    BEFORE = "Before"  # those before the first pin
    MISSES = "Misses"  # those that did not find their weights
    PHASES = "Phases"  # nobody pinned it: those of now, of which a cache would save the fetch
    NONE = "None"


class Worth(StrEnum):
    YES = "Yes"
    NOT_YET = "NotYet"  # each hit saves time, but fewer launches hit than the copies took time to make
    NO = "No"  # hits are no faster
    ELSEWHERE = "Elsewhere"  # hits are no faster, and take longer in a phase that no cache spares
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
    """One model version. ``with_cache`` are all launches since it was pinned, misses and new nodes among them, and hits
    from before; ``without`` those that ``basis`` says. ``saving`` is without less with: positive is what caching saves.

    ``hit_saving_seconds`` is by how much the median hit (``hit_seconds``) is faster than the median launch without;
    ``saved_seconds`` that, for all hits of the period that became ready. ``break_even`` is how many hits pay for one
    copy: its transfer, in seconds saved. ``since_pinned`` are ``hits`` and ``known`` of launches since then alone.
    ``elsewhere``: the phase of Worth.ELSEWHERE, and how much longer it takes
    hits (medians, seconds).
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
    since_pinned: tuple[int, int] = (0, 0)
    elsewhere: tuple[Phase, float] | None = None


def judge(
    points: Sequence[Point],
    *,
    pinned_at: datetime | None,
    cost: Cost,
    ready_hits: int | None = None,
    seed: int = SEED,
) -> Judged:
    """``points`` are the version's ready launches of the period; ``pinned_at`` when it was first pinned, None never.
    ``ready_hits``: hits among all of them, where ``points`` are a part."""
    before = [one for one in points if (pinned_at is None or one.at < pinned_at) and one.missed is not False]
    after = [one for one in points if pinned_at is not None and one.at >= pinned_at]
    hits = [one for one in points if one.missed is False]
    basis, without = _without(before, _missed(points), pinned_at)
    known = sum(one.missed is not None for one in points)
    with_cache = _seconds(
        [one for one in points if one.missed is False or (pinned_at is not None and one.at >= pinned_at)]
    )
    lengths = _seconds(without)
    saving = difference(with_cache, lengths, 0.5, seed=seed)
    hit_seconds = exact_quantile(_seconds(hits), 0.5)
    hit_saving = _less(saving.second, hit_seconds)
    fetch = exact_quantile(_fetched(before if pinned_at is None else [*before, *_missed(after)]), 0.5)
    break_even = _break_even(cost, hit_saving if pinned_at is not None else fetch)
    count = len(hits) if ready_hits is None else ready_hits
    worth = _worth(basis, _seconds(hits), lengths, count, cost, break_even, seed)
    elsewhere = _elsewhere(hits, without, seed) if worth is Worth.NO else None
    return Judged(
        basis=basis,
        worth=worth if elsewhere is None else Worth.ELSEWHERE,
        with_cache=tuple(with_cache),
        without=tuple(lengths),
        hits=len(hits),
        known=known,
        hit_share=share_interval(len(hits), known),
        saving=saving,
        p95_saving=difference(with_cache, lengths, 0.95, seed=seed + 1),
        hit_seconds=hit_seconds,
        hit_saving_seconds=hit_saving,
        saved_seconds=hit_saving * count if hit_saving is not None else None,
        break_even=break_even,
        fetch_seconds=fetch,
        since_pinned=(sum(one.missed is False for one in after), sum(one.missed is not None for one in after)),
        elsewhere=elsewhere,
    )


def _without(
    before: Sequence[Point], missed: Sequence[Point], pinned_at: datetime | None
) -> tuple[Basis, Sequence[Point]]:
    if pinned_at is None:
        return (Basis.PHASES if before else Basis.NONE), before
    # Those before it are what it changed; where they are few, those that it did not help tell more.
    if len(before) >= ENOUGH or len(before) >= len(missed) > 0 or (before and not missed):
        return Basis.BEFORE, before
    return (Basis.MISSES if missed else Basis.NONE), missed


def _elsewhere(hits: Sequence[Point], without: Sequence[Point], seed: int) -> tuple[Phase, float] | None:
    """The phase that takes hits surely longer, by the most seconds; None where there is none, or a cache spares it."""
    longer = []
    for number, phase in enumerate(PHASES[: PHASES.index(Phase.FIRST_REQUEST)], start=2):
        first, second = _lengths(hits, phase), _lengths(without, phase)
        found = difference(first, second, 0.5, seed=seed + number)
        if found.verdict is Verdict.FASTER and found.change is not None:
            longer.append((-found.change, phase))
    if not longer:
        return None
    seconds, phase = max(longer, key=lambda one: one[0])
    return None if phase in SPARED else (phase, seconds)


def _lengths(points: Sequence[Point], phase: Phase) -> list[float]:
    return [seconds for one in points if (seconds := one.sample.phase(phase)) is not None]


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
