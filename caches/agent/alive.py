"""A file whose age says whether the loop still comes round; the probe of the agent's pod restarts one that hangs.

Its modification time is CLOCK_MONOTONIC, so that no correction of the node's clock makes a sound agent look old, and
none a dead one young. Where nobody asks for the file, nothing is written.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping

VARIABLE = "HEARTH_HEARTBEAT_FILE"
EVERY_SECONDS = 1.0

log = logging.getLogger(__name__)


class Heartbeat:
    """Called by the loop's own thread and by no other: jobs that go on without the loop are no sign of life."""

    def __init__(self, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = path, clock
        self._next = float("-inf")
        self._told = False

    def __call__(self) -> None:
        """Touch the file, once a second at most. Never fails the caller."""
        now = self._clock()
        if not self._path or now < self._next:
            return
        self._next = now + EVERY_SECONDS
        try:
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.utime(fd, (now, now))
            finally:
                os.close(fd)
        except OSError as error:
            if not self._told:
                log.warning("the heartbeat file cannot be written: %s", error.strerror)
            self._told = True


def heartbeat(environ: Mapping[str, str] = os.environ) -> Heartbeat:
    """The one that the process was asked for."""
    return Heartbeat(environ.get(VARIABLE, ""))
