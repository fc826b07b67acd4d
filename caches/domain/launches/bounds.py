"""From when until when a launch lasted, and what of what was measured can lie within it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from caches.domain.launches.words import Mark, Phase

# An effect this little before its cause is no contradiction: whole seconds of events, and clocks that NTP keeps.
TOLERATED = timedelta(seconds=2)


@dataclass(frozen=True, slots=True)
class Stretch:
    """From ``start`` to ``end``; both None where only ``seconds`` is known."""

    start: datetime | None
    end: datetime | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Bounds:
    """The moments that bound a launch, on the control plane's clock; None for what nobody saw."""

    started: datetime | None = None
    ready: datetime | None = None
    served: datetime | None = None
    ended: datetime | None = None

    @property
    def until(self) -> datetime | None:
        """The end of what is counted; None while it goes on."""
        return max((at for at in (self.ready, self.served) if at is not None), default=self.ended)

    def within(self, phase: Phase, measured: Stretch) -> Stretch | None:
        """``measured`` if it can be of this launch, without its place where that is only a little outside.

        None for what lies outside: clipped to the launch it would be measured as no time at all.
        """
        if measured.start is None or measured.end is None:
            return measured
        first = phase is Phase.FIRST_REQUEST
        limit = self.until if first else self.ready or self.until
        begin, end = max(measured.start, self.started or measured.start), min(measured.end, limit or measured.end)
        if begin < end or (begin == end and measured.start == measured.end):
            return measured
        # Nothing after being ready is counted of a launch whose first success nobody saw.
        uncounted = first and self.served is None and end == limit
        return None if uncounted or begin - end > TOLERATED else Stretch(None, None, measured.seconds)


def bounds_of(first: Callable[[Mark], datetime | None]) -> Bounds:
    """``first`` says the earliest moment of a mark. Where nobody says when it was created it begins when placed."""
    started = first(Mark.RESTARTED) or first(Mark.CREATED) or first(Mark.SCHEDULED)
    ready, served, ended = (_after(first(one), started) for one in (Mark.READY, Mark.FIRST_SUCCESS, Mark.ENDED))
    return Bounds(started, ready, served, ended)


def _after(moment: datetime | None, started: datetime | None) -> datetime | None:
    """``moment`` unless it is of an earlier run: a pod stays ready for a moment when its container restarts."""
    if moment is None or started is None:
        return moment
    return None if moment < started - TOLERATED else max(moment, started)
