"""When an instance is left out for a while: after failures in a row, longer each time; then one failure is enough.

A busy engine is slow, and a client may send nonsense: neither says that an instance is ill, so no slow answer and no
4xx counts. What counts is a connection that is refused, reset or not made in time, and 5xx answers, more of them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

CONNECTS, ANSWERS = 2, 10  # failures in a row
FIRST_SECONDS, LONGEST_SECONDS = 1.0, 30.0


class Failure(StrEnum):
    CONNECT = "Connect"  # no connection, or one that ended before any byte of an answer
    ANSWER = "Answer"  # a 5xx


@dataclass(frozen=True, slots=True)
class Health:
    """``until``: left out before that time (seconds of a monotonic clock), 0 while it is well. ``ejections`` in a row
    without one success between make the next one longer."""

    connects: int = 0
    answers: int = 0
    ejections: int = 0
    until: float = 0.0


WELL = Health()


def failed(health: Health, failure: Failure, now: float) -> Health:
    """After one more failure. While it is left out nothing adds up: those requests were under way before."""
    if now < health.until:
        return health
    connects = health.connects + 1 if failure is Failure.CONNECT else health.connects
    answers = health.answers + 1 if failure is Failure.ANSWER else health.answers
    on_trial = health.until > 0
    if connects < CONNECTS and answers < ANSWERS and not (on_trial and failure is Failure.CONNECT):
        return Health(connects, answers, health.ejections, health.until)
    seconds = min(LONGEST_SECONDS, FIRST_SECONDS * 2**health.ejections)
    return Health(0, 0, health.ejections + 1, now + seconds)


def succeeded(health: Health, now: float) -> Health:
    """After an answer below 500. An answer that was under way when the instance was left out brings nobody back."""
    return health if now < health.until else WELL


def away(members: Collection[str], draining: Collection[str], ejected: Collection[str]) -> frozenset[str]:
    """Who gets nothing now. When everybody would be out, those that failed are tried all the same: they may be well by
    now, and nobody is worse than somebody. Who drains is out in any case."""
    out = frozenset(draining) | frozenset(ejected)
    return out if any(one not in out for one in members) else frozenset(draining)
