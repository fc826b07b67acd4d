"""A controlled trial of launches: in which order they are provoked, and what is said of them afterwards."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from caches.domain.launches.resampling import ENOUGH, share_interval
from caches.domain.launches.sketch import exact_quantile
from caches.domain.launches.words import EventClass

# What a trial provokes; the other two need another version, or a node that is lost.
KINDS = (EventClass.WARM_RESTART, EventClass.COLD_POD, EventClass.NEW_NODE)
MOST_RUNS = 20


def servable(paths: Iterable[str]) -> bool:
    """Whether an engine of the local fleet can serve a version of these files: one of them is a GGUF file, at the top
    of its folder, and no second one is."""
    return sum(path.endswith(".gguf") and "/" not in path for path in paths) == 1


@dataclass(frozen=True, slots=True)
class Measured:
    """One launch of a trial. ``wanted`` is what was provoked, ``found`` what it was labelled; seconds are None where
    nobody measured them. ``waiting_seconds`` of ``ready_seconds`` no accelerator was taken yet."""

    wanted: EventClass
    found: EventClass
    weights: str
    ready_seconds: float | None
    waiting_seconds: float | None

    @property
    def idle_seconds(self) -> float | None:
        """How long the launch kept an accelerator that served nobody."""
        if self.ready_seconds is None:
            return None
        return max(0.0, self.ready_seconds - (self.waiting_seconds or 0.0))


@dataclass(frozen=True, slots=True)
class KindResult:
    """What was provoked of one class. ``seconds`` in the order in which they were provoked; ``p95`` None of too few."""

    wanted: EventClass
    runs: int
    as_wanted: int
    hits: int
    seconds: tuple[float, ...]
    median: float | None
    p95: float | None
    within: int
    within_interval: tuple[float, float] | None
    idle_seconds: float


def order_of(runs: int, seed: int) -> list[EventClass]:
    """``runs`` of each kind, shuffled: what changes while a trial runs falls on all of them alike."""
    if not 1 <= runs <= MOST_RUNS:
        raise ValueError(f"{runs} is no number of runs from 1 to {MOST_RUNS}")
    order = [kind for kind in KINDS for _ in range(runs)]
    Random(seed).shuffle(order)
    return order


def seconds_left(spent: float, done: int, total: int) -> float | None:
    """Of a trial that measured ``done`` of ``total`` launches in ``spent`` seconds; None before the first."""
    return spent / done * (total - done) if done else None


def results_of(launches: Iterable[Measured], target_seconds: float) -> list[KindResult]:
    """By what was provoked, in the order of the kinds; a kind without a launch is left out."""
    by_kind: Mapping[EventClass, list[Measured]] = defaultdict(list)
    for one in launches:
        by_kind[one.wanted].append(one)
    return [_result(kind, by_kind[kind], target_seconds) for kind in KINDS if kind in by_kind]


def _result(kind: EventClass, found: Sequence[Measured], target_seconds: float) -> KindResult:
    seconds = [one.ready_seconds for one in found if one.ready_seconds is not None]
    within = sum(one <= target_seconds for one in seconds)
    return KindResult(
        wanted=kind,
        runs=len(found),
        as_wanted=sum(one.found is kind for one in found),
        hits=sum(one.weights == "Hit" for one in found),
        seconds=tuple(seconds),
        median=exact_quantile(seconds, 0.5),
        p95=exact_quantile(seconds, 0.95) if len(seconds) >= ENOUGH else None,
        within=within,
        within_interval=share_interval(within, len(found)),
        idle_seconds=sum(one.idle_seconds or 0.0 for one in found),
    )
