"""A file whose age says whether a process without a port does its work; docker-compose.yml and deploy/ ask for it.

Only what succeeded, or waits for somebody else, may call ``beat``: a process that runs and achieves nothing lets its
file grow old.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path

from django.conf import settings

EVERY_SECONDS = 1.0

log = logging.getLogger(__name__)
_last = 0.0


def beat() -> None:
    """Touch HEARTH_HEARTBEAT_FILE, once a second at most; nothing where it is not set. Never fails the caller."""
    global _last
    now = time.monotonic()
    if not settings.HEARTBEAT_FILE or now - _last < EVERY_SECONDS:
        return
    _last = now
    try:
        Path(settings.HEARTBEAT_FILE).touch()
    except OSError as error:
        log.warning("the heartbeat file cannot be touched: %s", error.strerror)
