"""Reading what is published once more, at a bounded rate, to find what went wrong on the disk since."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from caches.agent import verify
from caches.agent.limits import Stopped, TokenBucket
from caches.agent.marker import Marker
from caches.agent.store import Store
from caches.agent.verify import Findings
from controlplane.clusters.documents import Action, DesiredEntry


@dataclass(slots=True)
class Scrub:
    """``run`` returns what it found, None when the tree is gone. ``only`` restricts the reading to some files."""

    store: Store
    bucket: TokenBucket
    line: DesiredEntry
    marker: Marker
    only: frozenset[str] | None = None
    stopped: threading.Event = field(init=False, default_factory=threading.Event)

    def run(self) -> Findings | None:
        try:
            return verify.read_tree(self.store.tree(self.line.digest), self.marker, self._tick, only=self.only)
        except FileNotFoundError:
            return None

    def _tick(self, count: int) -> None:
        if self.stopped.is_set():
            raise Stopped
        self.bucket.take(count, self.stopped.wait)


@dataclass(frozen=True, slots=True)
class ScrubState:
    """What decides whether an entry's turn has come."""

    line: DesiredEntry
    verified_at: datetime | None
    verify_round: int


def next_scrub(states: Iterable[ScrubState], interval_seconds: float, now: datetime) -> str | None:
    """The digest to scrub now: asked for first, then the longest unread one that is due; None when none is."""
    best: tuple[int, float, str] | None = None
    for state in states:
        if state.line.action is not Action.ENSURE:
            continue
        asked = state.line.verify_round > state.verify_round
        age = (now - state.verified_at).total_seconds() if state.verified_at else float("inf")
        if age < 0:  # the clock was set back: nobody can tell how long ago it was
            age = float("inf")
        if not asked and age < interval_seconds:
            continue
        candidate = (0 if asked else 1, -age, state.line.digest)
        best = candidate if best is None else min(best, candidate)
    return best[2] if best else None
