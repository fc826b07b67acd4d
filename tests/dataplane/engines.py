"""A stand-in for engines: a real server on loopback that answers as the test says, and keeps what it got.

No model runs in it. What it sends is whole, in chunks, broken off or wrong.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from routing.dataplane.listening import let_in_no_more

Script = Callable[["Call"], Awaitable[None]]


@dataclass(slots=True)
class Call:
    """One request as it arrived, and the wires to answer on."""

    head: bytes
    body: bytes
    writer: asyncio.StreamWriter

    @property
    def line(self) -> bytes:
        return self.head.partition(b"\r\n")[0]

    def header(self, name: str) -> list[str]:
        lines = self.head.decode("latin-1").split("\r\n")[1:]
        return [value.strip() for key, _, value in (line.partition(":") for line in lines) if key.lower() == name]

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self, body: bytes = b"{}", status: bytes = b"200 OK", *headers: bytes) -> None:
        lines = [b"HTTP/1.1 " + status, b"content-length: %d" % len(body), *headers]
        await self.send(b"\r\n".join(lines) + b"\r\n\r\n" + body)


async def plain(call: Call) -> None:
    await call.answer()


@dataclass(slots=True)
class Engine:
    """``calls`` in the order of arrival; ``open`` connections now; ``gone`` is set when a client left mid-answer."""

    script: Script = plain
    calls: list[Call] = field(default_factory=list)
    open: int = 0
    accepted: int = 0
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    port: int = 0
    _server: asyncio.Server | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _held: socket.socket | None = None

    async def start(self, port: int = 0, tls: ssl.SSLContext | None = None) -> Engine:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port, ssl=tls, reuse_port=True)
        self.port = self._server.sockets[0].getsockname()[1]
        self._let_go()
        return self

    async def stop(self, *, for_now: bool = False) -> None:
        """As if the process were killed: nobody listens and every connection is cut. ``for_now``: it is started again
        at the same port, which nobody else gets meanwhile."""
        self._let_go()
        server, self._server = self._server, None
        if server is None:
            return
        if for_now:
            self._held = socket.socket()
            self._held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            self._held.bind(("127.0.0.1", self.port))
        await let_in_no_more(server)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await server.wait_closed()

    def _let_go(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            held.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if self._server is None:
            writer.transport.abort()  # let in by one that was killed meanwhile
            return
        self._tasks.add(task)
        self.open += 1
        self.accepted += 1
        try:
            while await self._one(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self.open -= 1
            self._tasks.discard(task)
            writer.transport.abort()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request; whether another may follow."""
        call = Call(await reader.readuntil(b"\r\n\r\n"), b"", writer)
        call.body = await reader.readexactly(int((call.header("content-length") or ["0"])[0]))
        self.calls.append(call)
        # What comes while an answer is on its way can only be the end of the connection.
        ended = asyncio.ensure_future(reader.read(1))
        answer = asyncio.ensure_future(self.script(call))
        try:
            await asyncio.wait((ended, answer), return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                self.gone.set()
            return answer.done() and not ended.done() and not writer.is_closing()
        finally:
            ended.cancel()
            answer.cancel()
            await asyncio.gather(ended, answer, return_exceptions=True)
