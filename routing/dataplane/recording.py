"""What a router keeps of requests for the control plane to replay: digests, sizes and times, in constant memory.

Only where the variant's policy asks for it. What finds no room until it is told next is counted and passed over.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from routing.domain.dialects_usage import TokenUse
from routing.domain.recordings import MESSAGE_BYTES, Kept, line_of

if TYPE_CHECKING:
    from routing.dataplane.routes import Route

LINE_BYTES = 110  # of a line beside its digests, about
DIGEST_BYTES = 16


class Recorder:
    """Of one variant. One thread."""

    __slots__ = ("_lines", "_passed", "_room", "_wall")

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self._lines: list[list[Any]] = []
        self._passed = 0
        self._room = MESSAGE_BYTES

    def keep(
        self, route: Route, outcome: str, instance: str, use: TokenUse | None, ttft: float | None, seconds: float
    ) -> None:
        """After its answer. ``seconds`` since it was whole."""
        if self._room < LINE_BYTES + DIGEST_BYTES:
            self._passed += 1
            return
        own, found = route.recorded()
        self._room -= LINE_BYTES + DIGEST_BYTES * len(found)
        kept = Kept(
            at=self._wall() - seconds,
            boundaries=found,
            own=own,
            outcome=outcome,
            instance=instance,
            prompt_tokens=use.prompt_tokens if use else None,
            cached_tokens=use.cached_tokens if use else None,
            output_tokens=use.completion_tokens if use else None,
            ttft=ttft,
            seconds=seconds,
        )
        self._lines.append(line_of(kept))

    def take(self) -> bytes | None:
        """One message of what was kept since the last call; None of nothing."""
        if not self._lines and not self._passed:
            return None
        message = json.dumps({"requests": self._lines, "passed": self._passed}, separators=(",", ":")).encode()
        self._lines, self._passed, self._room = [], 0, MESSAGE_BYTES
        return message
