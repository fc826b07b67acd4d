"""Several router processes on one port: the system spreads connections over them, and each decides for itself.

The parent only holds the port, starts the processes, starts one anew that ended, passes on the wish to end, and adds up
what they say to Prometheus.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from routing.dataplane.exposing import Page
from routing.domain.expositions import read_samples
from routing.domain.summing import Tally

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.2
# One that ends sooner than this could not start; the next one has to wait longer each time.
STEADY_SECONDS, AGAIN_SECONDS, LONGEST_SECONDS = 10.0, 1.0, 30.0
TRIES = 5  # of every process in a row, until the parent gives up too
ASK_SECONDS, ANSWER_SECONDS = 2.0, 2.0
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


def run_workers(
    count: int, arguments: Sequence[str], host: str, port: int, metrics: tuple[str, int] | None = None
) -> int:
    """``arguments`` of each worker but for its port. ``metrics``: where the numbers of all are served. Until a signal;
    the exit code."""
    with closing(held_port(host, port)) as held, tempfile.TemporaryDirectory(prefix="hearth-router-") as folder:
        workers = _Workers(arguments, host, int(held.getsockname()[1]), Path(folder) if metrics else None)
        return asyncio.run(workers.run(count, metrics))


@dataclass(slots=True)
class _Worker:
    """``tries``: how many ended in its place without having been steady. ``again_at``: when another one is started,
    None while it runs."""

    process: subprocess.Popen[bytes]
    page: Path | None
    tries: int = 0
    started_at: float = field(default_factory=time.monotonic)
    again_at: float | None = None


def pause_after(tries: int) -> float:
    """Seconds until another one is started, after so many that could not."""
    return float(min(LONGEST_SECONDS, AGAIN_SECONDS * 2 ** min(max(0, tries - 1), 16)))


class _Workers:
    """``folder``: where each worker has its socket for what it counts; None: nobody asks."""

    def __init__(self, arguments: Sequence[str], host: str, port: int, folder: Path | None) -> None:
        self._arguments, self._host, self._port, self._folder = arguments, host, port, folder
        self._tally = Tally()
        self._running: list[_Worker] = []
        self._started = 0
        self._ending = asyncio.Event()

    async def run(self, count: int, metrics: tuple[str, int] | None) -> int:
        for name in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(name, self._ending.set)
        page, asking = Page(self._text, self._is_ready), None
        # First, so that a port that somebody has is known before anything serves.
        shown = await page.start(*metrics) if metrics else None
        self._running = [self._start() for _ in range(count)]
        print(f"routing on port {self._port}", flush=True)
        if shown is not None:
            print(f"metrics on port {shown}", flush=True)
            asking = asyncio.create_task(self._ask_now_and_then())
        code = await self._keep()
        for one in self._running:
            one.process.terminate()
        while any(one.process.poll() is None for one in self._running):
            await asyncio.sleep(LOOK_SECONDS / 4)
        if asking is not None:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        await page.stop()
        # Of one that ended before it was asked to, it was told before.
        return max(code, *(int(one.process.returncode) for one in self._running if one.again_at is None), 0)

    async def _keep(self) -> int:
        """Until it is to end: 0; or until nothing can be started: what the last one ended with."""
        while not self._ending.is_set():
            now = time.monotonic()
            for place, one in enumerate(self._running):
                if one.again_at is None and one.process.poll() is not None:
                    self._ended(one, now)
                elif one.again_at is not None and one.again_at <= now:
                    self._running[place] = self._start(one.tries)
            if all(one.again_at is not None and one.tries >= TRIES for one in self._running):
                log.error("no router process could be started %d times in a row: what they said stands above", TRIES)
                return max(1, *(int(one.process.returncode) for one in self._running))
            await self._ends_within(LOOK_SECONDS)
        return 0

    def _ended(self, one: _Worker, now: float) -> None:
        self._tally.end(one.process.pid)
        one.tries = one.tries + 1 if now - one.started_at < STEADY_SECONDS else 1
        pause = pause_after(one.tries)
        one.again_at = now + pause
        log.error(
            "router process %d ended with %s; another takes its place in %g s (%d in a row that did not last)",
            one.process.pid, one.process.returncode, pause, one.tries,
        )  # fmt: skip

    async def _ends_within(self, seconds: float) -> bool:
        try:
            await asyncio.wait_for(self._ending.wait(), seconds)
        except TimeoutError:
            return False
        return True

    def _start(self, tries: int = 0) -> _Worker:
        self._started += 1
        page = self._folder / str(self._started) if self._folder is not None else None
        mine = ["--host", self._host, "--port", str(self._port), *(["--metrics-socket", str(page)] if page else [])]
        command = [sys.executable, *_warnings(), "-m", "routing.dataplane", *self._arguments, *mine]
        environment = {**os.environ, PARENT: str(os.getpid())}
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        return _Worker(process, page, tries)

    async def _text(self) -> str:
        await self._ask()
        return self._tally.text()

    async def _is_ready(self) -> bool:
        """Once all that were heard have a configuration."""
        said = read_samples(await self._text())
        return any(one.value > 0 for one in said if one.name == "hearth_routing_config_version")

    async def _ask_now_and_then(self) -> None:
        """Also when nobody looks: what a process that is killed had counted since it was asked last is lost."""
        while True:
            await asyncio.sleep(ASK_SECONDS)
            await self._ask()

    async def _ask(self) -> None:
        asked = list(self._running)
        for one, text in zip(asked, await asyncio.gather(*map(_said, asked)), strict=True):
            # One that ended meanwhile was added up already.
            if text is not None and one in self._running and one.process.poll() is None:
                self._tally.hear(one.process.pid, text)


async def _said(worker: _Worker) -> str | None:
    """None while it does not answer: what it said last counts."""
    if worker.page is None:
        return None
    writer = None
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            reader, writer = await asyncio.open_unix_connection(worker.page)
            writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    except (OSError, TimeoutError):
        return None
    finally:
        if writer is not None:
            writer.close()
    whole = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or -1)
    return body.decode() if len(body) == whole else None


def _warnings() -> list[str]:
    return [f"-W{one}" for one in sys.warnoptions]
