"""Makes the store equal to the desired lines, one short step at a time. Everything long runs in jobs."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any

from caches.agent import marker as markers
from caches.agent import outcome, verify
from caches.agent.capacity import tree_bytes
from caches.agent.ensure import Ensure, Tools
from caches.agent.entry import Entry, Rate
from caches.agent.evict import Evict
from caches.agent.jobs import Job
from caches.agent.scrub import Scrub, ScrubState, next_scrub
from caches.agent.store import name_of
from controlplane.clusters.documents import (
    Action,
    ArtifactKind,
    ConnectionSpec,
    DesiredEntry,
    EntryState,
    EntryStatus,
    Limits,
    NodeCacheSpec,
    Orphan,
    Reason,
)  # fmt: skip
from controlplane.errors import Permanent

log = logging.getLogger(__name__)


class Keeper:
    """Single-threaded: ``follow`` when the spec changed, ``step`` again and again, ``stop`` at the end."""

    def __init__(self, tools: Tools, chance: Callable[[], float]) -> None:
        self.tools, self._chance = tools, chance
        self.entries: dict[str, Entry] = {}
        self._refused: list[EntryStatus] = []
        self._lingering: dict[str, tuple[Job[Any], Ensure]] = {}
        self._spec: NodeCacheSpec | None = None
        self._asked: dict[str, tuple[DesiredEntry, ConnectionSpec]] = {}  # by pods of this node, not by the plan

    def follow(self, spec: NodeCacheSpec) -> None:
        """Take over lines and limits. A line that is gone stops its work and removes nothing."""
        self._spec = spec
        limits, tools = spec.limits, self.tools
        tools.gate.change(limit=limits.max_requests, paused=limits.paused)
        tools.bucket.set_rate(limits.bytes_per_second)
        for connection in spec.connections:
            tools.store_bucket(connection.name).set_rate(connection.bytes_per_second)
        tools.ledger.limits = limits
        lines = self._with_asked(self._lines(spec))
        for digest in [digest for digest in self.entries if digest not in lines]:
            self._let_go(self.entries.pop(digest))
        for line in lines.values():
            self._take(line)

    def ask(self, line: DesiredEntry, connection: ConnectionSpec) -> None:
        """A pod of this node waits for this artifact. What the plan says of it counts, save for its turn."""
        self._asked[line.digest] = (line, connection)
        known = self.entries.get(line.digest)
        if known is None or known.line.action is Action.ENSURE:
            self._take(line if known is None else replace(known.line, order=line.order))
            self.look_again(line.digest)

    def look_again(self, digest: str) -> None:
        """Somebody is about to rely on it: what was true at the last look may not be now."""
        entry = self.entries[digest]
        now = time.monotonic()
        entry.glance_at = min(entry.glance_at or now, now)
        self._settle(entry)

    def unask(self, digest: str) -> None:
        """Nobody waits any more, and what only pods had asked for is let go; nothing is removed."""
        self._asked.pop(digest, None)
        if digest in self.entries and not (self._spec and any(line.digest == digest for line in self._spec.desired)):
            self._let_go(self.entries.pop(digest))

    @property
    def paused(self) -> bool:
        return self.tools.gate.paused

    def _with_asked(self, lines: dict[str, DesiredEntry]) -> dict[str, DesiredEntry]:
        """The plan's lines and what pods asked for; the plan's word on an artifact counts, save for its turn."""
        for digest, (line, _) in list(self._asked.items()):
            planned = lines.get(digest)
            if planned is None:
                lines[digest] = line
            elif planned.action is Action.EVICT:
                del self._asked[digest]
            else:
                lines[digest] = replace(planned, order=line.order)
        return lines

    def _take(self, line: DesiredEntry) -> None:
        entry = self.entries.get(line.digest)
        if entry is not None:
            if entry.line.action is not line.action and entry.state is EntryState.FAILED:
                entry.state = EntryState.QUEUED  # what failed is no longer what is asked for
            entry.line = line
            return
        entry = Entry(line=line, store=self.tools.store, rate=Rate(self.tools.tuning.rate_window_seconds))
        if line.action is Action.ENSURE:
            lingering = self._lingering.get(line.digest)
            entry.load(lingering[1].meter if lingering else None)
        self.entries[line.digest] = entry

    def _lines(self, spec: NodeCacheSpec) -> dict[str, DesiredEntry]:
        lines: dict[str, DesiredEntry] = {}
        self._refused = []
        for line in sorted(spec.desired, key=lambda line: line.order):
            if line.kind is not ArtifactKind.WEIGHTS:
                continue
            try:
                name_of(line.digest)
            except Permanent as error:
                self._refused.append(
                    EntryStatus(line.digest, EntryState.FAILED, Reason.INVALID_REQUEST, error.detail, attempts=1)
                )
                continue
            known = lines.get(line.digest)
            if known is None or known.action is Action.EVICT:  # said twice: keeping is the safe reading
                lines[line.digest] = line
        return lines

    def step(self) -> None:
        """Collect what ended, evict, look, start."""
        entries = list(self.entries.values())
        for digest, (job, work) in list(self._lingering.items()):
            if job.done.is_set() and not (work.download and work.download.alive):
                del self._lingering[digest]
                if digest not in self.entries or not self.entries[digest].counts_with(work.meter):
                    work.meter.close()
        for turn in (self._collect, self._evict, self._settle):
            for entry in entries:
                self.tools.beat()
                try:
                    turn(entry)
                except OSError as error:  # one artifact's trouble with the disk must not stop the others
                    outcome.failed(entry, error, self.tools, self._chance)
        self._start_downloads()
        self._start_scrub()

    def _collect(self, entry: Entry) -> None:
        if outcome.collect(entry, self.tools, self._chance) and entry.line.action is Action.ENSURE:
            self._look(entry)

    def _evict(self, entry: Entry) -> None:
        if entry.line.action is not Action.EVICT or isinstance(entry.work, Evict):
            return
        if entry.state is EntryState.FAILED and not self._may_retry(entry):
            return
        self._stop(entry)
        evict = Evict(self.tools.store, entry.digest)
        if not evict.take_away() and entry.state is EntryState.ABSENT:
            self.tools.store.forget(entry.digest)  # a crash may have come between the files and their record
            return
        entry.state, entry.message, entry.findings = EntryState.EVICTING, "", None
        self.tools.ledger.changed(name_of(entry.digest))
        self._run(entry, evict, evict.run)

    def _settle(self, entry: Entry) -> None:
        """An entry without a job: is it still what it was, may it be tried again?"""
        if entry.line.action is not Action.ENSURE or entry.job is not None:
            return
        if entry.state is EntryState.FAILED:
            if self._may_retry(entry):
                self._look(entry)
            return
        # An agent that has just started knows of a failure by its record alone.
        failed = entry.state is EntryState.ABSENT and entry.record.reason
        if entry.line.retry_round > entry.record.retry_round and not failed:
            entry.record.retry_round = entry.line.retry_round  # nothing had failed
            entry.save()
        if entry.state in (EntryState.ABSENT, EntryState.EVICTING):
            self._look(entry)
        elif entry.state is EntryState.READY:
            self._still_ready(entry)

    def _still_ready(self, entry: Entry) -> None:
        try:
            info = (self.tools.store.tree(entry.digest) / markers.NAME).lstat()
        except OSError:
            self._look(entry)
            return
        seen = (info.st_mtime_ns, info.st_size)
        if entry.seen is None:
            entry.seen = seen
        moved_away = not self.tools.store.is_folder(self.tools.store.tree(entry.digest))  # with a link left behind
        if seen != entry.seen or moved_away or self._is_odd(entry) or self._glance(entry):
            self._look(entry)

    def _glance(self, entry: Entry) -> bool:
        """Whether a Ready tree lost a file or has another one than it had. One lstat for each file, now and then; what
        needs reading is the scrub's."""
        now, marker = time.monotonic(), entry.marker
        due, seconds = entry.glance_at, self.tools.tuning.glance_seconds
        if marker is None or 0 < now < due:
            return False
        entry.glance_at = now + seconds * max(1.0, len(marker.files) / 1000)
        if not due:
            return False  # it was looked at when it became Ready
        found = verify.look(self.tools.store.tree(entry.digest), marker.files)
        return bool(found.wrong or found.touched)

    def _is_odd(self, entry: Entry) -> bool:
        """Other nodes hold other bytes under this digest."""
        return bool(entry.marker and entry.line.witness and entry.marker.witness != entry.line.witness)

    def _may_retry(self, entry: Entry) -> bool:
        record = entry.record
        if entry.line.retry_round > record.retry_round:
            record.retry_round, record.attempts = entry.line.retry_round, 0
        elif entry.refused is not None and self.tools.ledger.fits(entry.refused):
            pass
        elif record.retry_at is not None and 0 < self._seconds_until(record.retry_at) <= self.tools.tuning.retry_most:
            return False
        record.retry_at = None
        return True

    def _seconds_until(self, moment: datetime) -> float:
        return (moment - self.tools.clock()).total_seconds()

    def _look(self, entry: Entry) -> None:
        """Derive the state from the disk: the cheap look that every tree passes before it is called Ready."""
        store, digest = self.tools.store, entry.digest
        entry.marker = entry.seen = None
        if entry.tree_exists and not store.is_folder(store.tree(digest)):
            store.discard(store.tree(digest))  # a link or a file that somebody put there; what it leads to stays
        with suppress(OSError):
            store.tree(digest).rmdir()  # an empty one: the mount of a pod that found nothing made it
        try:
            entry.marker = store.marker(digest)
            found = verify.look(store.tree(digest), entry.marker.files) if entry.marker else None
        except OSError:
            found = None
        self.tools.ledger.changed(name_of(digest))
        if not entry.tree_exists:
            entry.findings, entry.bytes_done = None, 0
            self._wait_or_fail(entry, EntryState.QUEUED)
        elif entry.marker is None or found is None:
            with suppress(OSError):
                store.unmark(digest)
            entry.message = "The tree has no sound marker."
            self._wait_or_fail(entry, EntryState.REPAIRING)
        elif found.wrong or self._is_odd(entry):
            paths = tuple(file.path for file in entry.marker.files) if self._is_odd(entry) else found.damaged
            outcome.damage(entry, replace(found, damaged=paths), self.tools)
            self._wait_or_fail(entry, EntryState.REPAIRING)
        elif found.touched:
            entry.state, entry.message = EntryState.VERIFYING, "Files were touched since they were published."
            self._scrub(entry, frozenset(found.touched))
        else:
            outcome.ready(entry, entry.marker, self.tools.clock())

    def _wait_or_fail(self, entry: Entry, state: EntryState) -> None:
        """A failure outlives the agent: its next attempt is not due earlier because the agent was started again."""
        record = entry.record
        waiting = record.reason and record.retry_at is not None and not self._may_retry(entry)
        entry.state = EntryState.FAILED if waiting else state

    def _start_downloads(self) -> None:
        limits = self._spec.limits if self._spec else Limits()
        evicting = any(isinstance(entry.work, Evict) for entry in self.entries.values())
        running = sum(1 for entry in self.entries.values() if entry.ensure)
        waiting = [
            entry for entry in self.entries.values()
            if entry.job is None and entry.line.action is Action.ENSURE
            and entry.state in (EntryState.QUEUED, EntryState.REPAIRING)
        ]  # fmt: skip
        for entry in sorted(waiting, key=lambda entry: entry.line.order):
            if self.tools.gate.paused:
                entry.message = "Paused: no new byte is asked for."
            elif evicting:
                entry.message = "Waiting for an eviction to end."
            elif entry.digest in self._lingering or (
                running >= limits.max_downloads and entry.digest not in self._asked
            ):
                entry.message = "Waiting for its turn." if not entry.findings else entry.message
            elif self._ensure(entry):
                running += 1

    def _ensure(self, entry: Entry) -> bool:
        repair, kept, findings = entry.tree_exists, None, entry.findings
        last = self.tools.store.last_marker(entry.digest) if repair and findings else None
        if last and findings:
            gone = {*findings.damaged, *findings.strange, *findings.doubtful}
            kept = markers.marked_at((file for file in last.files if file.path not in gone), findings.intact)
        connection = self._connection(entry.line)
        entry.refused = None
        if not repair:
            # Promised here, in the order of the lines; the job corrects the number once it has read the manifest.
            on_disk = tree_bytes(self.tools.store.partial(entry.digest), allocated=True)
            try:
                self.tools.ledger.reserve(name_of(entry.digest), entry.line.size_bytes, on_disk)
            except Permanent as error:
                entry.refused = max(0, entry.line.size_bytes - on_disk)
                outcome.failed(entry, error, self.tools, self._chance)
                return False
        try:
            meter = entry.meter
        except OSError as error:
            self.tools.ledger.release(name_of(entry.digest))
            outcome.failed(entry, error, self.tools, self._chance)
            return False
        doubtful = findings.doubtful if kept is not None and findings else frozenset()
        work = Ensure(self.tools, entry.line, connection, meter, repair=repair, kept=kept, doubtful=doubtful)
        entry.record.started_at, entry.message = self.tools.clock(), ""
        entry.save()
        self._run(entry, work, work.run)
        return True

    def _connection(self, line: DesiredEntry) -> ConnectionSpec | None:
        known = self._spec.connections if self._spec else ()
        asked = (self._asked[line.digest][1],) if line.digest in self._asked else ()
        return next((item for item in (*known, *asked) if item.name == line.connection), None)

    def _start_scrub(self) -> None:
        if self._spec is None or any(isinstance(entry.work, Scrub) for entry in self.entries.values()):
            return
        states = [
            ScrubState(entry.line, entry.record.verified_at, entry.record.verify_round)
            for entry in self.entries.values()
            if entry.state is EntryState.READY and entry.job is None
        ]
        digest = next_scrub(states, self._spec.scrub_interval_seconds, self.tools.clock())
        if digest:
            self._scrub(self.entries[digest], None)

    def _scrub(self, entry: Entry, only: frozenset[str] | None) -> None:
        if entry.marker is not None:
            work = Scrub(self.tools.store, self.tools.scrub_bucket, entry.line, entry.marker, only)
            self._run(entry, work, work.run)

    def _run(self, entry: Entry, work: Ensure | Scrub | Evict, run: Callable[[], Any]) -> None:
        entry.work, entry.job = work, Job(type(work).__name__, run, self.tools.wake)
        entry.job.start()

    def _stop(self, entry: Entry) -> None:
        """After this the entry's job changes no tree any more, though a thread of it may still be waiting to end."""
        job, work = entry.job, entry.work
        entry.job = entry.work = None
        if job is None or work is None:
            return
        if isinstance(work, Scrub):
            work.stopped.set()
        else:
            work.commit.stop()
        if isinstance(work, Ensure):
            self._lingering[entry.digest] = (job, work)
            self.tools.ledger.release(name_of(entry.digest))  # it writes nothing more

    def _let_go(self, entry: Entry) -> None:
        self._stop(entry)
        if entry.digest not in self._lingering:
            entry.close()
        self.tools.ledger.changed(name_of(entry.digest))

    def stop(self, seconds: float) -> bool:
        """Stop everything; True when every job ended in time."""
        jobs = [entry.job for entry in self.entries.values() if entry.job]
        for entry in self.entries.values():
            self._stop(entry)
        deadline = time.monotonic() + seconds
        return all(job.done.wait(max(0.0, deadline - time.monotonic())) for job in jobs)

    def statuses(self) -> tuple[EntryStatus, ...]:
        now = time.monotonic()
        return (*(entry.status(now) for entry in self.entries.values()), *self._refused)

    def orphans(self) -> tuple[Orphan, ...]:
        """Trees that no line mentions, strangers' folders included."""
        named = {name_of(digest) for digest in self.entries}
        return tuple(
            Orphan(name=name, bytes=self.tools.ledger.measure(kind, name), partial=kind == "partial")
            for kind in ("weights", "partial")
            for name in self.tools.store.names(kind)
            if name not in named
        )
