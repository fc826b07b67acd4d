"""``?wait=``: a bounded long poll on an Operation that keeps no database connection while nothing happens."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from uuid import UUID

from django.conf import settings
from django.db import connection

from controlplane.operations.models import FINAL_STATES, Operation

FIRST_PAUSE = 0.05
LONGEST_PAUSE = 1.0
TICK_SECONDS = 10.0

# Waiting holds a web worker's thread; past this many the caller gets its 202 at once and asks again.
_slots = threading.BoundedSemaphore(max(1, settings.WAIT_SLOTS))


def wait_for_end(operation_id: UUID, seconds: float, on_tick: Callable[[], None] | None = None) -> bool:
    """True when the operation has ended, False when the time is up or no slot is free.

    ``on_tick`` runs at least every 10 s while waiting.
    """
    if _ended(operation_id) or seconds <= 0:
        return _ended(operation_id)
    if not _slots.acquire(blocking=False):
        return False
    try:
        return _poll(operation_id, time.monotonic() + seconds, on_tick)
    finally:
        _slots.release()


def _poll(operation_id: UUID, deadline: float, on_tick: Callable[[], None] | None) -> bool:
    pause = FIRST_PAUSE
    ticked = time.monotonic()
    while (left := deadline - time.monotonic()) > 0:
        _release_connection()
        time.sleep(min(pause, left))
        pause = min(LONGEST_PAUSE, pause * 1.5)
        if _ended(operation_id):
            return True
        if on_tick is not None and time.monotonic() - ticked >= TICK_SECONDS:
            ticked = time.monotonic()
            on_tick()
    return False


def _ended(operation_id: UUID) -> bool:
    return Operation.objects.filter(pk=operation_id, state__in=FINAL_STATES).exists()


def _release_connection() -> None:
    # Inside a transaction (a test's) the connection is not ours to give back.
    if not connection.in_atomic_block:
        connection.close()
