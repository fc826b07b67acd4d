"""A router in the test's own loop, with engines behind it, and a client that shows every byte."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from routing.dataplane.router import Router, Shared
from tests.dataplane.engines import Engine, Script, plain

SECRET = "00112233445566778899aabbccddeeff"
PREFIX = {
    "RoutingStrategy": "PREFIX_AWARE",
    "PrefixAwareRoutingConfig": {"PrefixLength": 4096, "ConcurrencyThreshold": 8},
}
LEAST = {"RoutingStrategy": "LEAST_OUTSTANDING_REQUESTS"}
WAIT_SECONDS = 60.0


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """A test that is a coroutine, in a loop of its own, bounded."""

    def wrapped() -> None:
        asyncio.run(asyncio.wait_for(test(), WAIT_SECONDS))

    wrapped.__name__, wrapped.__doc__ = test.__name__, test.__doc__
    return wrapped


@dataclass(slots=True)
class Reply:
    """``whole`` is False when the connection ended before the message did."""

    status: int
    headers: dict[str, str]
    body: bytes
    whole: bool = True


class Wire:
    """A client's connection. Reads answers by the letter of RFC 9112, and nothing else."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def reply(self, *, head: bool = False) -> Reply:
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")[:-2]
        status = int(lines[0].split(" ")[1])
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        if head or status in (204, 304) or status < 200:
            return Reply(status, headers, b"")
        try:
            return Reply(status, headers, await self._body(headers))
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            part = error.partial if isinstance(error, asyncio.IncompleteReadError) else b""
            return Reply(status, headers, part, whole=False)

    async def _body(self, headers: dict[str, str]) -> bytes:
        if headers.get("transfer-encoding") == "chunked":
            parts = []
            while size := int(await self.reader.readuntil(b"\r\n"), 16):
                parts.append(await self.reader.readexactly(size))
                assert await self.reader.readexactly(2) == b"\r\n"
            assert await self.reader.readexactly(2) == b"\r\n", "no trailers"
            return b"".join(parts)
        if "content-length" in headers:
            return await self.reader.readexactly(int(headers["content-length"]))
        return await self.reader.read()

    async def ask(self, method: str, path: str, body: bytes = b"", *headers: str) -> Reply:
        await self.send(request(method, path, body, *headers))
        return await self.reply(head=method == "HEAD")

    async def closed(self) -> bool:
        """Whether the router closed it, having said nothing more."""
        try:
            return await self.reader.read() == b""
        except ConnectionError:
            return True

    def leave(self) -> None:
        self.writer.transport.abort()


def request(method: str, path: str, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: router", *headers]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def chat(text: str, **fields: Any) -> bytes:
    return json.dumps({"model": "chat", "messages": [{"role": "user", "content": text}], **fields}).encode()


@dataclass(slots=True)
class World:
    router: Router
    config: Path
    engines: list[Engine]
    port: int = 0
    version: int = 0
    wires: list[Wire] = field(default_factory=list)

    @property
    def shared(self) -> Shared:
        return self.router.shared

    def publish(self, policy: dict[str, Any] | None = None, **more: Any) -> None:
        """Write the configuration as the control plane does, and put it in force."""
        self.version += 1
        instances = more.pop("instances", None) or [
            {"id": f"pod-{number}", "address": f"127.0.0.1:{engine.port}"} for number, engine in enumerate(self.engines)
        ]
        variant = {"name": "default", "policy": policy or LEAST, "instances": instances, **more}
        self.publish_endpoints([{"name": "chat", "secret": SECRET, "models": ["llama"], "variants": [variant]}])

    def publish_endpoints(self, endpoints: list[dict[str, Any]]) -> None:
        made = self.config.with_suffix(".new")
        made.write_text(json.dumps({"version": self.version, "endpoints": endpoints}))
        made.replace(self.config)
        self.router.refresh()

    def in_flight(self) -> dict[str, int]:
        return dict(self.shared.fleet.endpoints["chat"].variants["default"].in_flight)

    async def wire(self) -> Wire:
        self.wires.append(Wire(*await asyncio.open_connection("127.0.0.1", self.port)))
        return self.wires[-1]

    async def ask(self, method: str, path: str, body: bytes = b"", *headers: str) -> Reply:
        wire = await self.wire()
        reply = await wire.ask(method, path, body, *headers)
        wire.leave()
        return reply


@asynccontextmanager
async def world(
    *scripts: Script, policy: dict[str, Any] | None = None, shared: Shared | None = None
) -> AsyncIterator[World]:
    """A router with one engine for each script, one plain engine without any."""
    with tempfile.TemporaryDirectory(prefix="hearth-router-") as folder:
        engines = [await Engine(script).start() for script in scripts or (plain,)]
        config = Path(folder) / "router.json"
        made = World(Router(config, shared=shared), config, engines)
        made.port = await made.router.start("127.0.0.1", 0)
        made.publish(policy)
        try:
            yield made
        finally:
            for wire in made.wires:
                wire.leave()
            await made.router.stop(grace_seconds=1)
            for engine in engines:
                await engine.stop()


async def until(condition: Callable[[], object], what: str) -> None:
    """As tests.waiting.until, without stopping the loop."""
    deadline = time.monotonic() + WAIT_SECONDS / 2
    while not condition():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.005)


async def every(tasks: list[Awaitable[Any]]) -> list[Any]:
    return list(await asyncio.gather(*tasks))
