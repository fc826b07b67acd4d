"""How sure a difference between two groups of launches is: intervals by bootstrap, seeded, without resampling anything.

The k-th smallest of n values that are drawn again from n sorted ones is the value at rank ceil(n·U), where U is the
k-th smallest of n uniform numbers: one draw from Beta(k, n + 1 - k). So a replicate costs one random number and gives
exactly what a resample of all n would.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random

from caches.domain.launches.sketch import exact_quantile, nearest_rank

REPLICATES = 1000
COVERAGE = 0.95
# Below this a percentile would be one launch's luck, and so would be an interval around it.
ENOUGH = 20


class Verdict(StrEnum):
    """NOT_ENOUGH: one side has too few launches to say anything. SAME: the interval holds zero."""

    NOT_ENOUGH = "NotEnoughLaunches"
    SAME = "NoDifference"
    FASTER = "Faster"
    SLOWER = "Slower"


@dataclass(frozen=True, slots=True)
class Difference:
    """One quantile of both sides in seconds, and ``second - first`` with its interval; None where there are too few."""

    first: float | None
    second: float | None
    change: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def verdict(self) -> Verdict:
        """What the second side is, compared with the first."""
        if self.low is None or self.high is None:
            return Verdict.NOT_ENOUGH
        if self.low > 0:
            return Verdict.SLOWER
        return Verdict.FASTER if self.high < 0 else Verdict.SAME


def difference(first: Sequence[float], second: Sequence[float], q: float, *, seed: int) -> Difference:
    """Of the ``q``-quantile. The same values and seed give the same interval, in whatever order they come."""
    one, two = sorted(first), sorted(second)
    before, after = exact_quantile(one, q), exact_quantile(two, q)
    if before is None or after is None or len(one) < ENOUGH or len(two) < ENOUGH:
        return Difference(before, after)
    random = Random(seed)
    left, right = _replicates(one, q, random), _replicates(two, q, random)
    low, high = _interval(sorted(b - a for a, b in zip(left, right, strict=True)))
    return Difference(before, after, after - before, low, high)


def share_interval(hits: int, of: int) -> tuple[float, float] | None:
    """Wilson's interval of a share; None of nothing."""
    if not 0 <= hits <= of:
        raise ValueError(f"{hits} of {of} is no share")
    if of == 0:
        return None
    z = 1.959964
    share, weight = hits / of, 1 + z * z / of
    middle = (share + z * z / (2 * of)) / weight
    half = z / weight * math.sqrt(share * (1 - share) / of + z * z / (4 * of * of))
    return max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half))


def _replicates(ordered: Sequence[float], q: float, random: Random) -> list[float]:
    count = len(ordered)
    rank = nearest_rank(q, count)
    draws = (random.betavariate(rank, count + 1 - rank) for _ in range(REPLICATES))
    return [ordered[min(count, max(1, math.ceil(count * draw))) - 1] for draw in draws]


def _interval(replicates: Sequence[float]) -> tuple[float, float]:
    tail = (1 - COVERAGE) / 2
    low = replicates[nearest_rank(tail, len(replicates)) - 1]
    return low, replicates[nearest_rank(1 - tail, len(replicates)) - 1]
