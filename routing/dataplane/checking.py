"""Asking instances whether they are well, where nobody else says so: addresses that a person gave.

Each router asks for itself, as it alone knows what it reaches. What it finds counts like what its requests find: two
failures in a row leave an instance out for a while, longer each time, and membership never changes for it.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable

from routing.dataplane.config import InstanceConfig
from routing.dataplane.fleet import Fleet, Instance, Variant
from routing.dataplane.refusals import is_crowded
from routing.domain.health import Failure

CHECK_SECONDS, ANSWER_SECONDS, AT_ONCE = 2.0, 5.0, 32


class Checker:
    """``tls``: whom to trust now. ``now``: a monotonic clock in seconds."""

    def __init__(
        self,
        fleet: Fleet,
        tls: Callable[[], ssl.SSLContext | None] = lambda: None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fleet, self._tls, self._now = fleet, tls, now

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await self.round()
            await asyncio.sleep(CHECK_SECONDS)

    async def round(self) -> None:
        """Ask each of them once."""
        asked = [
            (variant, instance)
            for endpoint in list(self._fleet.endpoints.values())
            for variant in endpoint.variants.values()
            for instance in variant.instances.values()
            if instance.config.check
        ]
        room = asyncio.Semaphore(AT_ONCE)
        await asyncio.gather(*(self._one(variant, instance, room) for variant, instance in asked))

    async def _one(self, variant: Variant, instance: Instance, room: asyncio.Semaphore) -> None:
        async with room:
            well = await is_well(instance.config, self._tls())
        if well:
            variant.succeeded(instance, self._now())
        elif well is not None:
            variant.failed(instance, Failure.CONNECT, self._now())


async def is_well(place: InstanceConfig, tls: ssl.SSLContext | None) -> bool | None:
    """Whether it answers its path below 400 within ANSWER_SECONDS: an engine that loads says 503, and a path that is
    none says 404, which somebody should correct. None: it could not be asked, for want of open files here."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            reader, writer = await asyncio.open_connection(place.host, place.port, ssl=tls if place.tls else None)
            try:
                host = f"[{place.host}]" if ":" in place.host else place.host
                head = f"GET {place.check} HTTP/1.1\r\nHost: {host}:{place.port}\r\nConnection: close\r\n\r\n"
                writer.write(head.encode())
                line = await reader.readuntil(b"\r\n")
            finally:
                writer.transport.abort()
    except (OSError, ValueError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        return None if is_crowded(error) else False
    version, _, rest = line.partition(b" ")
    return version.startswith(b"HTTP/1.") and rest[:3].isdigit() and 200 <= int(rest[:3]) < 400
