"""Percentiles of a sketch, as everybody shows them: of too few samples there are none."""

from __future__ import annotations

from dataclasses import dataclass

from routing.domain.figures import QUANTILES, told
from routing.domain.sketches import Sketch


@dataclass(frozen=True, slots=True)
class Spread:
    """``p50`` to ``p99`` in seconds over ``count`` samples, None of too few to tell them from the ``most`` of them
    (figures.ENOUGH); all are None of none."""

    count: int
    p50: float | None
    p95: float | None
    p99: float | None
    most: float | None = None


def spread(sketch: Sketch) -> Spread:
    p50, p95, p99 = (told(name, sketch.count, sketch.quantile(part)) for name, part in QUANTILES.items())
    return Spread(sketch.count, p50, p95, p99, sketch.quantile(1.0))
