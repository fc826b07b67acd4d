"""What a router tells the control plane every two seconds: counts and durations, what is in flight, heavy beginnings.

One message is on its way at a time, and is sent again with its number until it arrived: whoever reads it twice knows.
Without Redis the counts go on adding up here, in constant memory.
"""

from __future__ import annotations

import json
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

from routing.dataplane.fleet import Fleet, Variant
from routing.dataplane.heads import Header
from routing.domain.dialects_usage import TAIL_BYTES, TokenUse, use_of_body, use_of_stream
from routing.domain.recordings import MOST_MESSAGES, RECORDED_MINUTES, key_of_stream

TELL_SECONDS = 2.0
STREAM_KEY, STREAM_MESSAGES = "hearth:routing:figures", 4000


class Ear:
    """Listens for the numbers at the end of an answer, and forgets everything else of it."""

    __slots__ = ("_parts", "_size", "_stream")

    def __init__(self, *, stream: bool) -> None:
        self._parts: list[bytes] = []
        self._size = 0
        self._stream = stream

    @staticmethod
    def of(status: int, headers: list[Header]) -> Ear | None:
        """None for an answer that could not tell: an error, one that is packed, one that is no JSON and no stream."""
        if not 200 <= status < 300:
            return None
        kind = b""
        for name, value in headers:
            lowered = name.lower()
            if lowered == b"content-encoding":
                return None
            if lowered == b"content-type":
                kind = value.lower()
        if kind.startswith(b"text/event-stream"):
            return Ear(stream=True)
        return Ear(stream=False) if kind.startswith(b"application/json") else None

    def hear(self, data: bytes) -> None:
        self._parts.append(data)
        self._size += len(data)
        if self._size > 2 * TAIL_BYTES:
            # A whole answer that is longer is not read for two numbers: it stays too long, whatever follows.
            self._parts = [b"".join(self._parts)[-TAIL_BYTES:]] if self._stream else []
            self._size = TAIL_BYTES if self._stream else 2 * TAIL_BYTES

    def use(self) -> TokenUse | None:
        """After the last byte."""
        data = b"".join(self._parts)
        if not data:
            return None
        return use_of_stream(data) if self._stream else use_of_body(data)


class Teller:
    """Gives one message after the other; ``arrived`` says that the last one did."""

    def __init__(
        self, fleet: Fleet, *, host: str = "", address: str = "", wall: Callable[[], float] = time.time
    ) -> None:
        self.name = uuid4().hex
        self._fleet, self._wall = fleet, wall
        self._host, self._address = host or socket.gethostname(), address
        self._started_at = wall()
        self._number = 0
        self._pending: bytes | None = None
        self._due = 0.0

    def message(self, now: float) -> bytes | None:
        """What is to be sent now; None while nothing is due. ``now`` in seconds of a monotonic clock."""
        if self._pending is None:
            if now < self._due:
                return None
            self._due = now + TELL_SECONDS
            self._number += 1
            self._pending = json.dumps(self._document()).encode()
        return self._pending

    def arrived(self) -> None:
        self._pending = None

    async def tell(self, connection: Any) -> None:
        """Over a connection to Redis. Raises its errors; the message is kept then."""
        message = self.message(time.monotonic())
        if message is not None:
            await connection.xadd(STREAM_KEY, {"m": message}, maxlen=STREAM_MESSAGES, approximate=True)
            self.arrived()
            await self._tell_recorded(connection)

    async def _tell_recorded(self, connection: Any) -> None:
        """What is recorded is a sample: what does not arrive is lost, and nothing is sent twice."""
        for endpoint, name, variant in self._variants():
            if (message := variant.recorder.take()) is not None and variant.config.policy.extensions.record_keys:
                key = key_of_stream(endpoint, name)
                await connection.xadd(key, {"m": message}, maxlen=MOST_MESSAGES, approximate=True)
                oldest = int(1000 * (self._wall() - 60 * RECORDED_MINUTES))
                await connection.xtrim(key, minid=max(oldest, 0), approximate=False)
                await connection.expire(key, 60 * RECORDED_MINUTES)

    def _document(self) -> dict[str, Any]:
        in_flight: Counter[str] = Counter()
        ejected: set[str] = set()
        firsts: dict[str, float] = {}
        told = []
        for endpoint, name, variant in self._variants():
            in_flight.update(variant.part().in_flight)
            ejected.update(variant.ejected(time.monotonic()))
            firsts.update(variant.firsts())
            figures = variant.figures.take()
            counted = variant.sketch.take()
            one: dict[str, Any] = {"endpoint": endpoint, "variant": name}
            if shown := figures.to_json():
                one["figures"] = shown
            if counted.requests:
                one["counted"] = {
                    "requests": counted.requests,
                    "counts": {f"{digest:016x}": count for digest, count in counted.counts.items()},
                }
            if len(one) > 2:
                told.append(one)
        return {
            "router": self.name,
            "host": self._host,
            "address": self._address,
            "started_at": self._started_at,
            "number": self._number,
            "config_version": self._fleet.config.version,
            "in_flight": dict(in_flight),
            "ejected": sorted(ejected),
            "firsts": firsts,
            "variants": told,
        }

    def _variants(self) -> Iterator[tuple[str, str, Variant]]:
        for endpoint in self._fleet.endpoints.values():
            for name, variant in endpoint.variants.items():
                yield endpoint.config.name, name, variant
