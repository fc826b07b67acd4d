"""Heads of HTTP/1.1 messages as bytes: what is passed on, and what belongs to one connection and ends here."""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus

Header = tuple[bytes, bytes]
# RFC 9110, 7.6.1, and what proxies know by other names. Framing is said anew for each side.
_OF_ONE_CONNECTION = frozenset({
    b"connection", b"proxy-connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade",
    b"content-length", b"http2-settings", b"expect", b"proxy-authorization", b"proxy-authenticate",
})  # fmt: skip
_NEVER_DROPPED = frozenset({b"host"})  # an instance would refuse the request for want of it
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"
_REASONS = {status.value: status.phrase.encode() for status in HTTPStatus}


def passed_on(headers: Iterable[Header]) -> list[Header]:
    """The headers that the other side is to see, in their order: none of one connection, none that Connection names."""
    lowered = [(name.lower(), name, value) for name, value in headers]
    dropped: frozenset[bytes] | set[bytes] = _OF_ONE_CONNECTION
    for low, _, value in lowered:
        if low == b"connection":
            dropped = dropped | {token.strip().lower() for token in value.split(b",")} - _NEVER_DROPPED
    # Servers that hand headers on as variables know _ from - no more.
    return [(name, value) for low, name, value in lowered if low.replace(b"_", b"-") not in dropped]


def request_start(method: bytes, target: bytes, headers: Iterable[Header]) -> bytes:
    """A request's head but for its end. The Host of the client stays."""
    lines = [method + b" " + target + b" HTTP/1.1"]
    lines += [name + b": " + value for name, value in headers]
    return b"\r\n".join(lines) + b"\r\n"


def without_upgrade(method: bytes, target: bytes, version: bytes, headers: Iterable[Header]) -> bytes:
    """A request's head as the client sent it, but for the offer of another protocol."""
    lines = [b"%b %b HTTP/%b" % (method, target, version)]
    for name, value in headers:
        lowered = name.lower()
        if lowered == b"connection":
            tokens = [one.strip() for one in value.split(b",")]
            value = b", ".join(one for one in tokens if one.lower() != b"upgrade")
        if lowered != b"upgrade":
            lines.append(name + b": " + value)
    return b"\r\n".join(lines) + b"\r\n\r\n"


def head_end(body_bytes: int | None) -> bytes:
    """``body_bytes`` None for a request without a body."""
    return b"\r\n" if body_bytes is None else b"content-length: %d\r\n\r\n" % body_bytes


def response_head(
    status: int, reason: bytes, headers: Iterable[Header], *, length: int | None, chunked: bool, close: bool
) -> bytes:
    """At most one of ``length`` and ``chunked``; with neither the body, if any, ends with the connection."""
    lines = [b"HTTP/1.1 %d %b" % (status, reason or _REASONS.get(status, b""))]
    lines += [name + b": " + value for name, value in headers]
    if length is not None:
        lines.append(b"content-length: %d" % length)
    elif chunked:
        lines.append(b"transfer-encoding: chunked")
    if close:
        lines.append(b"connection: close")
    return b"\r\n".join(lines) + b"\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)
