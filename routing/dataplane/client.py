"""One client's connection: requests are read whole, strictly, one after the other, and answered in their order."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, cast

import httptools

from routing.dataplane.exchange import Exchange
from routing.dataplane.heads import CONTINUE, Header, without_upgrade
from routing.dataplane.known import KnownRequest, pattern_of
from routing.dataplane.refusals import EXPECTATION, FULL, HEAD_TOO_LARGE, MALFORMED, TOO_SLOW, VERSION
from routing.dataplane.routes import Refusal, Request, route, too_large

if TYPE_CHECKING:
    from routing.dataplane.router import Shared

log = logging.getLogger(__name__)

HEAD_BYTES, HEADERS = 64 * 1024, 128
HEAD_SECONDS, BODY_SECONDS, IDLE_SECONDS, LINGER_SECONDS = 15.0, 300.0, 75.0, 2.0
UNREAD_SECONDS = 300.0  # of a client that takes nothing of what it asked for
TURNED_AWAY = 256  # clients beyond the most that a router serves who are told so; more are cut
AHEAD_REQUESTS, AHEAD_BYTES = 16, 8 * 1024 * 1024  # of a client that sends on without waiting for answers
HEADS_TRIED = 4  # of a connection whose requests never begin alike

# Heads that say how the message goes on in another way than by a length, or are answered before it is whole.
_NEVER_KNOWN = frozenset({b"transfer-encoding", b"expect", b"upgrade"})


class Client(asyncio.Protocol):
    """``deadline``: when the router stops waiting for the client (its own clock), 0 while it is the router that works;
    ``answer_by``: when it stops waiting for an instance's first byte, 0 while it does not. ``read_by``: until when the
    client must have taken some of what waits for it."""

    def __init__(self, shared: Shared) -> None:
        self.shared = shared
        self.congested = False
        self.deadline = self.answer_by = self.read_by = 0.0
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._waiting: deque[tuple[Request | Refusal, bool, bool]] = deque()
        self._exchange: Exchange | None = None
        self._in_head = self._last = self._gave_up = self._paused = False
        self._known: KnownRequest | None = None
        self._raw, self._tail, self._tried, self._missing, self._unread = b"", b"", 0, 0, 0
        self._fresh()

    # what the exchange does

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def finished(self, keeps: bool, now: float) -> None:
        """The answer is written; the next request's turn."""
        self._exchange = None
        self.answer_by = 0.0
        if not keeps or (self.shared.stopping and not self._waiting):
            self._last = True
            self._waiting.clear()
            self._leave()
            return
        if not self._waiting and not self._began and not self._paused:
            self.deadline = now + IDLE_SECONDS  # nearly always; as _pace
            return
        if self._waiting:
            # Not from here: a thousand requests sent ahead would be a thousand frames deep.
            asyncio.get_running_loop().call_soon(self._proceed)
        elif self._owes_continue:
            self._continue()
        self._pace(now)

    def cut(self) -> None:
        """An instance broke its answer off: it is the router that leaves."""
        self._exchange, self._last = None, True
        self._waiting.clear()
        self.abort()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def is_overdue(self, now: float) -> bool:
        """Asked now and then: a client that took something since the last time has all its time again."""
        if self.read_by and self._transport is not None:
            before, self._unread = self._unread, self._transport.get_write_buffer_size()
            if self._unread < before:
                self.read_by = now + UNREAD_SECONDS if self._unread else 0.0
        if self._exchange is not None and self._exchange.is_quiet(now):
            return True
        return 0 < self.deadline < now or 0 < self.answer_by < now or 0 < self.read_by < now

    def expire(self, now: float) -> None:
        """Somebody waited long enough: an instance that says nothing is left, a request that began and does not go on
        is told so behind the answers that it waits for, a connection is closed that is silent or takes nothing."""
        if 0 < self.read_by < now:
            self.abort()
            return
        if self._exchange is not None and self._exchange.is_quiet(now):
            self._exchange.too_quiet()
            return
        if 0 < self.answer_by < now and self._exchange is not None:
            self.answer_by = 0.0
            self._exchange.too_slow()
        if not 0 < self.deadline < now:
            return
        self.deadline = 0.0
        if self._began and not self._last:
            self._give_up(TOO_SLOW)
        elif self._exchange is not None or self._transport is None:
            return
        elif self._gave_up or not self._transport.get_write_buffer_size():
            self.abort()
        else:  # it is not idle: it still reads
            self.deadline = now + IDLE_SECONDS
            if not self.read_by:
                self._expect_reading()

    def stop(self) -> None:
        """No more requests after those that are here."""
        if self._exchange is None and not self._waiting and not self._began and self._transport is not None:
            self._transport.close()

    # what the loop does

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        shared = self.shared
        shared.clients.add(self)
        self.deadline = shared.now() + HEAD_SECONDS
        if len(shared.clients) > shared.most_clients:
            # Nothing of what it sends is read. Those who are being told so are bounded as well.
            if len(shared.clients) > shared.most_clients + TURNED_AWAY:
                self.abort()
            else:
                self._give_up(FULL)

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
        self._expect_reading()
        if self._exchange:
            self._exchange.pause()

    def resume_writing(self) -> None:
        self.congested = False
        if self._transport is not None and not self._transport.is_closing():
            self.read_by = 0.0
        if self._exchange:
            self._exchange.resume()

    def _expect_reading(self) -> None:
        if self._transport is not None:
            self._unread = self._transport.get_write_buffer_size()
            self.read_by = self.shared.now() + UNREAD_SECONDS

    def data_received(self, data: bytes) -> None:
        if self._last:
            return
        if self._missing:
            self._go_on(data)
        elif self._known is None or self._began or self._exchange is not None or not self._again(self._known, data):
            self._parse(data)

    def _again(self, known: KnownRequest, data: bytes) -> bool:
        """Whether it began with the head that is known; what follows it is a body of a known length, or the start."""
        if (match := known.pattern.match(data)) is None or match.length > self.shared.body_bytes or self._waiting:
            return False
        missing = match.length - (len(data) - match.end)
        if missing < 0:
            return False  # the next request came with it
        if missing == 0:
            _, method, target, headers, keeps, made = known
            self._start(Request(method, target, headers, data[match.end :], made), keeps, True)
            return True
        self._missing, self._began = missing, True
        self._body, self._body_bytes = [data[match.end :]], len(data) - match.end
        self.deadline = self.shared.now() + BODY_SECONDS
        return True

    def _go_on(self, data: bytes) -> None:
        """With the body behind a known head."""
        part = data[: self._missing]
        self._body.append(part)
        self._missing -= len(part)
        if self._missing == 0 and self._known is not None:
            body = b"".join(self._body)
            self._fresh()
            _, method, target, headers, keeps, made = self._known
            self._start(Request(method, target, headers, body, made), keeps, True)
            if len(data) > len(part):
                self._parse(data[len(part) :])

    def _parse(self, data: bytes) -> None:
        # Only a head that one read brought whole can be known again.
        self._raw = b"" if self._began or self._waiting or self._tried >= HEADS_TRIED else data
        while data and not self._last:
            try:
                self._count_head(data)
                self._parser.feed_data(data)
                self._tail = (self._tail + data[-3:])[-3:]
                break
            except httptools.HttpParserUpgrade as upgrade:
                # The parser stops behind the head and leaves a body unread. The offer is not taken, so the request is
                # read again without it: what follows must not be taken for another request.
                self._raw = b""
                version = self._parser.get_http_version().encode()
                head = without_upgrade(self._parser.get_method(), self._target, version, self._headers)
                data = head + data[int(upgrade.args[0]) :]
                self._parser = httptools.HttpRequestParser(self)
            except httptools.HttpParserError as error:
                if self._refusal is None and isinstance(error, httptools.HttpParserCallbackError):
                    log.exception("a request could not be read")
                self._give_up(self._refusal or MALFORMED)
                break
        self._pace(self.shared.now())

    def _count_head(self, data: bytes) -> None:
        """A line that has not ended yet is held by the parser: count what goes in. Behind the head it is what brings
        nothing of the body, extensions of chunks and trailers."""
        if not self._began and not self._in_head:
            return
        of_head = 0
        if self._in_head:  # a body may come with its end, which may have begun in the read before
            end = (self._tail + data[:HEAD_BYTES]).find(b"\r\n\r\n")
            of_head = len(data) if end < 0 else end + 4 - len(self._tail)
        if self._fed_bytes + of_head > HEAD_BYTES:
            self._refuse(HEAD_TOO_LARGE)
        self._fed_bytes += len(data)

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
        if expects and version == "1.1":
            self._owes_continue = True
            if self._exchange is None and not self._waiting:
                self._continue()

    def _continue(self) -> None:
        """Once it is its turn: what comes before it in the stream is the answer to another request."""
        self._owes_continue = False
        self.write(CONTINUE)

    def on_body(self, data: bytes) -> None:
        self._owes_continue = False  # it did not wait
        self._fed_bytes = 0
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
        if self._raw and newest:
            self._learn(request)
        self._fresh()
        self.deadline = 0.0
        self._waiting.append((request, self._parser.should_keep_alive(), newest))
        if self._exchange is None and len(self._waiting) == 1:
            self._proceed()

    # in between

    def _learn(self, request: Request) -> None:
        raw, self._raw = self._raw, b""  # what follows in the same read is another request
        self._tried += 1
        pattern = pattern_of(raw[: raw.find(b"\r\n\r\n") + 4])
        match = pattern.match(raw) if pattern is not None else None
        names = {name.lower() for name, _ in request.headers}
        if pattern is None or match is None or match.length != len(request.body) or names & _NEVER_KNOWN:
            return
        if not raw.startswith(b"%b %b HTTP/1.1\r\n" % (request.method, request.target)):
            return  # empty lines came before it
        self._known = KnownRequest(
            pattern, request.method, request.target, request.headers, self._parser.should_keep_alive(), request.made
        )

    def _fresh(self) -> None:
        self._target, self._headers, self._body = b"", list[Header](), list[bytes]()
        self._fed_bytes = self._head_bytes = self._body_bytes = 0
        self._began = self._owes_continue = False
        self._refusal: Refusal | None = None

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
            self.deadline = 0.0
            self._expect_reading()
            self._transport.close()  # once it has taken all

    def _proceed(self) -> None:
        if self._exchange is not None or not self._waiting or self._transport is None:
            return
        request, keeps, newest = self._waiting.popleft()
        self._start(request, keeps, newest)

    def _start(self, request: Request | Refusal, keeps: bool, newest: bool) -> None:
        self.deadline = 0.0
        if isinstance(request, Refusal):
            head = (self._target, self._headers) if self._began and not self._in_head else (b"", list[Header]())
            self._exchange = exchange = Exchange(self, Request(b"", *head, b""), False, newest)
            exchange.refuse(request)
            return
        self._exchange = exchange = Exchange(self, request, keeps, newest)
        exchange.start(route(self.shared.fleet, request))

    def _pace(self, now: float) -> None:
        """Read no further ahead than a few requests; a client that waits may be silent for a while."""
        if self._transport is None or self._last or self._transport.is_closing():
            return
        if (self._waiting or self._paused) and (ahead := self._is_far_ahead()) != self._paused:
            self._paused = ahead
            (self._transport.pause_reading if ahead else self._transport.resume_reading)()
        if self._exchange is None and not self._waiting and not self._began:
            self.deadline = now + IDLE_SECONDS

    def _is_far_ahead(self) -> bool:
        held = sum(len(one.body) for one, _, _ in self._waiting if isinstance(one, Request))
        return len(self._waiting) >= AHEAD_REQUESTS or held > AHEAD_BYTES
