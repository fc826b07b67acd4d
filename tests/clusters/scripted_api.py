"""A real client of a small HTTP server that keeps objects by path, for calls whose order and bodies matter.

It knows no rules of an API server; those are tried on a real one in tests/kube.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from controlplane.clusters.kubernetes.access import Access
from controlplane.clusters.kubernetes.client import KubeClient


class ScriptedApi:
    """``objects`` by path. ``refusals`` by (method, path): status and document, said once each, first to last."""

    def __init__(self, client: KubeClient) -> None:
        self.client = client
        self.objects: dict[str, dict[str, Any]] = {}
        self.refusals: dict[tuple[str, str], list[tuple[int, dict[str, Any]]]] = {}
        self.sent: list[tuple[str, str, dict[str, str], Any]] = []  # method, path, query, body

    def writes(self) -> list[tuple[str, str]]:
        return [(method, path) for method, path, _, _ in self.sent if method != "GET"]

    def body(self, method: str, path: str) -> Any:
        """What was sent there last."""
        return next(body for m, p, _, body in reversed(self.sent) if (m, p) == (method, path))

    def conflict(self, method: str, path: str, *fields: str) -> None:
        causes = [
            {"reason": "FieldManagerConflict", "field": field, "message": 'conflict with "other"'} for field in fields
        ]
        said = {"reason": "Conflict", "message": "Apply failed", "details": {"causes": causes}}
        self.refusals.setdefault((method, path), []).append((409, said))

    def answer(self, method: str, path: str, query: dict[str, str], body: Any) -> tuple[int, dict[str, Any]]:
        self.sent.append((method, path, query, body))
        if refusals := self.refusals.get((method, path)):
            return refusals.pop(0)
        if method in ("GET", "DELETE") and path not in self.objects:
            return 404, {"reason": "NotFound", "message": "not found", "details": {"name": path}}
        if method == "DELETE":
            return 200, self.objects.pop(path)
        return 200, self.objects.get(path, body if isinstance(body, dict) else {})


@contextmanager
def scripted_api() -> Iterator[ScriptedApi]:
    class Handler(BaseHTTPRequestHandler):
        def serve(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(size)) if size else None
            parts = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            status, document = api.answer(self.command, parts.path, query, body)
            data = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_PATCH = do_POST = do_DELETE = serve

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = False  # each connection has one request: they are waited for
        access = Access(server=f"http://127.0.0.1:{server.server_port}", authorization=lambda again: "")
        api = ScriptedApi(KubeClient(lambda: access))
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield api
        finally:
            server.shutdown()
            thread.join(60)
