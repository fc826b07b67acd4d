"""One connection to an instance: sends a request, reads the answer as it comes, and can be used again after it."""

from __future__ import annotations

import asyncio
import logging
import ssl
from typing import Protocol, cast

import httptools

from routing.dataplane.answers import KnownAnswer
from routing.dataplane.config import InstanceConfig
from routing.dataplane.heads import Header
from routing.dataplane.known import Match

log = logging.getLogger(__name__)

CONNECT_SECONDS = 2.0
IDLE_CONNECTIONS = 256  # kept for each instance
HEADS_TRIED = 4  # of a connection whose answers never begin alike
LONGEST = 256 * 1024  # bytes of heads, interim answers, extensions of chunks or trailers in a row
_NO_BODY = frozenset({204, 304})


class Receiver(Protocol):
    """Who gets an answer: head, data, and exactly one of ended and broke; ``flush`` follows what one read brought. Or
    all of it at once: ``data`` is a whole answer, and what follows it is nothing."""

    def answered(self, known: KnownAnswer, match: Match, data: bytes) -> None: ...
    def answer_began(self, status: int, reason: bytes, headers: list[Header], length: int | None) -> None: ...
    def answer_data(self, data: bytes) -> None: ...
    def answer_ended(self) -> None: ...
    def answer_broke(self) -> None: ...
    def flush(self) -> None: ...


class Upstream(asyncio.Protocol):
    """``used`` tells whether an answer came over it before: such a connection may have died of age unseen."""

    def __init__(self) -> None:
        self.used = False
        self._known: KnownAnswer | None = None
        self._tried = 0
        self._receiver: Receiver | None = None
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._without_body = self._until_close = self._keeps = False
        self._ended = self._broken = False
        self.read = self._passed = 0  # bytes of this answer, and how many when something of it was passed on last

    # what the exchange does

    @property
    def open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def send(self, receiver: Receiver, data: bytes, without_body: bool) -> None:
        """``without_body``: the answer to HEAD has none, whatever its head says."""
        assert self._transport is not None
        self._receiver, self._without_body = receiver, without_body
        self._parser = None
        self._transport.write(data)

    def pause(self) -> None:
        if self._transport and self.open:
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport and self.open:
            self._transport.resume_reading()

    def close(self) -> None:
        """At once: the engine sees it and stops computing for nobody."""
        self._receiver = None
        if self._transport:
            self._transport.abort()

    # what the loop does

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        receiver = self._receiver
        if receiver is None:
            self.close()  # it speaks without being asked: nothing that follows could be trusted
            return
        if first := self._parser is None:
            if (known := self._known) is not None and not self._without_body:
                match = known.pattern.match(data)
                if match is not None and match.end + match.length == len(data):
                    self._receiver, self.used = None, True
                    receiver.answered(known, match, data)
                    return
            self._begin()
        assert self._parser is not None
        try:
            if self.read - self._passed > LONGEST:  # the parser keeps lines that do not end
                raise httptools.HttpParserError("an instance sends lines without end")
            self.read += len(data)
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if isinstance(error, httptools.HttpParserCallbackError):
                log.exception("an answer could not be passed on")
            self._keeps, self._broken = False, not self._ended
        # Only now, outside of the parser: what follows may be the next request on this very connection.
        if self._receiver is not None and self._ended:
            if first and self._keeps and self._known is None and self._tried < HEADS_TRIED:
                self._learn(data)
            self._end(receiver)
        elif self._receiver is not None and self._broken:
            self._break(receiver)
        receiver.flush()

    def _begin(self) -> None:
        self._until_close = self._keeps = self._ended = self._broken = False
        self.read = self._passed = 0
        self._parser = httptools.HttpResponseParser(self)

    def _learn(self, data: bytes) -> None:
        """One read brought a whole answer: the next one may begin with the same head."""
        assert self._parser is not None
        self._tried += 1
        self._known = KnownAnswer.of(data, self._parser.get_status_code(), self._reason, self._headers)

    def connection_lost(self, exc: Exception | None) -> None:
        receiver = self._receiver
        if receiver is None:
            return
        if self._parser is not None and self._until_close and exc is None:
            self._end(receiver)
        else:
            self._break(receiver)
        receiver.flush()

    # what the parser does

    def on_message_begin(self) -> None:
        if self._ended:
            self._keeps = False  # more than was asked for
        self._headers: list[Header] = []
        self._reason = b""

    def on_status(self, reason: bytes) -> None:
        self._reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        status = self._parser.get_status_code()
        if self._receiver is None or self._ended or 100 <= status < 200:
            self._broken = self._broken or status == 101  # nobody asked for another protocol
            return  # an interim answer; the real one follows
        length, framed = None, False
        for name, value in self._headers:
            lowered = name.lower()
            if lowered == b"content-length":
                length, framed = int(value), True
            elif lowered == b"transfer-encoding":
                framed = True
        bodiless = self._without_body or status in _NO_BODY
        self._until_close = not framed and not bodiless
        # The parser would wait for the body that a head without one announces.
        self._keeps = self._parser.should_keep_alive() and not self._until_close and not (bodiless and framed)
        self._receiver.answer_began(status, self._reason, self._headers, length)
        self._ended = bodiless

    def on_body(self, data: bytes) -> None:
        self._passed = self.read
        if self._receiver is not None and not self._ended:
            self._receiver.answer_data(data)

    def on_message_complete(self) -> None:
        assert self._parser is not None
        if not 100 <= self._parser.get_status_code() < 200:
            self._ended = True

    def _end(self, receiver: Receiver) -> None:
        self._receiver, self.used = None, True
        if not self._keeps and self._transport:
            self._transport.close()
        receiver.answer_ended()

    def _break(self, receiver: Receiver) -> None:
        self._receiver = None
        if self._transport:
            self._transport.abort()
        receiver.answer_broke()


async def connected(config: InstanceConfig, context: ssl.SSLContext | None) -> Upstream:
    """A new connection. Raises OSError, or TimeoutError after CONNECT_SECONDS."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(CONNECT_SECONDS):
        _, upstream = await loop.create_connection(
            Upstream, config.host, config.port, ssl=context if config.tls else None
        )
    return upstream
