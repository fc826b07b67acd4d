"""One artifact on this node, as the loop sees it."""

from __future__ import annotations

import os
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from caches.agent.ensure import Ensure
from caches.agent.evict import Evict
from caches.agent.jobs import Job
from caches.agent.marker import Marker
from caches.agent.record import Meter, Record, record_read, record_write
from caches.agent.scrub import Scrub
from caches.agent.store import Store
from caches.agent.verify import Findings
from controlplane.clusters.documents import DesiredEntry, EntryState, EntryStatus

# Why a download that goes on begins with less than it had.
READING_BACK = "Reading back what was fetched before; only bytes that are right count."
BUSY = (EntryState.DOWNLOADING, EntryState.VERIFYING, EntryState.REPAIRING)


class Rate:
    """Bytes per second over a sliding window of what was really read."""

    def __init__(self, window_seconds: float) -> None:
        self._window = window_seconds
        self._points: deque[tuple[float, int]] = deque()

    def note(self, at: float, total: int) -> None:
        self._points.append((at, total))
        while len(self._points) > 2 and at - self._points[0][0] > self._window:
            self._points.popleft()

    def clear(self) -> None:
        self._points.clear()

    @property
    def value(self) -> float | None:
        if len(self._points) < 2:
            return None
        (start, first), (end, last) = self._points[0], self._points[-1]
        return (last - first) / (end - start) if end > start else None


@dataclass(slots=True)
class Entry:
    """Only the loop's thread changes it."""

    line: DesiredEntry
    store: Store
    rate: Rate
    state: EntryState = EntryState.ABSENT
    message: str = ""
    marker: Marker | None = None
    findings: Findings | None = None  # what the last look or scrub found wrong, until it is repaired
    record: Record = field(default_factory=Record)
    job: Job[Any] | None = None
    work: Ensure | Scrub | Evict | None = None
    bytes_done: int = 0
    refused: int | None = None  # bytes that there was no room for, before the first one was asked for
    seen: tuple[int, int] | None = None  # the marker's mtime and size when it was last read
    glance_at: float = 0.0  # when the files' names and sizes are due again, on the monotonic clock
    _meter: Meter | None = None

    @property
    def digest(self) -> str:
        return self.line.digest

    def load(self, meter: Meter | None) -> None:
        """What was remembered; called before anything else. ``meter`` is one that a job still counts with. On a full
        disk nothing can be opened, and evicting must go on all the same."""
        with suppress(OSError):
            self.record = record_read(self.store.state(self.digest))
            self._meter = meter or Meter(self.store.state(self.digest) / "moved")

    @property
    def meter(self) -> Meter:
        if self._meter is None:
            self._meter = Meter(self.store.state(self.digest) / "moved")
        return self._meter

    def save(self) -> None:
        """Best effort: a full disk must not stop the agent, and costs an early retry at most."""
        try:
            record_write(self.store.state(self.digest), self.record)
        except OSError:
            return

    def forgotten(self) -> None:
        """After an eviction: as if it had never been here."""
        if self._meter:
            self._meter.close()
        self._meter, self.record, self.marker, self.findings, self.bytes_done = None, Record(), None, None, 0

    def counts_with(self, meter: Meter) -> bool:
        return self._meter is meter

    def close(self) -> None:
        if self._meter:
            self._meter.close()
            self._meter = None

    @property
    def ensure(self) -> Ensure | None:
        return self.work if self.job and isinstance(self.work, Ensure) else None

    @property
    def tree_exists(self) -> bool:
        return os.path.lexists(self.store.tree(self.digest))

    def note_progress(self, ensure: Ensure) -> None:
        if ensure.download:
            done = 0 if ensure.dropped else ensure.download.board.bytes_done
            missing = ensure.download.bytes_total - done
            self.bytes_done = max(0, self.line.size_bytes - missing)

    def status(self, monotonic: float) -> EntryStatus:
        ensure = self.ensure
        state, done, total, message = self.state, self.bytes_done, self.line.size_bytes, self.message
        damaged = self.findings.wrong if self.findings else ()
        if ensure:
            state = ensure.phase
            damaged = ensure.damaged or damaged
            if ensure.download:
                self.note_progress(ensure)
                done = self.bytes_done
                self.rate.note(monotonic, self.meter.total)
                if ensure.download.left_to_read_back:
                    message = message or READING_BACK
        elif state is EntryState.READY and self.marker:
            done = total = self.marker.size_bytes
        rate = self.rate.value if ensure and ensure.phase in BUSY else None
        record = self.record
        return EntryStatus(
            digest=self.digest,
            state=state,
            reason=record.reason if state is EntryState.FAILED else "",
            message=(record.message if state is EntryState.FAILED else message)[:1000],
            attempts=record.attempts,
            retry_at=record.retry_at if state is EntryState.FAILED else None,
            bytes_done=done,
            bytes_total=total,
            bytes_moved=self._meter.total if self._meter else 0,
            rate_bytes_per_second=rate,
            eta_seconds=(total - done) / rate if rate else None,
            started_at=record.started_at,
            ready_at=record.ready_at,
            verified_at=record.verified_at,
            last_used_at=self.store.last_used_at(self.digest),
            verify_round=record.verify_round,
            retry_round=record.retry_round,
            witness=self.marker.witness if self.marker else "",
            damaged=damaged if state is not EntryState.READY else (),
            scrub=record.findings,
        )

    def fail(self, reason: str, message: str, retry_at: datetime) -> None:
        self.state = EntryState.FAILED
        self.record.reason, self.record.message, self.record.retry_at = reason, message, retry_at
        self.save()
