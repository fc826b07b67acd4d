"""One range from the source to its place on disk: checksum while it streams, stalls and breaks retried from the last
byte, the retry counter reset by every new byte."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol

from caches.agent import safefs
from caches.agent.backoff import pause_seconds
from caches.agent.limits import RequestGate, Stopped, TokenBucket
from caches.agent.tuning import Tuning
from caches.sources.checksums import crc64nvme
from caches.sources.problems import TOUCHED
from controlplane.clusters.documents import FileRecord, Reason
from controlplane.errors import Transient


class Reader(Protocol):
    """The part of a Source that a download needs."""

    def read_range(
        self, uri: str, file: FileRecord, start: int, end: int, *, stall_seconds: float = 30.0
    ) -> Iterator[memoryview | bytes]:
        """The bytes [start, end) of the very revision that ``file`` names; Permanent(SourceChanged) otherwise."""
        ...


@dataclass(slots=True)
class Lane:
    """What every request of one node shares, and the switch that stops one download."""

    gate: RequestGate
    bucket: TokenBucket
    tuning: Tuning
    stopped: threading.Event = field(default_factory=threading.Event)
    store_bucket: TokenBucket = field(default_factory=lambda: TokenBucket(None))  # this node's share of one store


class Progress(Protocol):
    """Told of every byte, at once."""

    def moved(self, count: int) -> None:
        """``count`` bytes were read from the source."""
        ...

    def written(self, count: int) -> None:
        """``count`` bytes are on the disk."""
        ...

    def finished(self, start: int, end: int, crc: int) -> None:
        """These bytes are on the disk and have this CRC64NVME; together the pieces are the whole range."""
        ...


@dataclass(slots=True)
class Cursor:
    """The next byte to write, and the piece that is growing before it with its CRC64NVME."""

    at: int
    began: int
    crc: int = 0


def fetch_range(
    *,
    reader: Reader,
    uri: str,
    file: FileRecord,
    start: int,
    end: int,
    fd: int,
    lane: Lane,
    progress: Progress,
    before: Callable[[int], None],
) -> None:
    """Write [start, end) of ``file`` at its offset in ``fd``. ``before(bytes)`` is called ahead of each request and
    may refuse. Raises Stopped, HearthError of the source or of ``before``, OSError; finished pieces stay finished."""
    cursor, fruitless = Cursor(start, start), 0
    while cursor.at < end:
        began = cursor.at
        try:
            with lane.gate.request(lane.stopped.is_set):
                before(end - cursor.at)
                stream = reader.read_range(uri, file, cursor.at, end, stall_seconds=lane.tuning.stall_seconds)
                _write(stream, fd, cursor, end, lane, progress)
            if cursor.at < end:
                raise _unavailable("short", f"{file.path}: the answer ended at byte {cursor.at} of {end}.")
        except Transient as error:
            fruitless = 1 if cursor.at > began else fruitless + 1
            if fruitless >= lane.tuning.range_attempts or error.code == TOUCHED:
                raise
            _pause(lane, error, fruitless)


def _unavailable(what: str, detail: str) -> Transient:
    return Transient(f"source:source:{what}", detail, reason=Reason.SOURCE_UNAVAILABLE)


def _pause(lane: Lane, error: Transient, fruitless: int) -> None:
    seconds = pause_seconds(fruitless=fruitless, tuning=lane.tuning)
    if error.retry_at:
        asked = (error.retry_at - datetime.now(UTC)).total_seconds()
        seconds = min(lane.tuning.stall_seconds, max(seconds, asked))
    if lane.stopped.wait(seconds):
        raise Stopped


def _write(
    stream: Iterator[memoryview | bytes], fd: int, cursor: Cursor, end: int, lane: Lane, progress: Progress
) -> None:
    """Moves the cursor after each write, so that the last good byte is known whatever is raised."""
    step = lane.tuning.write_bytes
    try:
        for chunk in stream:
            view = memoryview(chunk).cast("B")
            progress.moved(len(view))
            if cursor.at + len(view) > end:
                raise _unavailable("long", "The source sent more bytes than were asked for.")
            for offset in range(0, len(view), step):
                if lane.stopped.is_set():
                    raise Stopped
                part = view[offset : offset + step]
                lane.bucket.take(len(part), lane.stopped.wait)
                lane.store_bucket.take(len(part), lane.stopped.wait)
                safefs.write_all(fd, part, cursor.at)
                cursor.crc = crc64nvme(part, cursor.crc)
                cursor.at += len(part)
                progress.written(len(part))
                if cursor.at == end or cursor.at - cursor.began >= lane.tuning.checkpoint_bytes:
                    progress.finished(cursor.began, cursor.at, cursor.crc)
                    cursor.began, cursor.crc = cursor.at, 0
    finally:
        close = getattr(stream, "close", None)
        if close:
            close()
