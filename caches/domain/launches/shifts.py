"""Where a sequence of launches begins to take longer or shorter: steps and drifts of their durations, and nothing else.

A step must show in the share of launches above some level of all of them, hold for MOST_CERTAIN deviations, and move
the p95 or the median by enough to matter. One launch that took very long is none of that, however long it took.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from caches.domain.launches.resampling import ENOUGH
from caches.domain.launches.sketch import exact_quantile, nearest_rank

# The largest of some hundred deviations that look at the same launches: chance reaches 3 in every tenth series.
CERTAIN = 4.0
# What people would call a change: a fifth of what it was, and a second at least.
RATIO, SECONDS = 1.2, 1.0
_LEVELS = (0.5, 0.75, 0.9, 0.95)
_MOST = 8  # of one sequence: who finds more has found that the class is unsteady
_TREND = 3.0


class Shift(StrEnum):
    STEP = "Step"
    DRIFT = "Drift"


@dataclass(frozen=True, slots=True)
class Break:
    """The launches from index ``at`` on, compared with those from ``since`` before it until before ``until``.

    A drift goes on from ``begins`` until ``at``; a step has both at the same index.
    """

    shift: Shift
    since: int
    begins: int
    at: int
    until: int


def breaks(seconds: Sequence[float]) -> list[Break]:
    """Of durations in the order of their times; at least ENOUGH launches lie on either side of each."""
    splits = sorted(_splits(seconds, 0, len(seconds)))[:_MOST]
    edges = [0, *splits, len(seconds)]
    found: list[Break] = []
    for run in _runs(seconds, edges):
        if _drifts(seconds, edges, run):
            first, last = run[0], run[-1]
            found.append(Break(Shift.DRIFT, edges[first - 1], edges[first], edges[last], edges[last + 1]))
        else:
            found += [Break(Shift.STEP, edges[one - 1], edges[one], edges[one], edges[one + 1]) for one in run]
    return found


def matters(before: float, after: float) -> bool:
    """Whether people would call it a change."""
    low, high = sorted((before, after))
    return high - low >= SECONDS and high >= RATIO * low


def _splits(seconds: Sequence[float], start: int, end: int) -> list[int]:
    """Every index at which the launches of ``start`` until ``end`` change, each part looked at again."""
    at = _best(seconds[start:end])
    if at is None:
        return []
    return [*_splits(seconds, start, start + at), start + at, *_splits(seconds, start + at, end)]


def _best(seconds: Sequence[float]) -> int | None:
    count = len(seconds)
    best, where = 0.0, None
    if count < 2 * ENOUGH:
        return None
    ordered = sorted(seconds)
    for level in sorted({ordered[nearest_rank(one, count) - 1] for one in _LEVELS}):
        # Those at the level itself count half: where many took exactly as long, neither half is all of them.
        over = [1.0 if one > level else 0.5 if one == level else 0.0 for one in seconds]
        total, left = sum(over), 0.0
        spread = sum(one * one for one in over) / count - (total / count) ** 2
        for index, one in enumerate(over[:-1], start=1):
            left += one
            if ENOUGH <= index <= count - ENOUGH and spread > 0:
                apart = abs(left / index - (total - left) / (count - index))
                deviation = apart / math.sqrt(spread * (1 / index + 1 / (count - index)))
                if deviation > best:
                    best, where = deviation, index
    return where if where is not None and best >= CERTAIN and _moved(seconds[:where], seconds[where:]) else None


def _moved(before: Sequence[float], after: Sequence[float]) -> bool:
    pairs = ((exact_quantile(before, one), exact_quantile(after, one)) for one in (0.5, 0.95))
    return any(first is not None and second is not None and matters(first, second) for first, second in pairs)


def _runs(seconds: Sequence[float], edges: Sequence[int]) -> list[list[int]]:
    """Positions in ``edges`` of splits that follow each other in the same direction."""
    middles = [exact_quantile(seconds[one:two], 0.5) or 0.0 for one, two in pairwise(edges)]
    tails = [exact_quantile(seconds[one:two], 0.95) or 0.0 for one, two in pairwise(edges)]
    runs: list[list[int]] = []
    was: bool | None = None
    for position in range(1, len(edges) - 1):
        up = (middles[position] - middles[position - 1]) + (tails[position] - tails[position - 1]) > 0
        if up is was:
            runs[-1].append(position)
        else:
            runs.append([position])
        was = up
    return runs


def _drifts(seconds: Sequence[float], edges: Sequence[int], run: Sequence[int]) -> bool:
    """Whether the launches between the splits go the same way too: steps have flat treads, a slope has none."""
    going, spread = 0.0, 0.0
    for position in range(run[0] - 1, run[-1] + 1):
        part = seconds[edges[position] : edges[position + 1]]
        score, variance = _trend(part)
        going, spread = going + score, spread + variance
    before = exact_quantile(seconds[edges[run[0] - 1] : edges[run[0]]], 0.5) or 0.0
    after = exact_quantile(seconds[edges[run[-1]] : edges[run[-1] + 1]], 0.5) or 0.0
    way = 1 if after > before else -1
    return spread > 0 and way * going / math.sqrt(spread) > _TREND


def _trend(part: Sequence[float]) -> tuple[float, float]:
    """How ranks go with places (0: not at all), and the variance of that where there is no trend."""
    count = len(part)
    if count < 3:
        return 0.0, 0.0
    ranks = _ranks(part)
    middle = (count - 1) / 2
    score = sum((rank - middle) * (place - middle) for place, rank in enumerate(ranks))
    squares = sum((place - middle) ** 2 for place in range(count))
    return score, sum((rank - middle) ** 2 for rank in ranks) * squares / (count - 1)


def _ranks(part: Sequence[float]) -> list[float]:
    """From 0; equal values share the middle of their ranks."""
    order = sorted(range(len(part)), key=lambda place: part[place])
    ranks = [0.0] * len(part)
    start = 0
    while start < len(order):
        end = start
        while end + 1 < len(order) and part[order[end + 1]] == part[order[start]]:
            end += 1
        for position in range(start, end + 1):
            ranks[order[position]] = (start + end) / 2
        start = end + 1
    return ranks
