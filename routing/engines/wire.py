"""HTTP/1.1 as an engine needs it: one request at a time on a connection, answers whole or as server-sent events.

For loopback. Whoever leaves is noticed at once and what is computed for them is cancelled, as engines do.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, cast

import httptools

log = logging.getLogger(__name__)
BODY_BYTES = 64 * 1024 * 1024
Answer = Callable[["Asked", "Reply"], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Asked:
    """One request; ``path`` without its query."""

    method: str
    path: str
    body: bytes


class Refused(Exception):
    """The answer is an error in OpenAI's shape."""

    def __init__(self, status: int, message: str, code: str = "invalid_request_error") -> None:
        super().__init__(message)
        self.status, self.code = status, code


class Reply:
    """The answer to one request: ``whole`` once, or ``begin``, ``event`` as often as needed, ``end``."""

    def __init__(self, connection: Connection, keeps: bool, headers: Mapping[str, str]) -> None:
        self._connection, self._keeps, self._headers = connection, keeps, headers
        self.began = False

    async def whole(self, status: int, document: Any) -> None:
        await self.text(status, json.dumps(document), "application/json")

    async def text(self, status: int, text: str, content_type: str = "text/plain; charset=utf-8") -> None:
        data = text.encode()
        await self._connection.send(self._head(status, content_type, f"content-length: {len(data)}") + data)

    async def begin(self) -> None:
        await self._connection.send(self._head(200, "text/event-stream", "transfer-encoding: chunked"))

    async def event(self, document: Any) -> None:
        await self._chunk(f"data: {json.dumps(document)}\n\n".encode())

    async def end(self) -> None:
        await self._chunk(b"data: [DONE]\n\n")
        await self._connection.send(b"0\r\n\r\n")

    async def _chunk(self, data: bytes) -> None:
        await self._connection.send(b"%x\r\n%b\r\n" % (len(data), data))

    def _head(self, status: int, content_type: str, framing: str) -> bytes:
        self.began = True
        lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", f"content-type: {content_type}", framing]
        lines += [f"{name}: {value}" for name, value in self._headers.items()]
        if not self._keeps:
            lines.append("connection: close")
        return "\r\n".join(lines).encode() + b"\r\n\r\n"


class Connection(asyncio.Protocol):
    """``headers`` are in every answer; ``open_ones`` has it for as long as it is open."""

    def __init__(self, answer: Answer, headers: Mapping[str, str], open_ones: set[Connection]) -> None:
        self._answer, self._headers, self._open_ones = answer, headers, open_ones
        self._parser = httptools.HttpRequestParser(self)
        self._waiting: deque[tuple[Asked, bool]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._target, self._body, self._body_bytes = b"", list[bytes](), 0

    async def send(self, data: bytes) -> None:
        await self._may_write.wait()
        self._transport.write(data)

    # what the loop does

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._open_ones.add(self)

    def abort(self) -> None:
        """Cut it off."""
        self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._open_ones.discard(self)
        self._may_write.set()
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._transport.abort()

    # what the parser does

    def on_message_begin(self) -> None:
        self._target, self._body, self._body_bytes = b"", [], 0

    def on_url(self, part: bytes) -> None:
        self._target += part

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"expect":
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, data: bytes) -> None:
        self._body.append(data)
        self._body_bytes += len(data)
        if self._body_bytes > BODY_BYTES:
            raise httptools.HttpParserError("the body is too large")

    def on_message_complete(self) -> None:
        path = self._target.partition(b"?")[0].decode("latin-1")
        asked = Asked(self._parser.get_method().decode("latin-1"), path, b"".join(self._body))
        self._waiting.append((asked, self._parser.should_keep_alive()))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._work())

    async def _work(self) -> None:
        """Answer what waits, in its order."""
        try:
            while self._waiting:
                asked, keeps = self._waiting.popleft()
                await self._one(asked, Reply(self, keeps, self._headers))
                if not keeps:
                    self._transport.close()
                    return
        finally:
            self._task = None

    async def _one(self, asked: Asked, reply: Reply) -> None:
        try:
            await self._answer(asked, reply)
        except Refused as error:
            told = {"message": str(error), "type": error.code, "code": error.status}
            await reply.whole(error.status, {"error": told})
        except Exception:
            log.exception("an answer failed")
            self._transport.abort()  # a reader sees that it is not whole
