"""Outlives the supervisor by a moment: when that is killed without a word, everything it started is ended.

Run as ``python -m controlplane.embedded.guardian STATE``. Its standard input is a pipe whose other end only the
supervisor holds, so the end of file means that the supervisor is gone, however it went.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from pathlib import Path

from controlplane.embedded import records


def main(state: Path) -> None:
    """Wait for the supervisor's end, then end what it recorded."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # Held until we are done: the next supervisor waits for it, so that its children are never taken for old ones.
    with (state / "guardian.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.write(1, b"ready\n")
        while os.read(0, 4096):
            pass
        records.end_all(state / "pids")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
