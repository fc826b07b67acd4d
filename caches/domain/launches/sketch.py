"""Quantiles of durations that can be merged: counts in buckets that grow by a fixed ratio.

Counts are exact. A quantile is the nearest-rank sample, read to within ACCURACY of its value (tests hold it to that);
seconds below SMALLEST count as zero, which is within SMALLEST of them.
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

ACCURACY = 0.01
SMALLEST = 0.001
_RATIO = (1 + ACCURACY) / (1 - ACCURACY)
_LOG_RATIO = math.log(_RATIO)
_ZERO = -1_000_000  # below every bucket that a duration of SMALLEST or more can be in
_STORED_ZERO = -32768  # the same in the two bytes that a bucket is stored in


@dataclass(slots=True)
class Sketch:
    """Durations in seconds, zero or more."""

    buckets: Counter[int] = field(default_factory=Counter)

    def add(self, seconds: float, times: int = 1) -> None:
        """ValueError for what is no duration."""
        self.buckets[_bucket(seconds)] += times

    def merge(self, other: Sketch) -> None:
        """Take in another one, as if its durations had been added here."""
        self.buckets.update(other.buckets)

    def merge_stored(self, *stored: bytes | memoryview) -> None:
        """Take in what to_bytes() made, any number of times, without making sketches of it first."""
        buckets = self.buckets
        known = buckets.get
        for data in stored:
            for bucket, count in stored_counts(data):
                buckets[bucket] = known(bucket, 0) + count

    @property
    def count(self) -> int:
        return self.buckets.total()

    def quantile(self, q: float) -> float | None:
        """The nearest-rank quantile, 0 < q ≤ 1; None of nothing."""
        return self.quantiles(q)[0]

    def quantiles(self, *qs: float) -> list[float | None]:
        """Several at once, each as quantile() gives it."""
        ordered = sorted(self.buckets.items())
        total = self.count
        return [_at(ordered, nearest_rank(q, total)) if total else None for q in qs]

    def to_bytes(self) -> bytes:
        """Six bytes for each bucket: first all numbers, then all counts, little-endian; from_bytes reads it."""
        buckets = sorted(self.buckets.items())
        numbers = [_STORED_ZERO if bucket == _ZERO else bucket for bucket, _ in buckets]
        return struct.pack(f"<{len(buckets)}h{len(buckets)}I", *numbers, *(count for _, count in buckets))

    @classmethod
    def from_bytes(cls, stored: bytes | memoryview) -> Sketch:
        return cls(Counter(dict(stored_counts(stored))))

    @classmethod
    def of(cls, values: Iterable[float]) -> Sketch:
        made = cls()
        for value in values:
            made.add(value)
        return made

    def ranges(self) -> list[tuple[float, float, int]]:
        """(from, to, count) of every bucket in order, for a histogram; seconds."""
        return [(*range_of(bucket), count) for bucket, count in sorted(self.buckets.items())]


def bucket_sql(column: str) -> str:
    """The bucket of a column of seconds as add() chooses it, for a statement that groups by it; null of null."""
    return f"CASE WHEN {column} < {SMALLEST} THEN {_ZERO} ELSE ceil(ln({column}) / {_LOG_RATIO!r}::float8)::int END"


def range_of(bucket: int) -> tuple[float, float]:
    """(from, to) of a bucket, seconds."""
    return (0.0, SMALLEST) if bucket == _ZERO else (_RATIO ** (bucket - 1), _RATIO**bucket)


def stored_counts(data: bytes | memoryview) -> Iterable[tuple[int, int]]:
    """(bucket, count) of what to_bytes() made."""
    size = len(data) // 6
    values = struct.unpack(f"<{size}h{size}I", data)
    if size and values[0] == _STORED_ZERO:
        values = (_ZERO, *values[1:])
    return zip(values[:size], values[size:], strict=True)


def nearest_rank(q: float, total: int) -> int:
    """Which of ``total`` sorted samples, from 1, the quantile is."""
    if not 0 < q <= 1:
        raise ValueError(f"{q} is no quantile")
    return max(1, math.ceil(q * total - 1e-9))


def exact_quantile(values: Iterable[float], q: float) -> float | None:
    """The nearest-rank quantile of the values themselves; None of nothing."""
    ordered = sorted(values)
    return ordered[nearest_rank(q, len(ordered)) - 1] if ordered else None


def _bucket(seconds: float) -> int:
    if not (math.isfinite(seconds) and seconds >= 0):
        raise ValueError(f"{seconds} is no duration")
    return math.ceil(math.log(seconds) / _LOG_RATIO) if seconds >= SMALLEST else _ZERO


def _at(ordered: list[tuple[int, int]], rank: int) -> float:
    """The value that stands for the bucket with the ``rank``-th sample: no further than ACCURACY from either end."""
    passed = 0
    for bucket, count in ordered:
        passed += count
        if passed >= rank:
            return 0.0 if bucket == _ZERO else 2 * _RATIO**bucket / (_RATIO + 1)
    raise ValueError(f"there is no sample {rank} of {passed}")
