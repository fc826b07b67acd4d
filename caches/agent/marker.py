"""The marker: the last file written into a tree. A tree without a sound marker does not exist for anybody."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

NAME = ".hearth-marker.json"
_FORMAT = 1
_HEX = frozenset("0123456789abcdef")


@dataclass(frozen=True, slots=True)
class MarkedFile:
    """One file as it was published: ``crc64nvme`` is 16 hex digits, ``mtime_ns`` only hints that it was touched."""

    path: str
    size_bytes: int
    crc64nvme: str
    mtime_ns: int = 0


@dataclass(frozen=True, slots=True)
class Marker:
    digest: str
    files: tuple[MarkedFile, ...]  # in path order
    witness: str
    published_at: datetime

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


def witness_of(files: Iterable[MarkedFile]) -> str:
    """``sha256:<hex>`` over the sorted lines "crc64nvme size path": equal on two nodes when their bytes are equal."""
    lines = sorted(f"{file.crc64nvme} {file.size_bytes} {file.path}\n" for file in files)
    return "sha256:" + hashlib.sha256("".join(lines).encode()).hexdigest()


def marked_at(files: Iterable[MarkedFile], times: Iterable[tuple[str, int]]) -> tuple[MarkedFile, ...]:
    """The files, with other mtimes (ns) for some paths."""
    known = dict(times)
    return tuple(replace(file, mtime_ns=known.get(file.path, file.mtime_ns)) for file in files)


def marker_build(digest: str, files: Iterable[MarkedFile], now: datetime) -> Marker:
    ordered = tuple(sorted(files, key=lambda file: file.path))
    return Marker(digest, ordered, witness_of(ordered), now)


def marker_encode(marker: Marker) -> bytes:
    document = {
        "format": _FORMAT,
        "digest": marker.digest,
        "witness": marker.witness,
        "published_at": marker.published_at.astimezone(UTC).isoformat(),
        "files": [[file.path, file.size_bytes, file.crc64nvme, file.mtime_ns] for file in marker.files],
    }
    return json.dumps(document, separators=(",", ":"), ensure_ascii=True).encode()


def marker_decode(data: bytes, digest: str) -> Marker | None:
    """None for anything that is not a whole, untouched marker of this digest: its lines must give its own witness."""
    try:
        document = json.loads(data)
        if document["format"] != _FORMAT or document["digest"] != digest:
            return None
        files = tuple(
            MarkedFile(str(path), int(size), str(crc), int(mtime)) for path, size, crc, mtime in document["files"]
        )
        marker = Marker(digest, files, str(document["witness"]), datetime.fromisoformat(document["published_at"]))
    except (ValueError, KeyError, TypeError):
        return None
    sound = all(len(file.crc64nvme) == 16 and _HEX.issuperset(file.crc64nvme) for file in files)
    ordered = [file.path for file in files] == sorted({file.path for file in files})
    aware = marker.published_at.tzinfo is not None
    return marker if sound and ordered and aware and marker.witness == witness_of(files) else None
