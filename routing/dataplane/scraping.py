"""Asking engines how they are, under /metrics: one router of all does it, as whoever routes to them reaches them.

What they say is counted with what is counted of their requests. An engine that does not answer in time is silent; it is
not thereby ill, as a busy one is slow.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import time
from collections.abc import Callable
from typing import Any

from routing.dataplane.config import InstanceConfig
from routing.dataplane.fleet import Fleet, Variant
from routing.domain.dialects import EngineReading, read_metrics

SCRAPE_SECONDS, ANSWER_SECONDS = 5.0, 2.0
MOST_BYTES, AT_ONCE = 4 * 1024 * 1024, 16
_LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]{1,12})\r\n", re.IGNORECASE)
Place = tuple[str, str, str]  # endpoint, variant, instance
TURN_KEY = "hearth:routing:asking-engines"


class Scraper:
    """One round after the other, while nobody else's turn it is. ``tls``: whom to trust now."""

    def __init__(self, fleet: Fleet, tls: Callable[[], ssl.SSLContext | None] = lambda: None) -> None:
        self._fleet, self._tls = fleet, tls
        self._before: dict[Place, EngineReading] = {}
        self._round: asyncio.Task[None] | None = None
        self._due = 0.0

    async def turn(self, connection: Any) -> None:
        """Begin a round when one is due and no other router has begun it. Over a connection to Redis."""
        now = time.monotonic()
        if now < self._due or (self._round is not None and not self._round.done()):
            return
        self._due = now + SCRAPE_SECONDS / 2
        if await connection.set(TURN_KEY, "1", nx=True, px=int(1000 * SCRAPE_SECONDS * 0.9)):
            self._due = now + SCRAPE_SECONDS
            self._round = asyncio.get_running_loop().create_task(self.round())

    async def round(self) -> None:
        """Ask every engine once."""
        places = {
            (endpoint.config.name, name, uid): variant
            for endpoint in self._fleet.endpoints.values()
            for name, variant in endpoint.variants.items()
            for uid in variant.instances
        }
        self._before = {place: reading for place, reading in self._before.items() if place in places}
        room = asyncio.Semaphore(AT_ONCE)
        await asyncio.gather(*(self._one(variant, place, room) for place, variant in places.items()))

    def stop(self) -> None:
        if self._round is not None:
            self._round.cancel()

    async def _one(self, variant: Variant, place: Place, room: asyncio.Semaphore) -> None:
        uid = place[2]
        async with room:
            if (instance := variant.instances.get(uid)) is None:
                return
            reading = await self._asked(instance.config)
        if reading is None:
            variant.figures.engine(uid).unheard()
            return
        variant.figures.engine(uid).read(reading, self._before.get(place))
        self._before[place] = reading

    async def _asked(self, place: InstanceConfig) -> EngineReading | None:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                text = await _metrics(place, self._tls())
            # In a thread: an engine of many models says megabytes, and requests must not wait for that.
            return await asyncio.to_thread(_read, text) if text is not None else None
        except (OSError, ValueError, asyncio.IncompleteReadError):
            return None


async def _metrics(place: InstanceConfig, tls: ssl.SSLContext | None) -> bytes | None:
    """What stands there; None where nothing does. HTTP/1.0, so that no answer comes in chunks."""
    reader, writer = await asyncio.open_connection(place.host, place.port, ssl=tls if place.tls else None)
    try:
        host = f"[{place.host}]" if ":" in place.host else place.host
        writer.write(f"GET /metrics HTTP/1.0\r\nHost: {host}:{place.port}\r\nConnection: close\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        length = _LENGTH.search(head)
        wanted = int(length[1]) if length else MOST_BYTES + 1
        if head.split(b" ", 2)[1:2] != [b"200"] or b"chunked" in head.lower() or (length and wanted > MOST_BYTES):
            return None
        parts, size = [], 0
        while size < wanted and (part := await reader.read(65536)):
            parts.append(part)
            size += len(part)
        whole = size >= wanted if length else size <= MOST_BYTES
        return b"".join(parts) if whole else None
    except asyncio.LimitOverrunError:
        return None
    finally:
        writer.transport.abort()


def _read(text: bytes) -> EngineReading:
    # Most of what engines say are histograms, of which nothing is read.
    lines = (line for line in text.decode("utf-8", "replace").split("\n") if "_bucket{" not in line)
    return read_metrics("\n".join(lines))
