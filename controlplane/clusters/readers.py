"""Reading a cluster without an end: list, then watch, then list again after every gap. No database here.

One thread per kind puts what it sees into a bounded queue. A slow taker slows the readers down; a token that grew too
old meanwhile is Gone, and a new list heals it.
"""

from __future__ import annotations

import logging
import queue
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from controlplane.clusters.gateway import (
    ClusterGateway,
    EventType,
    GatewayError,
    Gone,
    Kind,
    Observed,
    Throttled,
    WatchEvent,
)

WATCH_SECONDS = 5.0  # also how often a quiet cluster confirms that it is there
RELIST_SECONDS = 600.0  # heals what nobody noticed
FIRST_BACKOFF_SECONDS = 0.5
LONGEST_BACKOFF_SECONDS = 30.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Relisted:
    """Everything of one kind."""

    kind: Kind
    items: tuple[Observed, ...]
    at: datetime
    cluster_uid: str = ""


@dataclass(frozen=True, slots=True)
class Changed:
    """One increment; a BOOKMARK says that the watch is up to date."""

    event: WatchEvent
    at: datetime


@dataclass(frozen=True, slots=True)
class Failed:
    """The cluster did not answer."""

    kind: Kind
    message: str


Message = Relisted | Changed | Failed


class KindReader(threading.Thread):
    """Reads one kind of one cluster until ``stopping`` is set. ``relist`` asks for a list at the next occasion."""

    def __init__(
        self,
        *,
        name: str,
        kind: Kind,
        gateway: Callable[[], ClusterGateway],
        into: queue.Queue[Message],
        stopping: threading.Event,
        after: threading.Event | None = None,
        watch_seconds: float = WATCH_SECONDS,
        relist_seconds: float = RELIST_SECONDS,
    ) -> None:
        super().__init__(name=f"{name}/{kind.value}", daemon=True)
        self.kind = kind
        self.relist = threading.Event()
        self.listed = threading.Event()
        self._gateway = gateway
        self._into = into
        self._stopping = stopping
        self._after = after  # nodes are listed before what refers to them
        self._watch_seconds = watch_seconds
        self._relist_seconds = relist_seconds

    def run(self) -> None:
        failures = 0
        token = ""
        listed_at = 0.0
        while not self._stopping.is_set():
            if self._after is not None and not self._after.wait(0.2):
                continue
            try:
                if not token or self.relist.is_set() or time.monotonic() - listed_at > self._relist_seconds:
                    self.relist.clear()
                    token, listed_at = self._list(), time.monotonic()
                token = self._watch(token)
                failures = 0
            except Gone as error:
                token = ""
                log.info("%s: %s Listing again.", self.name, error)
                # A store that is compacted faster than it is read must not be listed in a tight circle.
                self._stopping.wait(min(1.0, FIRST_BACKOFF_SECONDS * failures))
                failures += 1
            except Exception as error:
                # Also what a gateway should not raise: one kind's bug must not end the watching of the others.
                failures += 1
                token = ""
                if not isinstance(error, GatewayError):
                    log.exception("%s: the gateway failed unexpectedly", self.name)
                self._put(Failed(self.kind, f"{self.kind.value}: {str(error) or type(error).__name__}"))
                self._stopping.wait(backoff(failures, error))

    def _list(self) -> str:
        listing = self._gateway().list(self.kind)
        self._put(Relisted(self.kind, listing.items, datetime.now(UTC), listing.cluster_uid))
        self.listed.set()
        return listing.token

    def _watch(self, token: str) -> str:
        for event in self._gateway().watch(self.kind, token, self._watch_seconds):
            if self._stopping.is_set() or self.relist.is_set():
                return token
            self._put(Changed(event, datetime.now(UTC)))
            token = event.token
        # A cluster without bookmarks answered all the same.
        bookmark = WatchEvent(EventType.BOOKMARK, self.kind, token, None)
        self._put(Changed(bookmark, datetime.now(UTC)))
        return token

    def _put(self, message: Message) -> None:
        while not self._stopping.is_set():
            try:
                return self._into.put(message, timeout=0.5)
            except queue.Full:
                continue


def backoff(failures: int, error: BaseException | None = None) -> float:
    """Seconds to wait after so many failures in a row: doubling, capped, half of it left to chance, and never less than
    the cluster asked for."""
    seconds: float = min(LONGEST_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2 ** min(failures - 1, 10))
    seconds *= random.uniform(0.5, 1.0)
    if isinstance(error, Throttled):
        seconds = max(seconds, error.retry_after_seconds + random.uniform(0.0, FIRST_BACKOFF_SECONDS))
    return seconds
