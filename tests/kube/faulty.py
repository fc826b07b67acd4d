"""A proxy in front of a real API server that misbehaves on request: refuses, hangs, cuts, or falls silent."""

from __future__ import annotations

import select
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import urllib3

from controlplane.clusters.kubernetes.access import Access
from controlplane.clusters.kubernetes.client import KubeClient

STEP_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Answer:
    """Answered by the proxy itself."""

    status: int
    body: bytes = b'{"kind":"Status","message":"as the test wants it"}'
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Hang:
    """Nothing is answered until the proxy ends."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The connection is closed: before the answer, or after so many of its bytes."""

    after_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Silence:
    """The head and so many bytes come through, then nothing more: a connection that was cut without a word."""

    after_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Held:
    """``answered`` by the server at once, and told when ``until`` is set."""

    until: threading.Event
    answered: threading.Event = field(default_factory=threading.Event)


Fault = Answer | Hang | Cut | Silence | Held
Rule = Callable[[str, str], Fault | None]


class FaultyProxy:
    """``rule(method, path)`` decides about each request; None passes it on. ``seen`` has all of them in order."""

    def __init__(self, upstream: Access) -> None:
        self.rule: Rule = lambda method, path: None
        self.seen: list[tuple[str, str]] = []
        self.ahead = timedelta(0)  # how far the server's clock seems to be ahead
        self.ending = threading.Event()
        self._upstream, self._pool = upstream, upstream.pool()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                proxy.handle(self)

            do_GET = do_POST = do_PATCH = do_DELETE = do_PUT = handle_any

            def log_message(self, format: str, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False
            request_queue_size = 128  # many begin at once, and a busy machine accepts late

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(STEP_SECONDS,), daemon=True)
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"

    def client(self, **options: Any) -> KubeClient:
        """A client that goes through here."""
        access = Access(server=self.address, authorization=lambda again: "")
        return KubeClient(lambda: access, **options)

    def paths(self, method: str, part: str) -> list[str]:
        """The requests so far of a method whose path has the part in it."""
        return [path for verb, path in list(self.seen) if verb == method and part in path]

    def handle(self, request: BaseHTTPRequestHandler) -> None:
        self.seen.append((request.command, request.path))
        body = request.rfile.read(int(request.headers.get("Content-Length", 0))) or None
        fault = self.rule(request.command, request.path)
        if isinstance(fault, Answer):
            self._head(request, fault.status, {**fault.headers, "Content-Length": str(len(fault.body))})
            request.wfile.write(fault.body)
            return
        if isinstance(fault, Hang):
            self.ending.wait(60)
        if isinstance(fault, Hang) or fault == Cut():
            request.close_connection = True
            return
        self._pass(request, body, fault)

    def _pass(self, request: BaseHTTPRequestHandler, body: bytes | None, fault: Fault | None) -> None:
        headers = {n: v for n, v in request.headers.items() if n.lower() in ("accept", "content-type", "user-agent")}
        if authorization := self._upstream.authorization(False):
            headers["Authorization"] = authorization
        try:
            answer = self._pool.request(
                request.command, self._upstream.server + request.path, body=body, headers=headers,
                timeout=urllib3.Timeout(connect=30, read=60), retries=False, redirect=False, preload_content=False,
            )  # fmt: skip
        except urllib3.exceptions.HTTPError:
            request.close_connection = True  # as if nobody stood between
            return
        if isinstance(fault, Held):
            answer.read(cache_content=True)
            fault.answered.set()
            fault.until.wait(60)
        try:
            kept = {n: v for n, v in answer.headers.items() if n.lower() in ("content-type", "retry-after")}
            kept["Date"] = format_datetime(datetime.now(UTC) + self.ahead, usegmt=True)
            request.close_connection = True
            self._head(request, answer.status, {**kept, "Connection": "close"})
            self._copy(request, answer, fault)
        except (OSError, urllib3.exceptions.HTTPError):
            pass  # whoever asked has gone, or whoever answered
        finally:
            answer.close()

    def _copy(self, request: BaseHTTPRequestHandler, answer: urllib3.BaseHTTPResponse, fault: Fault | None) -> None:
        left = fault.after_bytes if isinstance(fault, Cut | Silence) else None
        for chunk in [answer.data] if isinstance(fault, Held) else answer.stream(65536):
            part = chunk if left is None else chunk[:left]
            request.wfile.write(part)
            request.wfile.flush()
            if left is not None:
                left -= len(part)
                if left <= 0:
                    break
            if self.ending.is_set() or select.select([request.connection], [], [], 0)[0]:
                return
        if isinstance(fault, Silence):
            self.ending.wait(60)

    def _head(self, request: BaseHTTPRequestHandler, status: int, headers: Mapping[str, str]) -> None:
        request.send_response_only(status)
        for name, value in headers.items():
            request.send_header(name, value)
        request.end_headers()

    @contextmanager
    def running(self) -> Iterator[FaultyProxy]:
        self._thread.start()
        try:
            yield self
        finally:
            self.ending.set()
            self._server.shutdown()
            self._server.server_close()
            self._thread.join(60)
            self._pool.clear()
