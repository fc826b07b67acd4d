"""Which bytes are still to be had, and what is known of those that are here."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from caches.agent.journal import Segment, segments_of
from caches.sources.checksums import combine_crc64nvme


@dataclass(frozen=True, slots=True)
class Piece:
    """A segment to settle; ``claimed`` is the checksum that the journal says its bytes on disk have."""

    segment: Segment
    claimed: int | None = None


def pieces_of(sizes: Mapping[int, int], claims: Mapping[Segment, int], segment_bytes: int) -> list[Piece]:
    """Every byte of the files (number → size) exactly once, in order: journaled segments that lie inside their file
    and do not overlap an earlier one as claims, the gaps between them as fresh segments."""
    pieces: list[Piece] = []
    by_file: dict[int, list[Segment]] = {}
    for segment in claims:
        by_file.setdefault(segment.file, []).append(segment)
    for number, size in sorted(sizes.items()):
        at = 0
        for segment in sorted(by_file.get(number, []), key=lambda item: (item.start, item.end)):
            if segment.start >= at and segment.end <= size:
                pieces += _gap(number, at, segment.start, segment_bytes)
                pieces.append(Piece(segment, claims[segment]))
                at = segment.end
        pieces += _gap(number, at, size, segment_bytes)
    return pieces


def _gap(number: int, start: int, end: int, segment_bytes: int) -> list[Piece]:
    return [
        Piece(Segment(number, start + part.start, start + part.end))
        for part in segments_of([max(0, end - start)], segment_bytes)
    ]


def combined(parts: Iterable[tuple[Segment, int]]) -> int:
    """CRC64NVME of the bytes that adjacent segments cover together; 0 for none, as for no bytes."""
    total = 0
    for segment, crc in sorted(parts, key=lambda part: part[0].start):
        total = combine_crc64nvme(total, crc, segment.size_bytes)
    return total


class Board:
    """The pieces of one download, shared by its threads."""

    def __init__(self, pieces: Iterable[Piece]) -> None:
        self._lock = threading.Lock()
        self._open = deque(pieces)
        self._done: dict[int, dict[Segment, int]] = {}
        self._bytes = 0

    @property
    def bytes_done(self) -> int:
        return self._bytes

    @property
    def open_count(self) -> int:
        return len(self._open)

    def take(self) -> Piece | None:
        with self._lock:
            return self._open.popleft() if self._open else None

    def settle(self, segment: Segment, crc: int) -> None:
        with self._lock:
            self._done.setdefault(segment.file, {})[segment] = crc
            self._bytes += segment.size_bytes

    def crc_of(self, number: int) -> int:
        """The whole file's CRC64NVME; call when every piece is settled."""
        return combined(self._done.get(number, {}).items())

    def claims(self, *, without: frozenset[int] = frozenset()) -> dict[Segment, int]:
        """Everything settled, except the given files."""
        with self._lock:
            return {
                segment: crc for number, done in self._done.items() if number not in without
                for segment, crc in done.items()
            }  # fmt: skip
