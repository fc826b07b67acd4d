"""Scaling out: launches of one endpoint that came together, what they found, and when the capacity was there.

What is asked for at once begins at once: a burst is the launches that begin within WITHIN of its first one. The time
runs from the first, so that commands one after the other never grow into one burst however many there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from caches.domain.launches.sketch import exact_quantile

FEWEST = 3  # launches, or it is no burst
# A cluster makes the pods of one change within seconds, in a few steps where they are many.
WITHIN = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class Added:
    """One launch that added capacity: no restart. ``hit`` None where nobody measured; ``ready_at`` None: never, or not
    yet while it is ``starting``."""

    endpoint: str
    began_at: datetime
    ready_at: datetime | None
    hit: bool | None
    unprepared: bool | None
    cluster: str = ""
    starting: bool = False


@dataclass(frozen=True, slots=True)
class Burst:
    """Launches of ``endpoint`` that came together."""

    endpoint: str
    launches: tuple[Added, ...]

    @property
    def began_at(self) -> datetime:
        return self.launches[0].began_at

    @property
    def hits(self) -> int:
        return sum(one.hit is True for one in self.launches)

    @property
    def known(self) -> int:
        return sum(one.hit is not None for one in self.launches)

    @property
    def starting(self) -> int:
        return sum(one.starting for one in self.launches)

    @property
    def serving(self) -> int:
        return sum(one.ready_at is not None for one in self.launches)

    def seconds_until(self, share: float) -> float | None:
        """From the first launch's beginning until ``share`` of the added capacity serves; None where it never did, or
        has not yet."""
        times = [(one.ready_at - self.began_at).total_seconds() for one in self.launches if one.ready_at is not None]
        missing = len(self.launches) - len(times)
        found = exact_quantile([*times, *[float("inf")] * missing], share)
        return None if found is None or found == float("inf") else max(0.0, found)


@dataclass(frozen=True, slots=True)
class ScaleOut:
    """``unprepared`` of ``measured`` launches landed on nodes that lacked something; ``hits`` of ``known`` in bursts.

    ``half_seconds`` and ``all_seconds``: the median burst, until half and all of what it added serves; None of none.
    """

    added: int
    unprepared: int
    measured: int
    bursts: tuple[Burst, ...]
    hits: int
    known: int
    half_seconds: float | None
    all_seconds: float | None


def scale_out(launches: Iterable[Added]) -> ScaleOut:
    """Of launches in any order."""
    ordered = sorted(launches, key=lambda one: (one.cluster, one.endpoint, one.began_at))
    bursts = tuple(sorted(_bursts(ordered), key=lambda one: one.began_at))
    halves, wholes = ([at for one in bursts if (at := one.seconds_until(share)) is not None] for share in (0.5, 1.0))
    return ScaleOut(
        added=len(ordered),
        unprepared=sum(one.unprepared is True for one in ordered),
        measured=sum(one.unprepared is not None for one in ordered),
        bursts=bursts,
        hits=sum(one.hits for one in bursts),
        known=sum(one.known for one in bursts),
        half_seconds=exact_quantile(halves, 0.5),
        all_seconds=exact_quantile(wholes, 0.5),
    )


def _bursts(ordered: Sequence[Added]) -> Iterable[Burst]:
    run: list[Added] = []
    for one in ordered:
        if run and (_owner(one) != _owner(run[0]) or one.began_at - run[0].began_at > WITHIN):
            yield from _burst(run)
            run = []
        if one.endpoint:
            run.append(one)
    yield from _burst(run)


def _owner(one: Added) -> tuple[str, str]:
    return one.cluster, one.endpoint


def _burst(run: Sequence[Added]) -> Iterable[Burst]:
    if len(run) >= FEWEST:
        yield Burst(run[0].endpoint, tuple(run))
