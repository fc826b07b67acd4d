"""Quantiles of durations in little memory, mergeable over routers and windows: counts in buckets of a fixed ratio.

Counts are exact. A quantile is the nearest-rank sample, read to within ACCURACY of its value; below SMALLEST (a
microsecond, as decisions take tens of them) everything is one bucket, above LARGEST everything is another.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from routing.domain.tallies import Tally

ACCURACY = 0.01
SMALLEST, LARGEST = 1e-6, 1e5  # seconds
MOST = 2**53 - 1  # of one bucket; more stays that many, so that a sum can always be read back
_RATIO = (1 + ACCURACY) / (1 - ACCURACY)
_PER_LOG = 1 / math.log(_RATIO)
_LOW, _HIGH = math.floor(math.log(SMALLEST) * _PER_LOG), math.ceil(math.log(LARGEST) * _PER_LOG)


class Sketch:
    """Durations in seconds. What is no duration (negative, not a number) is counted as the smallest."""

    __slots__ = ("buckets",)

    def __init__(self) -> None:
        self.buckets: Tally[int] = Tally()

    def add(self, seconds: float, times: int = 1) -> None:
        if SMALLEST < seconds < LARGEST:  # nearly always; as bucket_of
            self.buckets[math.ceil(math.log(seconds) * _PER_LOG)] += times
        else:
            self.buckets[bucket_of(seconds)] += times

    def merge(self, other: Sketch) -> None:
        """Take in another one, as if its durations had been added here."""
        for bucket, count in other.buckets.items():
            self.buckets[bucket] = min(self.buckets[bucket] + count, MOST)

    @property
    def count(self) -> int:
        return self.buckets.total()

    def quantile(self, part: float) -> float | None:
        """``part`` from 0 to 1; None of nothing."""
        rank = max(1, math.ceil(part * self.count - 1e-9))
        for bucket, count in sorted(self.buckets.items()):
            rank -= count
            if rank <= 0:
                return _middle(bucket)
        return None

    def to_json(self) -> dict[str, int]:
        return {str(bucket): count for bucket, count in sorted(self.buckets.items())}

    @classmethod
    def from_json(cls, stored: object) -> Sketch:
        """Raises ValueError or TypeError for what to_json() never made."""
        made = cls()
        for bucket, count in _items(stored):
            number = int(bucket)
            if str(number) != bucket or not _LOW <= number <= _HIGH or type(count) is not int or not 0 <= count <= MOST:
                raise ValueError("no bucket of a sketch")
            made.buckets[number] = count
        return made


def bucket_of(seconds: float) -> int:
    if not seconds > SMALLEST:
        return _LOW
    return min(_HIGH, math.ceil(math.log(seconds) * _PER_LOG)) if seconds < LARGEST else _HIGH


def _middle(bucket: int) -> float:
    """The value from which no other of the bucket is further than ACCURACY."""
    return 0.0 if bucket == _LOW else 2 * _RATIO**bucket / (1 + _RATIO)


def _items(stored: object) -> Any:
    if not isinstance(stored, Mapping):
        raise TypeError("a sketch is an object")
    return stored.items()
