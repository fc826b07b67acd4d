"""JSON over HTTP to one API server: timeouts on everything, refusals as GatewayErrors, requests counted.

Answers are plain dictionaries. Watches are read line by line and never held as a whole.
"""

from __future__ import annotations

import http.client
import json
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, TypeAlias
from urllib.parse import urlencode

import urllib3
from urllib3.exceptions import HTTPError, ProtocolError

from controlplane.clusters.gateway import GatewayError, NotFound, Unreachable
from controlplane.clusters.kubernetes.access import Access
from controlplane.clusters.kubernetes.clock import ServerClock
from controlplane.clusters.kubernetes.errors import refusal

CONNECT_SECONDS = 5.0
READ_SECONDS = 30.0
LONGEST_LINE_BYTES = 16 * 1024 * 1024
READ_BYTES = 64 * 1024

APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
METADATA_ONLY = "application/json;as={};g=meta.k8s.io;v=v1"

Json: TypeAlias = dict[str, Any]
Body: TypeAlias = Mapping[str, Any] | Sequence[Mapping[str, Any]] | None
log = logging.getLogger(__name__)


class KubeClient:
    """Thread-safe. ``access`` is opened at the first request, and again after credentials were refused."""

    def __init__(
        self,
        access: Callable[[], Access],
        *,
        connect_seconds: float = CONNECT_SECONDS,
        read_seconds: float = READ_SECONDS,
        agent: str = "hearth",
    ) -> None:
        self._open_access = access
        self._connect_seconds, self._read_seconds = connect_seconds, read_seconds
        self._agent = agent
        self._lock = threading.Lock()
        self._opened: tuple[Access, urllib3.PoolManager] | None = None
        self._counts: Counter[str] = Counter()
        self.clock = ServerClock()

    def requests(self) -> Mapping[str, int]:
        """How many requests were sent since the start, by method; a watch counts once."""
        with self._lock:
            return dict(self._counts)

    def get(self, path: str, query: Mapping[str, object] | None = None, *, only_metadata: str = "") -> Json:
        """One object or one page. ``only_metadata`` asks for PartialObjectMetadata or its list."""
        return self._json("GET", path, query, accept=METADATA_ONLY.format(only_metadata) if only_metadata else "")

    def apply(
        self, path: str, document: Mapping[str, Any], *, manager: str, force: bool = False, dry_run: bool = False
    ) -> Json:
        """Server-side apply. Conflict names who else holds a field; with ``force`` it is taken from them."""
        query = {
            "fieldManager": manager,
            **({"force": "true"} if force else {}),
            **({"dryRun": "All"} if dry_run else {}),
        }
        return self._json("PATCH", path, query, document, APPLY)

    def merge(self, path: str, document: Mapping[str, Any], *, manager: str) -> Json:
        """JSON merge patch; ``metadata.uid`` and ``resourceVersion`` in it are preconditions, save for a status."""
        return self._json("PATCH", path, {"fieldManager": manager}, document, MERGE)

    def patch(self, path: str, steps: Sequence[Mapping[str, Any]], *, manager: str) -> Json:
        """JSON patch; Refused when a ``test`` in it does not hold."""
        return self._json("PATCH", path, {"fieldManager": manager}, steps, JSON_PATCH)

    def create(self, path: str, document: Mapping[str, Any], *, manager: str) -> Json:
        """Conflict when there is one already."""
        return self._json("POST", path, {"fieldManager": manager}, document, "application/json")

    def delete(self, path: str, *, uid: str = "", grace_seconds: int | None = None) -> None:
        """No error when there is none. With ``uid`` only that very object: Conflict when it is another one."""
        options: Json = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        if uid:
            options["preconditions"] = {"uid": uid}
        with suppress(NotFound):
            self._json("DELETE", path, None, options, "application/json")

    def text(
        self,
        path: str,
        query: Mapping[str, object] | None = None,
        *,
        max_bytes: int,
        read_seconds: float | None = None,
    ) -> bytes:
        """The first bytes of an answer that is no JSON. Unreachable when nothing comes for ``read_seconds``."""
        with self._response("GET", path, query, None, "", "*/*", read_seconds or self._read_seconds) as response:
            return bytes(response.read(max_bytes, decode_content=True))

    @contextmanager
    def lines(self, path: str, query: Mapping[str, object], *, read_seconds: float) -> Iterator[Iterator[bytes]]:
        """The lines of an answer as they come. Unreachable when nothing at all comes for ``read_seconds``."""
        with self._response("GET", path, query, None, "", "application/json", read_seconds) as response:
            yield _lines(response, path)

    def _json(
        self,
        method: str,
        path: str,
        query: Mapping[str, object] | None,
        body: Body = None,
        content_type: str = "",
        accept: str = "",
    ) -> Json:
        with self._response(method, path, query, body, content_type, accept, self._read_seconds) as response:
            data = response.read(decode_content=True)
        try:
            document = json.loads(data)
        except ValueError:
            raise Unreachable(f"{method} {path}: the answer is not JSON.") from None
        if not isinstance(document, dict):
            raise Unreachable(f"{method} {path}: the answer is no object.")
        return document

    @contextmanager
    def _response(
        self,
        method: str,
        path: str,
        query: Mapping[str, object] | None,
        body: Body,
        content_type: str,
        accept: str,
        read_seconds: float,
    ) -> Iterator[urllib3.BaseHTTPResponse]:
        """An answer below 300, closed afterwards; whatever breaks while it is read is Unreachable."""
        data = None if body is None else json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
        headers = {"Accept": accept or "application/json", "User-Agent": self._agent}
        if content_type:
            headers["Content-Type"] = content_type
        target = f"{path}?{urlencode(query)}" if query else path
        response = None
        try:
            response = self._send(method, target, data, headers, read_seconds)
            if response.status == 401:
                response.drain_conn()
                response = self._send(method, target, data, headers, read_seconds, again=True)
            if response.status >= 300:
                refused = response.read(64 * 1024, decode_content=True)
                now = datetime.now(UTC)
                raise refusal(response.status, response.headers, refused, method=method, path=path, now=now)
            yield response
        except GatewayError:
            raise
        except (HTTPError, http.client.HTTPException, OSError) as error:
            raise Unreachable(f"{method} {path}: {_cause(error)}") from None
        finally:
            if response is not None:
                # What was not read to its end cannot be used again for another request.
                response.close() if not response.closed else response.release_conn()

    def _send(
        self, method: str, target: str, data: bytes | None, headers: Mapping[str, str], read_seconds: float,
        *, again: bool = False,
    ) -> urllib3.BaseHTTPResponse:  # fmt: skip
        access, pool = self._access(again)
        if authorization := access.authorization(again):
            headers = {**headers, "Authorization": authorization}
        timeout = urllib3.Timeout(connect=self._connect_seconds, read=read_seconds)
        for attempt in (1, 2):
            with self._lock:
                self._counts[method] += 1
            sent = datetime.now(UTC)
            try:
                response = pool.request(
                    method, access.server + target, body=data, headers=headers, timeout=timeout,
                    retries=False, redirect=False, preload_content=False,
                )  # fmt: skip
            except ProtocolError:
                # An idle connection that the server closed meanwhile. Everything but a creation can be said twice.
                if attempt == 2 or method == "POST":
                    raise
                continue
            self.clock.observe(response.headers.get("Date", ""), sent, datetime.now(UTC))
            return response
        raise AssertionError("unreachable")

    def _access(self, again: bool) -> tuple[Access, urllib3.PoolManager]:
        with self._lock:
            if self._opened is None or again:
                access = self._open_access()
                self._opened = access, access.pool()
            return self._opened


def _lines(response: urllib3.BaseHTTPResponse, path: str) -> Iterator[bytes]:
    rest = bytearray()
    # What is there, at once: an answer without chunks, as some proxies make it, would wait for all of an amount.
    while chunk := response.read1(READ_BYTES, decode_content=True):
        rest += chunk
        if b"\n" in chunk:
            *whole, last = bytes(rest).split(b"\n")
            rest = bytearray(last)
            yield from (line for line in whole if line)
        if len(rest) > LONGEST_LINE_BYTES:
            raise Unreachable(f"{path}: one line of the answer is longer than {LONGEST_LINE_BYTES} bytes.")


def _cause(error: BaseException) -> str:
    """The innermost sentence, without the address objects that the outer ones print."""
    inner: Any = error
    for _ in range(5):
        following = getattr(inner, "reason", None) or inner.__cause__
        if not isinstance(following, BaseException):
            break
        inner = following
    return f"{type(inner).__name__}: {inner}"[:300]
