"""One request and its answer: decided, sent, tried at the next instance while nothing has come back, passed on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from routing.dataplane.answers import KnownAnswer
from routing.dataplane.fleet import Instance, Lease
from routing.dataplane.heads import LAST_CHUNK, Header, chunk, head_end, passed_on, request_start, response_head
from routing.dataplane.known import Match
from routing.dataplane.queued import MOST_CUT, Queued
from routing.dataplane.refusals import CROWDED, NOBODY, is_crowded, too_slow
from routing.dataplane.routes import Models, Refusal, Request, Route, meant
from routing.dataplane.telling import Ear
from routing.dataplane.upstream import IDLE_CONNECTIONS, Upstream, connected
from routing.domain.deciding import Decision, Outcome
from routing.domain.dialects_usage import TokenUse
from routing.domain.health import WELL, Failure

if TYPE_CHECKING:
    from routing.dataplane.client import Client

ATTEMPTS = 3
JSON: Header = (b"content-type", b"application/json")
_NOBODY = Outcome.NOBODY  # a name in an Enum is looked up for a tenth of a microsecond
QUIET_SECONDS = 600.0  # between two bytes of an answer that began
_TRY_NEXT = frozenset({502, 503, 504})
_WITH_BODY = frozenset({b"POST", b"PUT", b"PATCH"})


class Exchange(Queued):
    """``finished`` of the client is called exactly once, unless the client left first."""

    __slots__ = (
        "_attempts", "_began", "_candidates", "_chunks", "_connecting", "_ear", "_framed", "_heard", "_keeps", "_lease",
        "_out", "_outcome", "_passed", "_timed", "_ttft", "_upstream",
    )  # fmt: skip

    def __init__(self, client: Client, request: Request, keeps: bool, chunks: bool) -> None:
        self._client: Client | None = client
        self._shared = client.shared
        self._request, self._keeps, self._chunks = request, keeps, chunks
        self._route: Route | None = None
        self._candidates: Sequence[str] = ()
        self._passed = 0  # of them
        self._attempts = 0
        self._lease: Lease | None = None
        self._lost = self._placed_at = None
        self._upstream: Upstream | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._out: list[bytes] = []
        self._began = self._framed = self._timed = False
        self._asked_at = 0.0
        self._ttft: float | None = None
        self._ear: Ear | None = None
        self._outcome = _NOBODY
        self._heard = -1, 0.0  # bytes of the answer when it was asked for them last, and since when

    def start(self, route: Route | Refusal | Models) -> None:
        if not isinstance(route, Route):
            return self.refuse(route) if isinstance(route, Refusal) else self._say(200, [JSON], route.body())
        self._route, variant = route, route.variant
        self._asked_at = self._placed_at = now = self._shared.now()
        if variant.waiting.held:
            variant.waiting.look()  # there may be room since just now, and it belongs to those that wait
        decision = variant.decide(route.key, now, len(self._request.body))
        if not variant.waits(decision):
            self._go(route, decision, now)
        elif self._wait(variant, now + variant.config.queue_seconds, now):
            variant.figures.queued += 1

    def _go(self, route: Route, decision: Decision, now: float) -> None:
        self._shared.counters.decided(route, decision)
        self._go_again(route, decision, now)

    def _go_again(self, route: Route, decision: Decision, now: float) -> None:
        """It was counted when it went first."""
        if self._client is not None:
            self._client.answer_by = now + route.variant.config.policy.extensions.first_byte_seconds
        self._outcome, self._candidates = decision.outcome, decision.candidates
        self._attempts = self._passed = 0
        self._next()

    def refuse(self, refusal: Refusal) -> None:
        """The router's own answer, for want of an instance's."""
        headers = [JSON, (b"retry-after", b"%d" % refusal.retry_after)] if refusal.retry_after else [JSON]
        variant = self._route.variant if self._route is not None else meant(self._shared.fleet, self._request)
        self._shared.counters.refused(refusal, variant)
        self._say(refusal.status, headers, refusal.body())

    def _say(self, status: int, headers: list[Header], data: bytes) -> None:
        self.answer_began(status, b"", headers, len(data))
        if self._request.method != b"HEAD":
            self.answer_data(data)
        self._finish()

    def too_slow(self) -> None:
        """No byte of an answer came in time. Nobody else is asked: it would take as long there, and cost twice."""
        if self._began or self._route is None:
            return
        self._let_go()
        seconds = self._route.variant.config.policy.extensions.first_byte_seconds
        self.refuse(too_slow(seconds))

    def is_quiet(self, now: float) -> bool:
        """Asked now and then: whether an answer that began has not gone on for QUIET_SECONDS, though its client takes
        what comes. What came is looked at here alone, so that no piece of an answer costs anything."""
        upstream, client = self._upstream, self._client
        if not self._began or upstream is None or client is None or client.congested:
            self._heard = -1, now
        elif self._heard[0] != upstream.read:
            self._heard = upstream.read, now
        return now - self._heard[1] > QUIET_SECONDS

    def too_quiet(self) -> None:
        """The instance hangs: as if it had broken off."""
        if self._upstream is not None:
            self._upstream.close()
        self.answer_broke()

    def abandon(self) -> None:
        """The client left: the instance is told at once and no longer counted."""
        self._client = None
        self._leave_queue()
        if self._route is not None:
            self._route.variant.figures.disconnected += 1
        self._let_go()

    def _let_go(self) -> None:
        if self._connecting:
            self._connecting.cancel()
        if self._upstream:
            self._upstream.close()
            self._upstream = None
        self._release()

    def pause(self) -> None:
        if self._upstream:
            self._upstream.pause()

    def resume(self) -> None:
        if self._upstream:
            self._upstream.resume()

    # attempts

    def _next(self) -> None:
        """Ask the next candidate, or say that there is none."""
        if self._lease is not None:
            self._release()
        assert self._route is not None
        variant = self._route.variant
        while self._passed < len(self._candidates) and self._attempts < ATTEMPTS:
            name = self._candidates[self._passed]
            self._passed += 1
            if name not in variant.instances:
                continue  # gone since
            self._attempts += 1
            self._lease = lease = variant.lease(name, len(self._request.body))
            self._ask(lease.instance)
            return
        if self._attempts:
            self._upstream = None
            self._unreached()
        else:
            self.refuse(NOBODY)

    def _ask(self, instance: Instance) -> None:
        idle = instance.idle
        while idle:
            upstream = idle.pop()
            if upstream.open:
                self._send(upstream, 0.0)
                return
        self._connecting = asyncio.get_running_loop().create_task(self._connect(instance, self._shared.now()))

    async def _connect(self, instance: Instance, began: float) -> None:
        try:
            upstream = await connected(instance.config, self._shared.upstream_tls)
        except (OSError, ValueError) as error:  # also a TimeoutError, what TLS refuses, and a host that is no name
            self._connecting = None
            if is_crowded(error):
                self._release()
                self.refuse(CROWDED)
                return
            self._failed(instance, Failure.CONNECT)
            self._next()
            self.flush()
        else:
            self._connecting = None
            self._send(upstream, self._shared.now() - began)

    def _send(self, upstream: Upstream, connecting: float) -> None:
        """Over a connection that took so many seconds to be made."""
        route = self._route
        assert route is not None
        self._upstream = upstream
        request = self._request
        body, made = request.body, request.made
        if not made.start:
            made.start = request_start(request.method, route.target, passed_on(request.headers))
        if body:
            data = b"%bcontent-length: %d\r\n\r\n%b" % (made.start, len(body), body)
        else:
            data = made.start + head_end(0 if request.method in _WITH_BODY else None)
        upstream.send(self, data, request.method == b"HEAD")
        if self._client is not None and self._client.congested:
            upstream.pause()
        if self._attempts == 1 and self._placed_at is not None:  # once, and not where another instance was asked before
            route.variant.figures.overhead.add(self._shared.now() - self._placed_at - connecting)
            self._placed_at = None

    def _failed(self, instance: Instance, failure: Failure) -> None:
        assert self._route is not None
        self._route.variant.failed(instance, failure, self._shared.now())
        self._shared.counters.failed(self._route, instance.config.member.id, failure)

    # what the upstream brings

    def answer_began(self, status: int, reason: bytes, headers: list[Header], length: int | None) -> None:
        if self._lease is not None and self._route is not None:
            if status >= 500:
                self._failed(self._lease.instance, Failure.ANSWER)
                if (
                    status in _TRY_NEXT
                    and self._passed < len(self._candidates)
                    and self._attempts < ATTEMPTS
                    and self._upstream
                ):
                    self._upstream.close()
                    self._next()
                    return
            else:
                self._route.variant.succeeded(self._lease.instance, self._shared.now())
            if status < 400 and self._lease.instance.first_at is None:
                self._lease.instance.first_at = time.time()
            self._shared.counters.answered(self._route, status)
            self._timed, self._ear = status < 400, Ear.of(status, headers)
        self._began = True
        if self._client is not None:
            self._client.answer_by = 0.0
        bodiless = self._request.method == b"HEAD" or status in (204, 304)
        self._framed = length is None and not bodiless and self._chunks
        if length is None and not bodiless and not self._chunks:
            self._keeps = False  # the end of the connection is the end of the body
        self._out.append(
            response_head(
                status, reason, passed_on(headers), chunked=self._framed, close=not self._keeps,
                length=None if status == 204 else length,
            )
        )  # fmt: skip

    def answer_data(self, data: bytes) -> None:
        if self._timed and self._route is not None:
            self._timed = False
            self._ttft = self._shared.now() - self._asked_at
            self._route.variant.figures.first_byte(self._outcome.value, self._ttft)
            if self._lease is not None:
                self._lease.answered()
        if self._ear is not None:
            self._ear.hear(data)
        self._out.append(chunk(data) if self._framed else data)

    def answered(self, known: KnownAnswer, match: Match, data: bytes) -> None:
        assert self._lease is not None and self._route is not None
        shared, route, lease = self._shared, self._route, self._lease
        variant, instance, now = route.variant, lease.instance, shared.now()
        if instance.health is not WELL:
            variant.succeeded(instance, now)
        shared.counters.answered(route, known.status)
        body = data[match.end :]
        if body:
            self._ttft = now - self._asked_at
            variant.figures.first_byte(self._outcome._value_, self._ttft)
        if self._upstream is not None and variant.current and len(instance.idle) < IDLE_CONNECTIONS:
            instance.idle.append(self._upstream)  # nearly always; whoever takes it looks whether it is open
            self._upstream = None
        else:
            self._return_upstream()
        self._lease = None
        lease.release()
        client, self._client = self._client, None
        if client is not None:
            client.write(known.head(match, close=not self._keeps) + body)
            client.finished(self._keeps, now)
        # Engines that say nothing of their cache are not listened to for the rest, unless somebody keeps it.
        if known.listens and (b"cache" in body or variant.config.policy.extensions.record_keys):
            self._remember(route, known.use(body), instance.config.member.id)

    def _return_upstream(self) -> None:
        """Keep the connection for another request."""
        upstream = self._upstream
        if upstream is not None and upstream.open and self._lease is not None:
            instance = self._lease.instance
            if len(instance.idle) < IDLE_CONNECTIONS and self._is_current(instance):
                instance.idle.append(upstream)
            else:
                upstream.close()
        self._upstream = None

    def answer_ended(self) -> None:
        self._return_upstream()
        if self._framed:
            self._out.append(LAST_CHUNK)
        served_by = self._lease.instance.config.member.id if self._lease is not None else ""
        self._finish()
        if self._route is not None and self._ear is not None:
            self._remember(self._route, self._ear.use(), served_by)  # the answer is on its way by now

    def _remember(self, route: Route, use: TokenUse | None, served_by: str) -> None:
        if use is not None:
            self._shared.counters.used(route, use)
        if route.variant.config.policy.extensions.record_keys:
            seconds = self._shared.now() - self._asked_at
            route.variant.recorder.keep(route, self._outcome.value, served_by, use, self._ttft, seconds)

    def answer_broke(self) -> None:
        upstream, self._upstream = self._upstream, None
        if self._began:
            # What came is passed on; that it is not all is told by the connection, which ends without its end mark.
            self._shared.counters.truncated += 1
            if self._route is not None:
                self._route.variant.figures.truncated += 1
            self._release()
            self.flush()
            client, self._client = self._client, None
            if client is not None:
                client.cut()
            return
        assert self._lease is not None
        instance = self._lease.instance
        lost = self._cut_off()
        if upstream is not None and upstream.used:
            # It was closed for its age while the request was on its way; the instance has done nothing wrong.
            self._release()
            assert self._route is not None
            name, size = instance.config.member.id, len(self._request.body)
            self._lease = self._route.variant.lease(name, size) if self._is_current(instance) else None
            if self._lease is not None:
                self._ask(instance)
                return
        else:
            self._failed(instance, Failure.CONNECT)
        if lost.cut >= MOST_CUT and lost.waited_after >= 0:
            self._candidates = ()  # others came since it waited, and it brings them down as well
        self._next()

    def flush(self) -> None:
        if self._out and self._client is not None:
            out, self._out = self._out, []
            self._client.write(b"".join(out))

    # the end

    def _is_current(self, instance: Instance) -> bool:
        return self._route is not None and self._shared.fleet.holds(self._route.variant, instance)

    def _finish(self) -> None:
        self._release()
        self.flush()
        if self._client is not None:
            client, self._client = self._client, None
            client.finished(self._keeps, self._shared.now())

    def _release(self) -> None:
        if self._lease is not None:
            self._lease.release()
            self._lease = None
