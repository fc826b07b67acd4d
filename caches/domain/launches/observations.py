"""One thing that somebody saw of a launch. Observations are only ever added; equal ones are the same one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from caches.domain.launches.words import Clock, Mark, Observer, Phase

LONGEST_SECONDS = 30 * 86400.0


@dataclass(frozen=True, slots=True)
class Observation:
    """``at`` is a moment, or the end of what lasted ``seconds``; None is not known. ``phase`` belongs to SPAN alone.

    ``facts`` are words beside it (found, bytes, source, image, reason …). Raises ValueError for what cannot be.
    """

    observer: Observer
    mark: Mark
    at: datetime | None = None
    seconds: float | None = None
    clock: Clock = Clock.SERVER
    phase: Phase | None = None
    facts: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if self.at is None and self.seconds is None:
            raise ValueError("says neither when nor how long")
        if self.at is not None and self.at.tzinfo is None:
            raise ValueError("has a time without its offset from UTC")
        if self.seconds is not None and not (math.isfinite(self.seconds) and 0 <= self.seconds <= LONGEST_SECONDS):
            raise ValueError(f"has a duration that is not between 0 and {LONGEST_SECONDS:.0f} seconds")
        if self.mark is not Mark.SPAN and self.phase is not None:
            raise ValueError("names a phase, which only a Span has")
        if self.mark is Mark.SPAN and self.phase is None:
            raise ValueError("is a Span and names no phase")
        if self.mark is Mark.SPAN and self.seconds is None:
            raise ValueError("is a Span and says no seconds")

    @property
    def begins(self) -> datetime | None:
        """When what it measures began; None where that is not known."""
        if self.at is None or self.seconds is None:
            return None
        return self.at - timedelta(seconds=self.seconds)

    def fact(self, name: str) -> str:
        """One of ``facts``, "" where it says nothing about it."""
        return dict(self.facts).get(name, "")


def facts_of(values: Mapping[str, object]) -> tuple[tuple[str, str], ...]:
    """``values`` as an observation carries them: text in the order of the names, without what is empty.

    Pods say what they like: what no database takes for text (zero bytes, halves of characters) is left out.
    """
    told = ((name, _text(values[name])) for name in sorted(values) if values[name] is not None)
    return tuple((name, value) for name, value in told if value)


def _text(value: object) -> str:
    return str(value).replace("\0", "").encode(errors="ignore").decode()


def order_of(seen: Observation) -> tuple[str, ...]:
    """A total order over everything that an observation says, so that no result hangs on who came first."""
    at = seen.at.isoformat() if seen.at is not None else ""
    seconds = f"{seen.seconds:020.6f}" if seen.seconds is not None else ""
    return (at, seen.mark, seen.observer, seen.clock, seen.phase or "", seconds, repr(seen.facts))
