"""A store that answers exactly what a test says, byte for byte."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from caches.sources import open_source
from caches.sources.base import Source
from controlplane.clusters.documents import ConnectionSpec, SourceType

SECRET = {"access_key_id": "key", "secret_access_key": "hunter2"}


@dataclass
class Answer:
    """``length`` None states the body's own. ``pieces`` are sent one by one; afterwards the connection closes."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    length: int | None = None
    pieces: tuple[bytes, ...] = ()
    hang: bool = False


@dataclass
class Asked:
    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]


Script = Callable[[Asked], Answer]


class ScriptedStore(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, script: Script) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.script, self.asked, self.over = script, list[Asked](), threading.Event()

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients hang up here on purpose."""

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def open(self, **fields: Any) -> Source:
        spec = ConnectionSpec("store", SourceType.S3, endpoint=self.endpoint, allowed=("bucket",), **fields)
        return open_source(spec, SECRET)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ScriptedStore

    def log_message(self, format: str, *args: object) -> None:
        """Silent."""

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        asked = Asked(self.command, parts.path, parse_qs(parts.query), {k.lower(): v for k, v in self.headers.items()})
        self.server.asked.append(asked)
        answer = self.server.script(asked)
        self.send_response(answer.status)
        body = b"".join(answer.pieces) if answer.pieces else answer.body
        headers = {"Content-Length": str(len(body) if answer.length is None else answer.length)} | answer.headers
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            for piece in answer.pieces or (body,):
                self.wfile.write(piece)
                self.wfile.flush()
        if answer.hang:
            self.server.over.wait(60)
        self.close_connection = True

    do_HEAD = do_GET


@contextmanager
def serving(script: Script) -> Iterator[ScriptedStore]:
    with ScriptedStore(script) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.over.set()
            server.shutdown()
            thread.join()
