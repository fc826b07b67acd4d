"""What the agent must remember of one artifact over its own death: failures, rounds, times and bytes moved."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import Any

from caches.agent import safefs
from controlplane.clusters.documents import MOST_DAMAGED, ScrubFindings

_NAME = "record.json"
_TIMES = ("retry_at", "started_at", "ready_at", "verified_at")


@dataclass(slots=True)
class Record:
    """See documents.EntryStatus for the meaning of the fields."""

    reason: str = ""
    message: str = ""
    attempts: int = 0
    retry_at: datetime | None = None
    started_at: datetime | None = None
    ready_at: datetime | None = None
    verified_at: datetime | None = None
    verify_round: int = 0
    retry_round: int = 0
    found: tuple[str, ...] = ()  # see documents.ScrubFindings
    found_count: int = 0
    found_round: int = 0

    def clear_failure(self) -> None:
        self.reason, self.message, self.attempts, self.retry_at = "", "", 0, None

    def note_damage(self, paths: Iterable[str], verify_round: int) -> None:
        """Remember what was wrong; a newer round begins without what an older one found."""
        if verify_round > self.found_round:
            self.found, self.found_count, self.found_round = (), 0, verify_round
        known = sorted({*self.found, *paths})
        self.found, self.found_count = tuple(known[:MOST_DAMAGED]), max(self.found_count, len(known))

    @property
    def findings(self) -> ScrubFindings | None:
        return ScrubFindings(self.found_round, self.found, self.found_count) if self.found_count else None


def record_read(folder: Path) -> Record:
    """The stored record; a missing or damaged one is an empty one, which costs an early retry at most."""
    try:
        document: dict[str, Any] = json.loads((folder / _NAME).read_bytes())
        known = {field.name for field in fields(Record)}
        values = {name: value for name, value in document.items() if name in known}
        for name in _TIMES:
            values[name] = datetime.fromisoformat(values[name]) if values.get(name) else None
        values["found"] = tuple(str(path) for path in values.get("found", ()))
        return Record(**values)
    except (OSError, ValueError, TypeError, AttributeError):
        return Record()


def record_write(folder: Path, record: Record) -> None:
    values = asdict(record)
    for name in _TIMES:
        values[name] = values[name].isoformat() if values[name] else None
    safefs.write_atomically(folder, _NAME, json.dumps(values).encode())


class Meter:
    """Bytes read from the source over an entry's life, kept in a file with each addition: kill -9 loses nothing."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        text = os.pread(self._fd, 20, 0)
        self.total = int(text) if text.isdigit() else 0

    def add(self, count: int) -> None:
        with self._lock:
            self.total += count
            if self._fd >= 0:
                os.pwrite(self._fd, b"%020d" % self.total, 0)

    def close(self) -> None:
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1
