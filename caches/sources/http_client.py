"""Plain HTTP for stores that speak it: guarded addresses, redirects that never carry a token away, bounded answers.

One client belongs to one source and is shared by its threads. An address is looked at again once a connection stands
and before a byte is sent, so that a name which resolves differently each time gains nothing. Addresses of answers may
hold signatures: no error names one.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, lru_cache
from ipaddress import ip_address
from typing import Any
from urllib.parse import urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection

from caches.sources import allowed, problems
from controlplane.clusters.documents import ConnectionSpec
from controlplane.errors import HearthError

CONNECT_SECONDS = 5.0
READ_SECONDS = 15.0
MAX_REDIRECTS = 5
DRAIN_BYTES = 16 * 1024
MAX_JSON_BYTES = 64 * 1024 * 1024
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_NO_RETRIES = urllib3.Retry(total=False, redirect=False)


@dataclass(frozen=True, slots=True)
class Answer:
    """The last hop's answer, its body unread. ``hops`` are the headers of the redirects before it, the first first;
    ``url`` is where it came from; ``who`` is what errors call the one that gave it."""

    url: str
    response: urllib3.BaseHTTPResponse
    hops: tuple[Mapping[str, str], ...] = field(default=())
    who: str = "store"

    @property
    def status(self) -> int:
        return int(self.response.status)

    @property
    def headers(self) -> Mapping[str, str]:
        return self.response.headers

    def stated(self, name: str) -> str:
        """A header, of the first hop that has it."""
        return next((found for hop in (*self.hops, self.headers) if (found := hop.get(name))), "")

    def read(self, place: str, limit: int = MAX_JSON_BYTES) -> bytes:
        """The whole body; Permanent when it is longer than ``limit``."""
        with body_errors(place, self.who):
            body = bytes(self.response.read(limit + 1, decode_content=True))
        if len(body) > limit:
            raise problems.rejected(place, f"the {self.who}'s answer is longer than anything it should say.")
        return body

    def json(self, place: str) -> Any:
        """The body decoded; Permanent when it is no JSON."""
        try:
            return json.loads(self.read(place))
        except (ValueError, RecursionError) as error:
            raise problems.rejected(place, f"the {self.who}'s answer cannot be read.") from error


class HttpClient:
    """``authorization`` of a call goes to the origin of its address alone. ``who``: what errors call the other end."""

    def __init__(self, spec: ConnectionSpec, *, allow_private: bool, who: str = "store") -> None:
        self._allow_private = allow_private
        self._who = who
        self._options: dict[str, Any] = {
            "num_pools": 16,
            "maxsize": 32,
            "retries": _NO_RETRIES,
            "ssl_context": _trust(spec.ca_bundle),
        }
        self._direct = urllib3.PoolManager(**self._options)
        self._direct.pool_classes_by_scheme = _guarded(allow_private)
        self._proxied: dict[str, urllib3.ProxyManager] = {}

    @contextmanager
    def open(
        self,
        place: str,
        url: str,
        *,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        authorization: str = "",
        body: bytes | None = None,
        read_seconds: float = READ_SECONDS,
    ) -> Iterator[Answer]:
        """An answer of any status, redirects followed; ``place`` is what an error's sentence begins with."""
        hops: list[Mapping[str, str]] = []
        sent = {"Accept-Encoding": "identity", "User-Agent": "hearth"} | dict(headers or {})
        if authorization:
            sent["Authorization"] = authorization
        while True:
            response = self._send(place, method, url, sent, body, read_seconds)
            try:
                target = response.headers.get("Location", "") if response.status in _REDIRECTS else ""
                if not target:
                    yield Answer(url, response, tuple(hops), self._who)
                    return
            finally:
                _finish(response)
            hops.append(response.headers)
            if len(hops) > MAX_REDIRECTS:
                raise problems.rejected(place, f"the {self._who} redirects again and again.")
            following = self._target(place, url, target)
            if origin(following) != origin(url):
                sent.pop("Authorization", None)
            url = following

    def close(self) -> None:
        self._direct.clear()
        for proxied in self._proxied.values():
            proxied.clear()

    def _send(
        self, place: str, method: str, url: str, headers: Mapping[str, str], body: bytes | None, read_seconds: float
    ) -> urllib3.BaseHTTPResponse:
        timeout = urllib3.Timeout(connect=min(CONNECT_SECONDS, read_seconds), read=read_seconds)
        options: dict[str, Any] = {"timeout": timeout, "redirect": False, "preload_content": False}
        with body_errors(place, self._who):
            manager = self._manager(url)
            try:
                return manager.request(method, url, body=body, headers=headers, **options)
            except urllib3.exceptions.ProtocolError:
                if method not in ("GET", "HEAD"):
                    raise
            # The other end closed an idle connection just when it was taken up again.
            return manager.request(method, url, headers=headers, **options)

    def _target(self, place: str, url: str, location: str) -> str:
        try:
            target = urljoin(url, location)
            allowed.check_url(target, allow_private=self._allow_private)
        except ValueError as error:
            raise problems.rejected(place, f"the {self._who} redirects to what is no address.") from error
        return target

    def _manager(self, url: str) -> urllib3.PoolManager:
        parts = urlsplit(url)
        proxy = getproxies().get(parts.scheme, "")
        if not proxy or proxy_bypass(parts.hostname or ""):
            return self._direct
        # The proxy connects, so what it would connect to can only be looked at here.
        allowed.check_host(url, allow_private=self._allow_private)
        if proxy not in self._proxied:
            self._proxied[proxy] = urllib3.ProxyManager(proxy, **self._options)
        return self._proxied[proxy]


def origin(url: str) -> tuple[str, str, int]:
    """Scheme, host and port."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


def refusal(place: str, answer: Answer) -> HearthError:
    """The one table from a status that was not wanted to a Permanent or Transient."""
    status = answer.status
    if status == 429 or (status == 503 and "Retry-After" in answer.headers):
        return problems.throttled(place, retry_after(answer.headers), answer.who)
    if status in (401, 403):
        return problems.access_denied(place)
    if status in (404, 410):
        return problems.not_found(place)
    if status in (409, 412, 416):
        return problems.changed(place)
    if status >= 500 or status == 408:
        return problems.unavailable(place, f"the {answer.who} answers {status}.")
    return problems.rejected(place, f"the {answer.who} answers {status}.")


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that the store asks to wait, from Retry-After or RateLimit; None when it says nothing."""
    said = headers.get("Retry-After", "").strip()
    if said.isdecimal():
        return float(min(int(said[:9]), 3600))
    for part in headers.get("RateLimit", "").split(";"):
        name, _, value = part.strip().partition("=")
        if name == "t" and value.isdecimal():
            return float(min(int(value[:9]), 3600))
    return None


@contextmanager
def body_errors(place: str, who: str = "store") -> Iterator[None]:
    """Around each request, and each step of reading a body. ``who``: what the other end is called."""
    try:
        yield
    except urllib3.exceptions.SSLError as error:
        if isinstance(error.args[0] if error.args else None, ssl.SSLCertVerificationError):
            raise problems.untrusted(place) from error
        raise problems.unavailable(place, "the encrypted connection broke.") from error
    except urllib3.exceptions.ReadTimeoutError as error:
        raise problems.unavailable(place, "no byte arrived in time.") from error
    except urllib3.exceptions.NameResolutionError as error:
        raise problems.unavailable(place, "the name does not resolve.") from error
    except (urllib3.exceptions.NewConnectionError, urllib3.exceptions.ConnectTimeoutError) as error:
        raise problems.unavailable(place, f"the {who} does not answer.") from error
    except (urllib3.exceptions.LocationParseError, UnicodeError) as error:
        raise problems.rejected(place, "the address cannot be read.") from error
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise problems.unavailable(place, "the connection broke.") from error


def _finish(response: urllib3.BaseHTTPResponse) -> None:
    """Give the connection back, or close it where unread bytes would be taken for the next answer."""
    with suppress(urllib3.exceptions.HTTPError, OSError):
        left = response.length_remaining
        if not response.closed and left is not None and left <= DRAIN_BYTES:
            response.drain_conn()
        elif not response.closed:
            response.close()
    response.release_conn()


@lru_cache(maxsize=64)
def _trust(ca_bundle: str) -> ssl.SSLContext:
    """The system's authorities and the connection's own: a private hub may still redirect to a public store. Reading
    the system's takes tens of milliseconds."""
    context = ssl.create_default_context()
    if ca_bundle:
        context.load_verify_locations(cadata=ca_bundle)
    return context


@cache
def _guarded(allow_private: bool) -> dict[str, Any]:
    """Pools whose connections look at the other end's address before anything is sent."""

    class Plain(HTTPConnection):
        def _new_conn(self) -> Any:
            return _looked_at(super()._new_conn(), self.host, allow_private)

    class Encrypted(HTTPSConnection):
        def _new_conn(self) -> Any:
            return _looked_at(super()._new_conn(), self.host, allow_private)

    class PlainPool(urllib3.HTTPConnectionPool):
        ConnectionCls = Plain

    class EncryptedPool(urllib3.HTTPSConnectionPool):
        ConnectionCls = Encrypted

    return {"http": PlainPool, "https": EncryptedPool}


def _looked_at(connected: Any, host: str, allow_private: bool) -> Any:
    try:
        peer = ip_address(str(connected.getpeername()[0]).split("%", 1)[0])
        allowed.check_address(host, peer, allow_private=allow_private)
    except BaseException:
        connected.close()
        raise
    return connected
