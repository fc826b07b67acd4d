"""Several router processes on one port: the system spreads connections over them, and each decides for itself.

The parent only holds the port, starts the processes, starts one anew that ended, and passes on the wish to end.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from types import FrameType

log = logging.getLogger(__name__)

AGAIN_SECONDS, LOOK_SECONDS = 1.0, 0.2
PARENT = "HEARTH_ROUTER_PARENT"  # the pid by which a worker sees that its parent is gone


def is_orphan() -> bool:
    """Whether this process is a worker whose parent is gone."""
    parent = os.environ.get(PARENT, "")
    return parent.isdigit() and os.getppid() != int(parent)


def held_port(host: str, port: int) -> socket.socket:
    """A socket that keeps the port without listening. Raises OSError when it is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    held = socket.socket(family, socket.SOCK_STREAM)
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind((host, port))
    except OSError:
        held.close()
        raise
    return held


def run_workers(count: int, arguments: Sequence[str], host: str, port: int) -> int:
    """``arguments`` of each worker but for its port. Until a signal; the exit code."""
    ending = False

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal ending
        ending = True

    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, end)
    with closing(held_port(host, port)) as held:
        port = int(held.getsockname()[1])
        running = [_start(arguments, host, port) for _ in range(count)]
        print(f"routing on port {port}", flush=True)
        while not ending:
            for place, one in enumerate(running):
                if one.poll() is not None and not ending:
                    log.error("router process %d ended with %s; another takes its place", one.pid, one.returncode)
                    time.sleep(AGAIN_SECONDS)
                    running[place] = _start(arguments, host, port)
            time.sleep(LOOK_SECONDS)
        for one in running:
            one.terminate()
        return max(one.wait() for one in running)


def _start(arguments: Sequence[str], host: str, port: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, *_warnings(), "-m", "routing.dataplane", *arguments, "--host", host, "--port", str(port)]
    environment = {**os.environ, PARENT: str(os.getpid())}
    return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def _warnings() -> list[str]:
    return [f"-W{one}" for one in sys.warnoptions]
