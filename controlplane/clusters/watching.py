"""Watching one cluster: what the readers see becomes node rows, and then every app's sink hears of it.

Nothing is remembered between two runs: a watcher that starts lists everything, and all that it calls is idempotent.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from uuid import UUID

from django.db import InterfaceError, OperationalError, connections

from controlplane.clusters import services
from controlplane.clusters.gateway import (
    ClusterGateway,
    EventType,
    Kind,
    Observed,
    ObservedNode,
    ObservedNodeCache,
    WatchEvent,
)
from controlplane.clusters.models import Cluster
from controlplane.clusters.readers import Changed, Failed, KindReader, Message, Relisted, backoff
from controlplane.clusters.sinks import registered_sinks

QUEUE_SIZE = 1000
BATCH_SIZE = 200

log = logging.getLogger(__name__)


class ClusterWatcher(threading.Thread):
    """Delivers one cluster until ``stop``. The readers wait while the database does."""

    def __init__(
        self,
        *,
        cluster_id: UUID,
        name: str,
        gateway: Callable[[], ClusterGateway],
        watch_seconds: float | None = None,
    ) -> None:
        super().__init__(name=f"watch {name}", daemon=True)
        self.cluster_id = cluster_id
        self.cluster = name
        self._came_around = time.monotonic()
        self._stopping = threading.Event()
        self._queue: queue.Queue[Message] = queue.Queue(QUEUE_SIZE)
        options = {} if watch_seconds is None else {"watch_seconds": watch_seconds}
        self._errors: dict[Kind, str] = {}  # what is wrong now, kind by kind
        self._readers: dict[Kind, KindReader] = {}
        for kind in Kind:
            # Nodes first: what the other kinds say is about nodes that have rows. And pods before their events.
            first = Kind.POD if kind is Kind.EVENT else Kind.NODE
            after = self._readers[first].listed if kind is not Kind.NODE else None
            self._readers[kind] = KindReader(
                name=name, kind=kind, gateway=gateway, into=self._queue, stopping=self._stopping, after=after, **options
            )

    def stop(self) -> None:
        """Ask it to end; join it afterwards."""
        self._stopping.set()

    def idle_seconds(self) -> float:
        """How long ago it last came around to ask for news; long while a delivery hangs or the database is away."""
        return time.monotonic() - self._came_around

    def run(self) -> None:
        for reader in self._readers.values():
            reader.start()
        try:
            while not self._stopping.is_set():
                self._came_around = time.monotonic()
                if batch := self._take():
                    self._deliver(batch)
        except Cluster.DoesNotExist:
            log.info("%s: the cluster was removed", self.name)
        finally:
            self._stopping.set()
            connections.close_all()

    def _take(self) -> list[Message]:
        """What is there now, a bounded number of messages; empty when nothing came for a moment."""
        try:
            batch = [self._queue.get(timeout=0.5)]
        except queue.Empty:
            return []
        while len(batch) < BATCH_SIZE:
            try:
                batch.append(self._queue.get_nowait())
            except queue.Empty:
                break
        return batch

    def _deliver(self, batch: Sequence[Message]) -> None:
        """Deliver until it is done: the same batch again after the database's failures, a new list after others."""
        failures = 0
        while not self._stopping.is_set():
            try:
                return self._deliver_once(batch)
            except (OperationalError, InterfaceError) as error:
                failures += 1
                log.warning("%s: the database does not answer: %s", self.name, str(error).strip())
                connections.close_all()
                self._stopping.wait(min(5.0, backoff(failures)))

    def _deliver_once(self, batch: Sequence[Message]) -> None:
        increments: list[Changed] = []
        for message in batch:
            if isinstance(message, Changed):
                increments.append(message)
                continue
            self._changed(increments)
            increments = []
            if isinstance(message, Relisted):
                self._guarded({message.kind}, self._relisted, message)
            else:
                self._failed(message)
        self._changed(increments)

    def _failed(self, message: Failed) -> None:
        if self._errors.get(message.kind) != message.message:
            log.warning("%s: %s", self.name, message.message)
        self._errors[message.kind] = message.message
        services.cluster_failed(cluster_id=self.cluster_id, error=self._error())

    def _contacted(self, kinds: set[Kind], at: datetime) -> None:
        for kind in kinds:
            self._errors.pop(kind, None)
        services.cluster_contacted(cluster_id=self.cluster_id, at=at, nodes_too=Kind.NODE in kinds, error=self._error())

    def _error(self) -> str:
        return "; ".join(self._errors[kind] for kind in Kind if kind in self._errors)

    def _relisted(self, message: Relisted) -> None:
        kind, items, at = message.kind, message.items, message.at
        if kind is Kind.NODE:
            services.cluster_identified(cluster_id=self.cluster_id, uid=message.cluster_uid)
            nodes = [item for item in items if isinstance(item, ObservedNode)]
            services.nodes_relisted(cluster_id=self.cluster_id, items=nodes, at=at)
        self._statuses(items, at)
        for sink in registered_sinks():
            sink.relisted(str(self.cluster_id), kind, items, at)
        self._contacted({kind}, at)

    def _changed(self, increments: Sequence[Changed]) -> None:
        if increments:
            events = tuple(increment.event for increment in increments)
            self._guarded({event.kind for event in events}, self._increments, events, increments[-1].at)

    def _increments(self, events: tuple[WatchEvent, ...], at: datetime) -> None:
        services.nodes_changed(cluster_id=self.cluster_id, events=events, at=at)
        told = tuple(event for event in events if event.type is not EventType.BOOKMARK)
        self._statuses([event.object for event in told if event.type is not EventType.DELETED], at)
        for sink in registered_sinks() if told else ():
            sink.changed(str(self.cluster_id), told, at)
        # Not for every event: bookmarks come often enough to confirm, and seldom enough to cost little.
        if confirmed := {event.kind for event in events if event.type is EventType.BOOKMARK}:
            self._contacted(confirmed, at)

    def _statuses(self, objects: Sequence[Observed | None], at: datetime) -> None:
        caches = [item for item in objects if isinstance(item, ObservedNodeCache)]
        if caches:
            services.node_statuses(cluster_id=self.cluster_id, items=caches, at=at)

    def _guarded(self, kinds: set[Kind], deliver: Callable[..., None], *arguments: object) -> None:
        """One observation that cannot be digested must not stop the others: say so, and list these kinds again."""
        try:
            deliver(*arguments)
        except (OperationalError, InterfaceError, Cluster.DoesNotExist):
            raise
        except Exception as error:
            log.exception("%s: an observation could not be taken in", self.name)
            for kind in kinds:
                self._errors[kind] = f"{kind.value}: Hearth could not take in what the cluster says: {error}"
                self._readers[kind].relist.set()
            services.cluster_failed(cluster_id=self.cluster_id, error=self._error())
            self._stopping.wait(1.0)
