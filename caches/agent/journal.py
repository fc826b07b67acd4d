"""What of a partial tree is finished: one line for each piece of a file whose bytes were written.

The journal is a claim, never a proof: whoever resumes reads the bytes again and compares the checksum. So a torn or
damaged line costs a repeat of one segment and nothing else. Lines: ``S <file> <start> <end> <crc64nvme hex>``, and
``R <origin>``: the revisions that the bytes of files without a content checksum came from.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from caches.agent import safefs
from controlplane.clusters.documents import FileRecord

_LINE = re.compile(rb"S (\d{1,9}) (\d{1,18}) (\d{1,18}) ([0-9a-f]{16})\Z")
_ORIGIN = re.compile(rb"^R ([0-9a-f]{64})$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Segment:
    """The bytes [start, end) of the manifest's file number ``file``."""

    file: int
    start: int
    end: int

    @property
    def size_bytes(self) -> int:
        return self.end - self.start


def journal_read(path: Path) -> dict[Segment, int]:
    """Segment → CRC64NVME of every sound line, the last one winning; {} when there is no journal."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return {}
    found: dict[Segment, int] = {}
    for line in data.split(b"\n")[:-1]:  # what follows the last line feed was torn
        match = _LINE.match(line)
        if match and int(match[2]) < int(match[3]):
            found[Segment(int(match[1]), int(match[2]), int(match[3]))] = int(match[4], 16)
    return found


def journal_origin(path: Path) -> str:
    """The origin that the journal was begun with; "" when it states none."""
    try:
        found = _ORIGIN.search(path.read_bytes())
    except FileNotFoundError:
        return ""
    return found[1].decode() if found else ""


def journal_write(path: Path, claims: Mapping[Segment, int], origin: str) -> None:
    """Replace the journal by these claims."""
    lines = [b"R %s\n" % origin.encode()] if origin else []
    lines += [_line(segment, crc) for segment, crc in claims.items()]
    safefs.write_atomically(path.parent, path.name, b"".join(lines))


def origin_of(files: Iterable[FileRecord]) -> str:
    """A name for the revisions of all files whose bytes no checksum would prove; "" when there is none."""
    loose = [(f.path, f.revision, f.version_id) for f in files if not f.algorithm.is_content]
    return hashlib.sha256(repr(loose).encode("utf-8", "backslashreplace")).hexdigest() if loose else ""


def _line(segment: Segment, crc: int) -> bytes:
    return b"S %d %d %d %016x\n" % (segment.file, segment.start, segment.end, crc)


class Journal:
    """Open for appending; one write for each line, so that lines of several threads never mix."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        self._fd = os.open(path, flags, 0o600)
        size = os.fstat(self._fd).st_size
        if size and os.pread(self._fd, 1, size - 1) != b"\n":
            os.write(self._fd, b"\n")  # close a torn line, or the next one would be lost with it

    def append(self, segment: Segment, crc: int) -> None:
        """Call only after the segment's bytes were written."""
        line = _line(segment, crc)
        with self._lock:
            if self._fd >= 0:
                os.write(self._fd, line)

    def close(self) -> None:
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1


def segments_of(sizes: Iterable[int], segment_bytes: int) -> list[Segment]:
    """Every byte of the files once, in order, in pieces of at most ``segment_bytes``; an empty file has no segment."""
    return [
        Segment(number, start, min(size, start + segment_bytes))
        for number, size in enumerate(sizes)
        for start in range(0, size, segment_bytes)
    ]
