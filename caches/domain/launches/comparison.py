"""Two selections of launches side by side: the seconds until ready and every phase, each with how sure it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from caches.domain.launches.resampling import ENOUGH, Difference, Verdict, difference
from caches.domain.launches.words import PHASES, Phase

SEED = 7
MEDIAN, P95 = 0.5, 0.95


@dataclass(frozen=True, slots=True)
class Sample:
    """One launch. ``phases`` in the order of PHASES, None where it was not measured; ``unknown`` is in no phase."""

    ready_seconds: float
    phases: tuple[float | None, ...] = ()
    unknown: float | None = None

    def phase(self, phase: Phase) -> float | None:
        """The phase's seconds; None where nobody measured them."""
        index = PHASES.index(phase)
        return self.phases[index] if index < len(self.phases) else None


@dataclass(frozen=True, slots=True)
class Effect:
    """``phase`` None is the whole time until ready. ``counts`` are the launches of either side that have the value."""

    phase: Phase | None
    counts: tuple[int, int]
    median: Difference
    p95: Difference

    @property
    def enough(self) -> bool:
        return min(self.counts) >= ENOUGH


@dataclass(frozen=True, slots=True)
class Comparison:
    """``effects`` begins with the whole; phases that neither side measured are left out."""

    effects: tuple[Effect, ...]

    @property
    def whole(self) -> Effect:
        return self.effects[0]

    @property
    def phases(self) -> tuple[Effect, ...]:
        return self.effects[1:]

    @property
    def moved(self) -> Effect | None:
        """The phase whose p95 differs most of those where that is sure, in the direction of the whole; else the same of
        the medians. None where nothing is sure."""
        for of in ("p95", "median"):
            whole: Difference = getattr(self.whole, of)
            sure = [one for one in self.phases if getattr(one, of).verdict is whole.verdict]
            if whole.verdict in (Verdict.FASTER, Verdict.SLOWER) and sure:
                return max(sure, key=lambda one: abs(getattr(one, of).change))
        return None


def compare(first: Sequence[Sample], second: Sequence[Sample], *, seed: int = SEED) -> Comparison:
    """Medians and p95 of both; what the second has more than the first, per phase."""
    whole = _effect(None, [one.ready_seconds for one in first], [one.ready_seconds for one in second], seed)
    effects = [whole]
    for number, phase in enumerate(PHASES, start=1):
        left, right = _measured(first, phase), _measured(second, phase)
        if left or right:
            effects.append(_effect(phase, left, right, seed + 2 * number))
    return Comparison(tuple(effects))


def _measured(samples: Sequence[Sample], phase: Phase) -> list[float]:
    return [seconds for one in samples if (seconds := one.phase(phase)) is not None]


def _effect(phase: Phase | None, first: Sequence[float], second: Sequence[float], seed: int) -> Effect:
    return Effect(
        phase,
        (len(first), len(second)),
        difference(first, second, MEDIAN, seed=seed),
        difference(first, second, P95, seed=seed + 1),
    )
