"""What the stand-ins share: an HTTP server on loopback whose answers a function gives."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlsplit


@dataclass
class Asked:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]  # names in lower case
    body: bytes


@dataclass
class Said:
    """``cut`` sends only so many bytes of the body and hangs up."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    cut: int | None = None


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # many threads connect at once, and a loaded machine accepts slowly

    def __init__(self, answer: Callable[[Asked], Said], host: str = "127.0.0.1") -> None:
        super().__init__((host, 0), _Handler)
        self.answer = answer
        self.asked: list[Asked] = []

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients hang up here on purpose."""

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Server

    def log_message(self, format: str, *args: object) -> None:
        """Silent."""

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        asked = Asked(self.command, parts.path, dict(parse_qsl(parts.query)), headers, body)
        self.server.asked.append(asked)
        said = self.server.answer(asked)
        self.send_response(said.status)
        for name, value in ({"Content-Length": str(len(said.body))} | said.headers).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(said.body[: said.cut])
        if said.cut is not None:
            self.close_connection = True

    do_HEAD = do_POST = do_PUT = do_GET


@contextmanager
def serving(*servers: Server) -> Iterator[None]:
    threads = [threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True) for server in servers]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            thread.join()
            server.server_close()


def ranged(asked: Asked, body: bytes, headers: dict[str, str]) -> Said:
    """The whole body, or the part that a Range header asks for."""
    wanted = asked.headers.get("range", "")
    if not wanted:
        return Said(200, body, headers)
    first, _, last = wanted.removeprefix("bytes=").partition("-")
    start, end = int(first), min(int(last or len(body)) + 1, len(body))
    if start >= len(body):
        return Said(416, b"", {"Content-Range": f"bytes */{len(body)}"})
    return Said(206, body[start:end], headers | {"Content-Range": f"bytes {start}-{end - 1}/{len(body)}"})
