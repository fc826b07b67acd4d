"""Artifacts that pods of this node asked for. Only the loop's thread changes anything; asking threads wait here."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from caches.agent import verify
from caches.agent.asking import Answer, End, Found, Progress
from caches.agent.entry import Entry
from caches.agent.keeper import Keeper
from caches.agent.store import Store
from controlplane.clusters.documents import Action, ArtifactKind, DesiredEntry, EntryState, Origin, Reason

FIRST = -1  # before every order that a plan gives: a pod is waiting


@dataclass(slots=True)
class Ask:
    """One pod's question. ``progress`` and ``answer`` are set by the loop; ``changed`` says that there is news."""

    digest: str
    origin: Origin | None  # None: only what is there already can be given
    nowhere: str = "Nobody published such an artifact."  # why it is None
    started: float = field(default_factory=time.monotonic)
    progress: Progress | None = None
    answer: Answer | None = None
    changed: threading.Event = field(default_factory=threading.Event)
    taken: bool = False  # the loop has seen it
    had: int = 0  # bytes that were there when it was taken
    moved: int = 0  # bytes that had been read for it before

    def say(self, progress: Progress) -> None:
        if progress != self.progress:
            self.progress = progress
            self.changed.set()

    def end(self, end: End, message: str = "", *, found: Found = Found.MISS, count: int = 0) -> None:
        source = self.origin.connection.name if self.origin else ""
        seconds = time.monotonic() - self.started
        self.answer = Answer(end, found, count, seconds, source if count else "", message[:1000])
        self.changed.set()


class Asks:
    """``put`` and ``is_warm`` may be called from any thread, ``step`` and ``stop`` from the loop's alone."""

    def __init__(self, keeper: Keeper, store: Store, wake: Callable[[], None]) -> None:
        self._keeper, self._store, self._wake = keeper, store, wake
        self._lock = threading.Lock()
        self._waiting: list[Ask] = []
        self._warm: frozenset[str] = frozenset()

    def put(self, ask: Ask) -> None:
        with self._lock:
            self._waiting.append(ask)
        self._wake()

    def withdraw(self, ask: Ask) -> None:
        """The pod is gone. What runs for it goes on: the node becomes warm."""
        with self._lock:
            if ask in self._waiting:
                self._waiting.remove(ask)

    def is_warm(self, digest: str) -> bool:
        """Whether the loop has just said so, and the tree's marker and the names, sizes and times of its files do."""
        marker = self._store.marker(digest) if digest in self._warm else None
        if marker is None:
            return False
        try:
            found = verify.look(self._store.tree(digest), marker.files)
            return not (found.wrong or found.touched)
        except OSError:
            return False

    def step(self) -> None:
        """Give every asking pod what is known now; called after the keeper's step."""
        entries = self._keeper.entries
        self._warm = frozenset(
            digest
            for digest, entry in entries.items()
            if entry.state is EntryState.READY and entry.line.action is Action.ENSURE
        )
        with self._lock:
            waiting = list(self._waiting)
        for ask in waiting:
            if not ask.taken:
                self._take(ask)
            if ask.answer is None:
                self._tell(ask, entries.get(ask.digest))
            if ask.answer is not None:
                self.withdraw(ask)

    def stop(self) -> None:
        """The agent ends: nobody waits for it."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for ask in waiting:
            ask.end(End.STOPPING, "The agent is being stopped.")

    def _take(self, ask: Ask) -> None:
        ask.taken = True
        known = self._keeper.entries.get(ask.digest)
        if known is not None and known.line.action is Action.EVICT:
            return ask.end(End.LEAVING, "It is being evicted from this node.")
        if ask.origin is not None:
            self._keeper.ask(_line(ask.digest, ask.origin), ask.origin.connection)
        elif known is None:
            return ask.end(End.UNKNOWN, ask.nowhere)
        else:
            self._keeper.look_again(ask.digest)
        entry = self._keeper.entries.get(ask.digest)
        if entry is not None:
            status = entry.status(time.monotonic())
            ask.had, ask.moved = status.bytes_done, status.bytes_moved
        return None

    def _tell(self, ask: Ask, entry: Entry | None) -> None:
        if entry is None:
            return ask.end(End.FAILED, "The agent dropped it.")
        status = entry.status(time.monotonic())
        count = max(0, status.bytes_moved - ask.moved)
        if status.state is EntryState.READY:
            self._store.touch_used(ask.digest)
            found = Found.HIT if not count else Found.PARTIAL if ask.had else Found.MISS
            return ask.end(End.READY, found=found, count=count)
        if status.state is EntryState.EVICTING or entry.line.action is Action.EVICT:
            return ask.end(End.LEAVING, "It is being evicted from this node.", count=count)
        if status.state is EntryState.FAILED:
            self._keeper.unask(ask.digest)
            no_room = status.reason == Reason.INSUFFICIENT_CAPACITY
            return ask.end(End.NO_ROOM if no_room else End.FAILED, status.message, count=count)
        if self._keeper.paused and status.state in (EntryState.QUEUED, EntryState.ABSENT):
            self._keeper.unask(ask.digest)
            return ask.end(End.PAUSED, "Transfers are paused.", count=count)
        rate, eta = status.rate_bytes_per_second, status.eta_seconds
        return ask.say(Progress(status.state, status.bytes_done, status.bytes_total, rate, eta, status.message))


def _line(digest: str, origin: Origin) -> DesiredEntry:
    return DesiredEntry(
        digest=digest,
        kind=ArtifactKind.WEIGHTS,
        action=Action.ENSURE,
        connection=origin.connection.name,
        uri=origin.uri,
        size_bytes=origin.size_bytes,
        order=FIRST,
        witness=origin.witness,
    )
