"""The main loop: hear what is wanted, make it so, say what is. Survives an unreachable cluster and its own death."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime

from caches.agent import VERSION
from caches.agent.asks import Asks
from caches.agent.capacity import Ledger
from caches.agent.desk import Desk
from caches.agent.ensure import OpenSource, Tools
from caches.agent.keeper import Keeper
from caches.agent.limits import RequestGate, TokenBucket
from caches.agent.link import NodeLink
from caches.agent.status import Reporter
from caches.agent.store import Store
from caches.agent.tuning import Tuning
from controlplane.clusters.documents import NodeCacheStatus
from controlplane.clusters.gateway import Conflict, GatewayError, Throttled

log = logging.getLogger(__name__)
TICK_SECONDS = 1.0  # how late a retry time, a vanished tree or a freed disk may be noticed


class Replaced(Exception):
    """The node is another incarnation now: this agent must not write any more."""


def _now() -> datetime:
    return datetime.now(UTC)


class Runner:
    """``run`` blocks until ``stop`` is called from another thread or a signal handler."""

    def __init__(
        self,
        *,
        link: NodeLink,
        store: Store,
        open_source: OpenSource,
        tuning: Tuning | None = None,
        clock: Callable[[], datetime] = _now,
        chance: Callable[[], float] = random.random,
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        self._link, self._store = link, store
        self._tuning = tuning or Tuning()
        self._wake, self._stopping, self._news = threading.Event(), threading.Event(), threading.Event()
        self._clock = clock
        self._generation = 0
        self._read_at = self._report_after = 0.0
        self._disk: tuple[int, int] | None = None
        ledger = Ledger(store, self._read_disk, self._tuning)
        self.tools = Tools(
            link=link, store=store, ledger=ledger, open_source=open_source, tuning=self._tuning,
            gate=RequestGate(8), bucket=TokenBucket(None), clock=clock, wake=self._wake.set,
            scrub_bucket=TokenBucket(self._tuning.scrub_bytes_per_second), beat=beat,
        )  # fmt: skip
        self.keeper = Keeper(self.tools, chance)
        self.asks = Asks(self.keeper, store, self._wake.set)
        self._desk = Desk(store, link, self.asks)
        self._reporter = Reporter(self._tuning, self._tuning.unassigned_interval_seconds)

    def stop(self) -> None:
        self._stopping.set()
        self._wake.set()

    def run(self) -> bool:
        """True when every job ended in time after ``stop``. Raises Replaced, StoreBusy, OSError (no usable store)."""
        self._store.prepare()
        with self._store.lock(self._tuning.lock_wait_seconds, self._stopping.is_set):
            threading.Thread(target=self._store.empty_trash, name="trash", daemon=True).start()
            threading.Thread(target=self._listen, name="listen", daemon=True).start()
            self._news.set()
            try:
                self._desk.open()
                while not self._stopping.is_set():
                    self.tick()
                    self._wake.wait(min(TICK_SECONDS, self._reporter.interval_seconds))
                    self._wake.clear()
            finally:
                self._desk.close()
                self.asks.stop()
                ended = self.keeper.stop(2.0)
            return ended

    def tick(self) -> None:
        """One round. Whatever the cluster answers, the node's own work goes on."""
        beat = self.tools.beat
        beat()
        try:
            self._read_desired()
        except GatewayError as error:
            log.warning("the cluster does not answer, going on with what is known: %s", error)
        beat()
        self.keeper.step()
        self.asks.step()
        beat()
        try:
            self._report()
        except Conflict as error:
            raise Replaced(str(error)) from error
        except GatewayError as error:
            pause = min(5.0, self._reporter.interval_seconds)
            if isinstance(error, Throttled):
                pause = max(pause, error.retry_after_seconds)
            self._report_after = time.monotonic() + pause
            log.warning("the report was not taken: %s", error)

    def _read_desired(self) -> None:
        now = time.monotonic()
        if not self._news.is_set() and now - self._read_at < self._reporter.interval_seconds:
            return
        self._news.clear()
        self._read_at = now
        desired = self._link.desired()
        if desired is None or desired.spec.node_uid != self._link.node_uid:
            return  # no spec is no wish: nothing is stopped and nothing is removed
        if desired.generation != self._generation:
            self._generation = desired.generation
            if desired.spec.pool:
                self._reporter.interval_seconds = max(0.1, desired.spec.status_interval_seconds)
            self.keeper.follow(desired.spec)

    def _report(self) -> None:
        now = time.monotonic()
        if now < self._report_after:
            return
        status = NodeCacheStatus(
            node_name=self._link.node_name,
            node_uid=self._link.node_uid,
            observed_generation=self._generation,
            reported_at=self._clock(),
            capacity=self.tools.ledger.status(),
            entries=self.keeper.statuses(),
            orphans=self.keeper.orphans(),
            agent_version=VERSION,
        )
        if self._reporter.due(status, now):
            status = self._reporter.economical(status, now)
            self._link.report(status)
            self._reporter.sent(status, now)

    def _read_disk(self) -> tuple[int, int] | None:
        """The cluster's word on the disk, the last one when it does not answer."""
        try:
            self._disk = self._link.disk()
        except GatewayError as error:
            log.warning("the disk's size was not told: %s", error)
        return self._disk

    def _listen(self) -> None:
        """Wake the loop when the generation moves, so that a wish is heard at once."""
        while not self._stopping.is_set():
            known = self._generation
            try:
                if self._link.wait(known, self._tuning.desired_wait_seconds):
                    self._news.set()
                    self._wake.set()
                    self._stopping.wait(0.05)
            except GatewayError:
                self._stopping.wait(1.0)
