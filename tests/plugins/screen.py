"""A proxy before somebody else's API server: tests have it for their own, and nothing of the owner's is touched.

It marks what they make, shows no other nodes or events, refuses to write what is not theirs, and can be stopped,
started and compacted as if it were the API server. Who brings no token is the kubeconfig's user.
"""

from __future__ import annotations

import dataclasses
import json
import socket
import threading
from collections.abc import Iterable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import urllib3

from controlplane.clusters.gateway import NotFound
from controlplane.clusters.kubernetes.access import Access
from controlplane.clusters.kubernetes.client import KubeClient
from tests.plugins.screened import MARK, WRITES, Target, is_too_old, marked, target_of

_PASSED_ON = ("accept", "content-type", "user-agent", "authorization")
_PASSED_BACK = ("content-type", "retry-after", "date", "warning")
_LINES = 64 * 1024


class Screen:
    """``run`` is the value of the label. With ``anywhere`` pods may go to the owner's machines."""

    def __init__(self, upstream: Access, run: str, *, anywhere: bool = False) -> None:
        self.admin = KubeClient(lambda: upstream)  # sees and may do everything
        self._upstream, self._pool = upstream, upstream.pool()
        # A certificate would count more than the token that a request brings.
        self._nobodys = dataclasses.replace(upstream, certificate_file="", key_file="").pool()
        self._run, self._anywhere = run, anywhere
        self._stopped, self._forgotten = False, 0
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._own: set[str] = set()  # paths of objects and namespaces that are known to be marked
        self._made: set[str] = set()  # names that events may be about
        self._old_events: set[str] = set()
        screen = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def handle(self) -> None:
                with screen._lock:
                    screen._open.add(self.connection)
                try:
                    super().handle()
                except OSError:
                    pass  # whoever asked has gone
                finally:
                    with screen._lock:
                        screen._open.discard(self.connection)

            def handle_any(self) -> None:
                screen._answer(self)

            do_GET = do_POST = do_PATCH = do_DELETE = do_PUT = handle_any

            def log_message(self, format: str, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False
            request_queue_size = 128

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)
        self._thread.start()
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self.stop()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(60)
        self._pool.clear()
        self._nobodys.clear()

    # -- as if it were the API server ------------------------------------------------------------------------------

    def stop(self) -> None:
        """Open connections break without a word; new ones come to nothing."""
        self._stopped = True
        with self._lock:
            connections = list(self._open)
        for connection in connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue

    def start(self) -> None:
        self._stopped = False

    def compact(self) -> None:
        """Older versions are Gone from now on, and whoever watches begins anew."""
        self.stop()
        listing = self.admin.get("/api/v1/namespaces", {"limit": 1})
        self._forgotten = int(listing["metadata"]["resourceVersion"])
        self.start()

    # -- one request ---------------------------------------------------------------------------------------------

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers.get("Content-Length", 0)))
        if self._stopped:
            request.close_connection = True
            return
        target = target_of(request.path)
        if is_too_old(target, self._forgotten):
            return self._say_gone(request, target)
        if target.resource and request.command in WRITES:
            if not self._may_write(request.command, target):
                return _say(request, 403, _status(403, "Forbidden", f"{target.path} was there before these tests."))
            body = marked(target, request.command, request.headers.get("Content-Type", ""), body, self._run,
                          anywhere=self._anywhere)  # fmt: skip
            self._note(target, body)
        if not target.name and self._is_shared(request.command, target):
            if request.command == "DELETE" and target.resource == "events":
                self._forget_events(target)
            target = target.selecting()
        self._pass(request, target, body)

    def _is_shared(self, method: str, target: Target) -> bool:
        """Whether objects of the owner's may be in this collection, of which a request is about all."""
        if method not in ("GET", "DELETE") or not target.resource or self._is_own(_namespace(target)):
            return False
        if method == "DELETE":
            return True
        return target.resource == "nodes" if not target.namespace else target.resource != "events"

    def _may_write(self, method: str, target: Target) -> bool:
        if _is_review(target) or self._is_own(_namespace(target)):
            return True
        if not target.name:
            return method in ("POST", "DELETE")  # the one is marked, the other of what is marked
        if self._is_own(target.path):
            if method == "DELETE":
                self._own.discard(target.path)
            return True
        try:
            self.admin.get(target.path)
        except NotFound:
            return True
        return False

    def _is_own(self, path: str) -> bool:
        """Whether this object is there and marked."""
        if not path:
            return False
        if path not in self._own:
            try:
                found = self.admin.get(path, only_metadata="PartialObjectMetadata")
            except NotFound:
                return False
            if MARK not in (found["metadata"].get("labels") or {}):
                return False
            self._own.add(path)
        return True

    def _note(self, target: Target, body: bytes) -> None:
        name = target.name
        if not name and body.startswith(b"{"):
            name = str((json.loads(body).get("metadata") or {}).get("name", ""))
        self._made |= {name} - {""}

    def _forget_events(self, target: Target) -> None:
        self._old_events |= {item["metadata"]["uid"] for item in self.admin.get(target.path)["items"]}

    def _shows(self, item: Mapping[str, Any]) -> bool:
        about = item.get("involvedObject") or item.get("regarding") or {}
        return item["metadata"]["uid"] not in self._old_events and about.get("name") in self._made

    def _say_gone(self, request: BaseHTTPRequestHandler, target: Target) -> None:
        status = _status(410, "Expired", "The resourceVersion is too old.")
        if target.watches:
            return _say(request, 200, {"type": "ERROR", "object": status})
        _say(request, 410, status)

    def _pass(self, request: BaseHTTPRequestHandler, target: Target, body: bytes) -> None:
        headers = {name.lower(): value for name, value in request.headers.items() if name.lower() in _PASSED_ON}
        pool = self._nobodys if "authorization" in headers else self._pool
        if pool is self._pool and (authorization := self._upstream.authorization(False)):
            headers["authorization"] = authorization
        read_seconds = float(target.query.get("timeoutSeconds", 0)) + 120
        try:
            answer = pool.request(
                request.command, self._upstream.server + target.full, body=body or None, headers=headers,
                timeout=urllib3.Timeout(connect=10, read=read_seconds), retries=False, redirect=False,
                preload_content=False,
            )  # fmt: skip
        except urllib3.exceptions.HTTPError as error:
            return _say(request, 503, _status(503, "ServiceUnavailable", f"The given cluster: {error}"))
        try:
            self._give_back(request, target, answer)
        except urllib3.exceptions.HTTPError:
            request.close_connection = True  # in the middle, as the server did it
        finally:
            answer.drain_conn() if answer.closed else answer.close()

    def _give_back(self, request: BaseHTTPRequestHandler, target: Target, answer: urllib3.BaseHTTPResponse) -> None:
        request.send_response_only(answer.status)
        for name, value in answer.headers.items():
            if name.lower() in _PASSED_BACK:
                request.send_header(name, value)
        sifted = target.resource == "events" and not target.name and answer.status == 200
        if not target.watches:
            data = answer.read()
            if sifted and request.command == "GET":
                listing = json.loads(data)
                listing["items"] = [item for item in listing.get("items") or () if self._shows(item)]
                data = json.dumps(listing).encode()
            request.send_header("Content-Length", str(len(data)))
            request.end_headers()
            request.wfile.write(data)
            return
        request.send_header("Transfer-Encoding", "chunked")
        request.end_headers()
        for line in _lines(answer):
            if not sifted or self._tells(line):
                request.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
        request.wfile.write(b"0\r\n\r\n")

    def _tells(self, line: bytes) -> bool:
        told = json.loads(line)
        return told["type"] in ("BOOKMARK", "ERROR") or self._shows(told["object"])


def _namespace(target: Target) -> str:
    return f"/api/v1/namespaces/{target.namespace}" if target.namespace else ""


def _is_review(target: Target) -> bool:
    return target.group.startswith(("/apis/authorization.k8s.io/", "/apis/authentication.k8s.io/"))


def _lines(answer: urllib3.BaseHTTPResponse) -> Iterable[bytes]:
    rest = b""
    while part := answer.read1(_LINES):
        *whole, rest = (rest + part).split(b"\n")
        yield from (line + b"\n" for line in whole)
    if rest:
        yield rest


def _status(code: int, reason: str, message: str) -> dict[str, Any]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "code": code,
        "reason": reason,
        "message": message,
    }


def _say(request: BaseHTTPRequestHandler, code: int, document: Mapping[str, Any]) -> None:
    data = json.dumps(document).encode() + b"\n"
    request.send_response_only(code)
    request.send_header("Content-Type", "application/json")
    request.send_header("Content-Length", str(len(data)))
    request.end_headers()
    request.wfile.write(data)
