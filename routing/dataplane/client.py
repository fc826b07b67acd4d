"""One client's connection: requests are read whole, strictly, one after the other, and answered in their order."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, cast

import httptools

from routing.dataplane.exchange import Exchange
from routing.dataplane.heads import CONTINUE, Header
from routing.dataplane.routes import Refusal, Request, route, too_large

if TYPE_CHECKING:
    from routing.dataplane.router import Shared

log = logging.getLogger(__name__)

HEAD_BYTES, HEADERS = 64 * 1024, 128
HEAD_SECONDS, BODY_SECONDS, IDLE_SECONDS, LINGER_SECONDS = 15.0, 300.0, 75.0, 2.0
AHEAD_REQUESTS = 16  # of a client that sends on without waiting for answers

_FIX = "Correct the request; it was not passed on to any instance."
MALFORMED = Refusal(400, "routing:request:malformed", "this is not HTTP/1.1 as RFC 9112 has it", _FIX)
HEAD_TOO_LARGE = Refusal(431, "routing:request:head-too-large", "at most 64 KiB and 128 headers", _FIX)
TOO_SLOW = Refusal(408, "routing:request:too-slow", "the request did not arrive in time", "Send it again.")
EXPECTATION = Refusal(417, "routing:request:expectation", "only 100-continue can be expected", _FIX)
VERSION = Refusal(505, "routing:request:version", "HTTP/1.1 and HTTP/1.0 are spoken here", _FIX)


class Client(asyncio.Protocol):
    """``deadline``: when the router stops waiting (its own clock), 0 while it is the router that works."""

    def __init__(self, shared: Shared) -> None:
        self.shared = shared
        self.congested = False
        self.deadline = 0.0
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._waiting: deque[tuple[Request | Refusal, bool, bool]] = deque()
        self._exchange: Exchange | None = None
        self._in_head = self._last = self._gave_up = self._paused = False
        self._fresh()

    # what the exchange does

    def write(self, data: list[bytes]) -> None:
        if self._transport is not None:
            self._transport.writelines(data)

    def finished(self, *, keeps: bool) -> None:
        """The answer is written; the next request's turn."""
        self._exchange = None
        if not keeps or (self.shared.stopping and not self._waiting):
            self._last = True
            self._waiting.clear()
            self._leave()
            return
        if self._waiting:
            # Not from here: a thousand requests sent ahead would be a thousand frames deep.
            asyncio.get_running_loop().call_soon(self._proceed)
        self._pace()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def is_overdue(self, now: float) -> bool:
        return 0 < self.deadline < now

    def expire(self) -> None:
        """Somebody waited long enough: a request that began is told so, a silent connection is closed."""
        self.deadline = 0.0
        if self._exchange is None and not self._waiting and self._began and not self._last:
            self._give_up(TOO_SLOW)
        else:
            self.abort()

    def stop(self) -> None:
        """No more requests after those that are here."""
        if self._exchange is None and not self._waiting and not self._began and self._transport is not None:
            self._transport.close()

    # what the loop does

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.shared.clients.add(self)
        self.deadline = self.shared.now() + HEAD_SECONDS

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._last = True
        self._waiting.clear()
        self.shared.clients.discard(self)
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            self.shared.counters.disconnected += 1
            exchange.abandon()

    def pause_writing(self) -> None:
        self.congested = True
        if self._exchange:
            self._exchange.pause()

    def resume_writing(self) -> None:
        self.congested = False
        if self._exchange:
            self._exchange.resume()

    def data_received(self, data: bytes) -> None:
        while data and not self._last:
            try:
                self._count_head(len(data))
                self._parser.feed_data(data)
                break
            except httptools.HttpParserUpgrade as upgrade:
                # The parser stops behind the head and leaves a body unread. The offer is not taken, so the request is
                # read again without it: what follows must not be taken for another request.
                data = self._without_upgrade() + data[int(upgrade.args[0]) :]
                self._parser = httptools.HttpRequestParser(self)
            except httptools.HttpParserError as error:
                if self._refusal is None and isinstance(error, httptools.HttpParserCallbackError):
                    log.exception("a request could not be read")
                self._give_up(self._refusal or MALFORMED)
                break
        self._pace()

    def _count_head(self, size: int) -> None:
        """A line that has not ended yet is held by the parser: count what goes in."""
        if self._in_head:
            self._fed_bytes += size
            if self._fed_bytes > HEAD_BYTES:
                self._refuse(HEAD_TOO_LARGE)

    # what the parser does

    def on_message_begin(self) -> None:
        self._fresh()
        self._began = self._in_head = True
        self.deadline = self.shared.now() + HEAD_SECONDS

    def on_url(self, part: bytes) -> None:
        self._target += part
        self._head_bytes += len(part)
        if self._head_bytes > HEAD_BYTES:
            self._refuse(HEAD_TOO_LARGE)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            return  # a trailer: nothing that this router or an engine would read
        self._headers.append((name, value))
        self._head_bytes += len(name) + len(value)
        if len(self._headers) > HEADERS or self._head_bytes > HEAD_BYTES:
            self._refuse(HEAD_TOO_LARGE)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self.deadline = self.shared.now() + BODY_SECONDS
        if self._parser.should_upgrade() and self._parser.get_method() != b"CONNECT":
            return
        version = self._parser.get_http_version()
        if self._parser.get_method() == b"CONNECT":
            self._refuse(MALFORMED)
        if version not in ("1.1", "1.0"):
            self._refuse(VERSION)
        hosts, length, expects = 0, 0, b""
        for name, value in self._headers:
            lowered = name.lower()
            if lowered == b"host":
                hosts += 1
            elif lowered == b"content-length":
                length = int(value)
            elif lowered == b"transfer-encoding" and version == "1.0":
                self._refuse(MALFORMED)
            elif lowered == b"expect":
                expects = value.strip().lower()
        if hosts > 1 or (hosts == 0 and version == "1.1"):
            self._refuse(MALFORMED)
        if length > self.shared.body_bytes:
            self._refuse(too_large(self.shared.body_bytes))
        if expects and expects != b"100-continue":
            self._refuse(EXPECTATION)
        if expects and version == "1.1" and self._exchange is None and not self._waiting:
            self.write([CONTINUE])

    def on_body(self, data: bytes) -> None:
        self._body.append(data)
        self._body_bytes += len(data)
        if self._body_bytes > self.shared.body_bytes:
            self._refuse(too_large(self.shared.body_bytes))

    def on_message_complete(self) -> None:
        if self._parser.should_upgrade():
            return
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        request = Request(self._parser.get_method(), self._target, self._headers, body)
        newest = self._parser.get_http_version() == "1.1"
        self._fresh()
        self.deadline = 0.0
        self._waiting.append((request, self._parser.should_keep_alive(), newest))
        if self._exchange is None and len(self._waiting) == 1:
            self._proceed()

    # in between

    def _fresh(self) -> None:
        self._target, self._headers, self._body = b"", list[Header](), list[bytes]()
        self._fed_bytes = self._head_bytes = self._body_bytes = 0
        self._began = False
        self._refusal: Refusal | None = None

    def _without_upgrade(self) -> bytes:
        """The head that was just read, without the offer of another protocol."""
        lines = [b"%b %b HTTP/%b" % (self._parser.get_method(), self._target, self._parser.get_http_version().encode())]
        for name, value in self._headers:
            lowered = name.lower()
            if lowered == b"connection":
                tokens = [one.strip() for one in value.split(b",")]
                value = b", ".join(one for one in tokens if one.lower() != b"upgrade")
            if lowered != b"upgrade":
                lines.append(name + b": " + value)
        return b"\r\n".join(lines) + b"\r\n\r\n"

    def _refuse(self, refusal: Refusal) -> None:
        """From within the parser: stop it, and say this."""
        self._refusal = refusal
        raise httptools.HttpParserError(refusal.code)

    def _give_up(self, refusal: Refusal) -> None:
        """What follows on this connection cannot be understood: answer what came before, say why, and close."""
        self._last = self._gave_up = True
        self._waiting.append((refusal, False, True))
        if self._exchange is None and len(self._waiting) == 1:
            self._proceed()

    def _leave(self) -> None:
        """Close. Where something may still be coming the other half stays open for a moment: a connection closed on
        unread bytes is reset, and the answer with it."""
        if self._transport is None:
            return
        if self._gave_up and self._transport.can_write_eof():
            self._transport.write_eof()
            self.deadline = self.shared.now() + LINGER_SECONDS
        else:
            self._transport.close()

    def _proceed(self) -> None:
        if self._exchange is not None or not self._waiting or self._transport is None:
            return
        request, keeps, newest = self._waiting.popleft()
        self.deadline = 0.0
        if isinstance(request, Refusal):
            self._exchange = exchange = Exchange(self, Request(b"", b"", [], b""), keeps=False, chunks=newest)
            exchange.refuse(request)
            return
        self._exchange = exchange = Exchange(self, request, keeps=keeps, chunks=newest)
        found = route(self.shared.fleet, request)
        if isinstance(found, Refusal):
            exchange.refuse(found)
        else:
            exchange.start(found)

    def _pace(self) -> None:
        """Read no further ahead than a few requests; a client that waits may be silent for a while."""
        if self._transport is None or self._transport.is_closing() or self._last:
            return
        if (ahead := len(self._waiting) >= AHEAD_REQUESTS) != self._paused:
            self._paused = ahead
            (self._transport.pause_reading if ahead else self._transport.resume_reading)()
        if self._exchange is None and not self._waiting and not self._began:
            self.deadline = self.shared.now() + IDLE_SECONDS
