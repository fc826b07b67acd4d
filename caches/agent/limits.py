"""What paces the reads of one node: a token bucket for bytes and a gate for requests. Both may change while in use."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Stopped(Exception):
    """The work was taken back (the line is gone, the agent stops). Nothing is wrong."""


class TokenBucket:
    """Bytes per second over everything that takes from it. A taker goes into debt and sleeps it off, so the rate holds
    for any size of bite; ``None`` is unlimited."""

    def __init__(self, rate: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._lock = threading.Lock()
        self._clock = clock
        self._rate = rate
        self._free_at = clock()  # the moment at which everything taken so far is paid

    def set_rate(self, rate: float | None) -> None:
        """Also rescales the debt, so that lifting a tight limit is felt at once."""
        with self._lock:
            if rate == self._rate:
                return
            now = self._clock()
            debt = max(0.0, self._free_at - now) * (self._rate or 0.0)
            self._free_at = now + (debt / rate if rate else 0.0)
            self._rate = rate

    def take(self, count: int, wait: Callable[[float], bool]) -> None:
        """Pay for ``count`` bytes. ``wait(seconds)`` sleeps and returns True when the work was stopped: Stopped."""
        with self._lock:
            if not self._rate:
                return
            now = self._clock()
            self._free_at = max(self._free_at, now) + count / self._rate
        while True:
            with self._lock:
                left = self._free_at - self._clock() if self._rate else 0.0
            if left <= 0:
                return
            if wait(min(left, 0.25)):
                raise Stopped


class RequestGate:
    """At most ``limit`` requests at once, none while paused."""

    def __init__(self, limit: int) -> None:
        self._condition = threading.Condition()
        self._limit = max(1, limit)
        self._paused = False
        self._busy = 0

    @property
    def limit(self) -> int:
        return self._limit

    @property
    def paused(self) -> bool:
        return self._paused

    @property
    def busy(self) -> int:
        return self._busy

    def change(self, *, limit: int, paused: bool) -> None:
        with self._condition:
            self._limit, self._paused = max(1, limit), paused
            self._condition.notify_all()

    @contextmanager
    def request(self, stopped: Callable[[], bool]) -> Iterator[None]:
        """Wait for a place and hold it; Stopped when the work was taken back meanwhile."""
        with self._condition:
            while self._paused or self._busy >= self._limit:
                if stopped():
                    raise Stopped
                self._condition.wait(0.1)
            self._busy += 1
        try:
            yield
        finally:
            with self._condition:
                self._busy -= 1
                self._condition.notify()
