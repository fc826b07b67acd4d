"""Scaling out: launches of one endpoint that came together, what they found, and when the capacity was there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise

from caches.domain.launches.sketch import exact_quantile

# A burst is this many launches, each within GAP of the one before.
FEWEST = 3
GAP = timedelta(minutes=2)


@dataclass(frozen=True, slots=True)
class Added:
    """One launch that added capacity: no restart. ``hit`` None where nobody measured; ``ready_at`` None: never."""

    endpoint: str
    began_at: datetime
    ready_at: datetime | None
    hit: bool | None
    unprepared: bool | None


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
    def serving(self) -> int:
        return sum(one.ready_at is not None for one in self.launches)

    def seconds_until(self, share: float) -> float | None:
        """From the first launch's beginning until ``share`` of the added capacity serves; None where it never did."""
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
    ordered = sorted(launches, key=lambda one: (one.endpoint, one.began_at))
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
    if not ordered:
        return
    run = [ordered[0]]
    for before, one in pairwise(ordered):
        if one.endpoint == before.endpoint and one.endpoint and one.began_at - before.began_at <= GAP:
            run.append(one)
            continue
        if len(run) >= FEWEST:
            yield Burst(run[0].endpoint, tuple(run))
        run = [one]
    if len(run) >= FEWEST:
        yield Burst(run[0].endpoint, tuple(run))
