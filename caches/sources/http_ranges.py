"""Ranged reads over plain HTTP: exactly the bytes that were asked for, of exactly the file that was registered."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from caches.sources import problems
from caches.sources.http_client import Answer, HttpClient, body_errors, refusal
from controlplane.errors import HearthError

STEP_BYTES = 1024 * 1024
SKIP_BYTES = 64 * 1024 * 1024  # of a store without ranges so much is read in vain at most: one segment
_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})")
_GONE = frozenset({401, 403, 404, 410})  # what an address that has expired answers


@dataclass(frozen=True, slots=True)
class Ask:
    """One range of one file; ``place`` is what an error's sentence begins with."""

    place: str
    start: int
    end: int
    size_bytes: int
    headers: Mapping[str, str] = field(default_factory=dict)
    authorization: str = ""
    stall_seconds: float = 30.0


Check = Callable[[Answer], None]


def read(client: HttpClient, url: str, ask: Ask, check: Check) -> Iterator[bytes]:
    """Yield the bytes [start, end); ``check`` raises when the answer is of another file than the registered one.

    Expired when the address no longer serves; otherwise as Source.read_range.
    """
    headers = {"Range": f"bytes={ask.start}-{ask.end - 1}", **ask.headers}
    with client.open(
        ask.place, url, headers=headers, authorization=ask.authorization, read_seconds=ask.stall_seconds
    ) as answer:
        if answer.status not in (200, 206):
            raise Expired(refusal(ask.place, answer), answer) if answer.status in _GONE else refusal(ask.place, answer)
        check(answer)
        yield from _exactly(answer, ask, _to_skip(answer, ask))


class Expired(Exception):
    """The address answers that it does not serve this, which a fresh one may; ``error`` is what to raise if not."""

    def __init__(self, error: HearthError, answer: Answer) -> None:
        super().__init__("expired")
        self.error = error
        self.answer = answer


def content_range(answer: Answer) -> tuple[int, int, int] | None:
    """First byte, end (excluded) and size of the whole file that a 206 states; None when it states none."""
    found = _CONTENT_RANGE.fullmatch(answer.headers.get("Content-Range", ""))
    return (int(found[1]), int(found[2]) + 1, int(found[3])) if found else None


def unquoted(etag: str) -> str:
    return etag.removeprefix("W/").strip('"')


def _to_skip(answer: Answer, ask: Ask) -> int:
    """How many bytes come before the ones that were asked for: more than 0 from a store that ignores ranges."""
    if answer.headers.get("Content-Encoding", "identity") != "identity":
        raise problems.rejected(ask.place, "the store packs what must arrive as it is.")
    if answer.status == 206:
        found = content_range(answer)
        if found is None or found[:2] != (ask.start, ask.end):
            raise problems.unavailable(ask.place, "the store sent another part than was asked for.")
        if found[2] != ask.size_bytes:
            raise problems.changed(ask.place, "It has another size than was registered.")
        return 0
    length = answer.headers.get("Content-Length", "")
    if length.isdecimal() and int(length) != ask.size_bytes:
        raise problems.changed(ask.place, "It has another size than was registered.")
    if ask.start > SKIP_BYTES:
        raise problems.rejected(ask.place, "the store ignores ranges, and the file is too large to do without.")
    return ask.start


def _exactly(answer: Answer, ask: Ask, skip: int) -> Iterator[bytes]:
    position = ask.start - skip
    while position < ask.end:
        with body_errors(ask.place):
            chunk = answer.response.read(min(STEP_BYTES, ask.end - position), decode_content=False)
        if not chunk:
            raise problems.unavailable(ask.place, "the stream ended early.")
        wanted = chunk[max(0, ask.start - position) :]
        position += len(chunk)
        if wanted:
            yield wanted
    if answer.status == 206:
        with body_errors(ask.place):
            more = answer.response.read(1, decode_content=False)
        if more:
            raise problems.unavailable(ask.place, "the store sent more than was asked for.")
