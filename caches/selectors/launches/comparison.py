"""Any two selections of launches, side by side."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from caches.domain.launches.comparison import Comparison, Sample, compare
from caches.selectors.launches.lists import Selection
from caches.selectors.launches.samples import Drawn, drawn
from caches.selectors.nodes import Targets


@dataclass(frozen=True, slots=True)
class Compared:
    """Both sides, and what the second has more than the first."""

    first: Drawn
    second: Drawn
    comparison: Comparison


def launches_compared(first: Selection, second: Selection, *, targets: Targets = None) -> Compared:
    """Of what the reader may see. Launches that never became ready are counted, and have no length to compare."""
    one, two = drawn(first, targets=targets), drawn(second, targets=targets)
    return Compared(one, two, _compared(tuple(one.samples), tuple(two.samples)))


@lru_cache(maxsize=4)
def _compared(first: tuple[Sample, ...], second: tuple[Sample, ...]) -> Comparison:
    """Whoever asks again while nothing changed is not drawn thousands of numbers for."""
    return compare(first, second)
