"""Waiting for a condition, bounded."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(condition: Callable[[], object], what: str = "it", *, seconds: float = 120.0, every: float = 0.05) -> None:
    """Return as soon as ``condition()`` holds; AssertionError that names ``what`` when it never does.

    The limit is for a machine that does much else: it costs nothing when the condition holds.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {seconds:g} s"
        time.sleep(every)
