"""A worker that met an error it cannot recover from ends within seconds, so that it is started again.

Celery then waits for its pool to end by itself: a minute for a task that runs, for ever for a child that hangs. What
was not done is delivered again, and the sweeps repeat the rest.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from contextlib import suppress
from typing import Any

from billiard import active_children
from celery import bootsteps

PATIENCE_SECONDS = 5.0

log = logging.getLogger(__name__)


class EndSoon(bootsteps.StartStopStep):
    """A step of the worker. A worker that was asked to end, whose exit code is 0, gets all the time it wants."""

    def close(self, worker: Any) -> None:
        if worker.exitcode:
            threading.Thread(target=end, args=(worker.exitcode,), name="end-soon", daemon=True).start()


def end(code: int) -> None:
    """Wait, then end this process and its children whatever they do."""
    time.sleep(PATIENCE_SECONDS)
    log.critical("the worker does not end by itself after an unrecoverable error, it is ended")
    for child in active_children():
        with suppress(OSError):
            if child.pid:
                os.kill(child.pid, signal.SIGKILL)
    logging.shutdown()
    os._exit(code)
