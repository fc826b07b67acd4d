"""Requests that wait for an instance: while a variant has none, and where its policy asks for it, while all are full.

Bounded in number and time. Who is at the front goes first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Protocol


class Waiter(Protocol):
    """``place`` tries again: False when it still has to wait, and so has whoever is behind it. ``give_up`` ends it with
    an answer."""

    def place(self) -> bool: ...
    def give_up(self) -> None: ...


class Waiting:
    """One variant's queue. One thread. ``held``: by who waits, until when and with how many bytes."""

    def __init__(self) -> None:
        self.held: dict[Waiter, tuple[float, int]] = {}
        self._waking = False
        self.bytes = 0  # that those who wait hold

    def __len__(self) -> int:
        return len(self.held)

    def add(self, waiter: Waiter, until: float, size: int = 0) -> None:
        """``size``: bytes that it holds meanwhile."""
        self.held[waiter] = until, size
        self.bytes += size

    def until(self, otherwise: float) -> float:
        """When the one at the front has waited long enough."""
        return next(iter(self.held.values()), (otherwise, 0))[0]

    def discard(self, waiter: Waiter) -> None:
        """It left, or was placed."""
        self.bytes -= self.held.pop(waiter, (0.0, 0))[1]

    def wake(self) -> None:
        """There may be room: look from the loop, not from within whatever made it."""
        if self.held and not self._waking:
            self._waking = True
            asyncio.get_running_loop().call_soon(self.look)

    def look(self) -> None:
        """Place whoever can be placed, from the front on."""
        self._waking = False
        for waiter in list(self.held):
            if waiter in self.held and not waiter.place():
                return

    def expire(self, now: float) -> None:
        """Those whose time is over are told so."""
        for waiter in list(self._overdue(now)):
            self.discard(waiter)
            waiter.give_up()

    def end(self) -> None:
        """What they wait for is no more."""
        for waiter in list(self.held):
            self.discard(waiter)
            waiter.give_up()

    def _overdue(self, now: float) -> Iterator[Waiter]:
        return (waiter for waiter, (until, _) in self.held.items() if until < now)
