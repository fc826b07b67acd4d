"""Heads that come again. A client sends the same head with every request, an engine with every answer, but for a
length and, in an answer, a date.

The first one on a connection is read strictly, by the parser. One that is the same byte for byte, with other digits in
its length and another date, says the same, so it is compared and not read again. Anything else goes to the parser.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from routing.dataplane.heads import Header
    from routing.dataplane.routes import Made

LONGEST_HEAD = 4096  # bytes that are kept for a connection
_DATE = re.compile(rb"[A-Za-z0-9,: ]{29}")  # as RFC 9110 has it, always that long
_LINES = re.compile(rb"\r\n(content-length|date):[ \t]*", re.IGNORECASE)
_FARTHEST = 32  # bytes that a length or a date can have


class Match(NamedTuple):
    """Of a message that begins with a known head. ``length`` 0 for a head without one; ``date`` b"" likewise."""

    end: int
    length: int
    date: bytes


class Pattern:
    """One head with holes where its length and its date stand."""

    __slots__ = ("_head", "_holes", "_matched", "_start")

    def __init__(self, start: bytes, holes: tuple[tuple[bool, bytes], ...]) -> None:
        self._start, self._holes = start, holes
        self._head, self._matched = b"", Match(0, 0, b"")  # of the last message

    def match(self, data: bytes) -> Match | None:
        """None when ``data`` does not begin with this head, or not with all of it."""
        if self._head and data.startswith(self._head):
            return self._matched
        if (found := self._fresh(data)) is not None:
            self._head, self._matched = data[: found.end], found
        return found

    def _fresh(self, data: bytes) -> Match | None:
        if not data.startswith(self._start):
            return None
        at, length, date = len(self._start), 0, b""
        for is_length, rest in self._holes:
            stop = data.find(b"\r", at, at + _FARTHEST)
            if stop < 0 or not data.startswith(rest, stop):
                return None
            hole = data[at:stop]
            if is_length:
                if not _is_length(hole):
                    return None
                length = int(hole)
            elif _DATE.fullmatch(hole):
                date = hole
            else:
                return None
            at = stop + len(rest)
        return Match(at, length, date)


class KnownRequest(NamedTuple):
    """A head that a client sent before, as the parser read it."""

    pattern: Pattern
    method: bytes
    target: bytes
    headers: list[Header]
    keeps: bool
    made: Made


def _is_length(value: bytes) -> bool:
    return value.isdigit() and len(value) <= 10


def pattern_of(head: bytes, *, dates: bool = False) -> Pattern | None:
    """``head``: one that the parser took, from its first byte to its empty line. None for one that is not kept.
    ``dates``: its date may be another the next time; whoever passes the head on has to say which."""
    if len(head) > LONGEST_HEAD or not head.endswith(b"\r\n\r\n"):
        return None
    seen, holes = set[bytes](), list[tuple[bool, int, int]]()
    for found in _LINES.finditer(head):
        name = found[1].lower()
        value = head[found.end() : head.index(b"\r", found.end())]
        is_length = name == b"content-length"
        if name in seen or (is_length and not _is_length(value)):
            return None
        seen.add(name)
        if is_length or (dates and _DATE.fullmatch(value)):
            holes.append((is_length, found.end(), found.end() + len(value)))
    if not holes:
        return Pattern(head, ())
    edges = [start for _, start, _ in holes[1:]] + [len(head)]
    rests = tuple((kind, head[end:edge]) for (kind, _, end), edge in zip(holes, edges, strict=True))
    return Pattern(head[: holes[0][1]], rests)
