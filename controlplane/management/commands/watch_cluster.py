"""Watch clusters and write what they say: one process for all of them, safe to kill and to start twice.

Of several processes one watches each cluster (controlplane.clusters.leadership); the others wait for it to end.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any
from uuid import UUID

from django.core.management.base import BaseCommand, CommandParser
from django.db import DatabaseError, InterfaceError, OperationalError, connections

from controlplane.clusters.leadership import Leadership
from controlplane.clusters.models import Cluster
from controlplane.clusters.registry import gateway_for
from controlplane.clusters.watching import ClusterWatcher
from controlplane.heartbeat import beat

ROUND_SECONDS = 5.0  # until a new, changed or removed cluster is noticed
STUCK_SECONDS = 60.0  # a watcher that did not come around for so long hangs
END_SECONDS = 8.0

log = logging.getLogger(__name__)


class Command(BaseCommand):
    help = "Watch every cluster (or the named ones) until SIGTERM, and keep the node rows and caches up to date."
    requires_system_checks = []  # it serves no page, so a wrong one must not stop it

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("clusters", nargs="*", metavar="CLUSTER", help="names; none means all")

    def handle(self, *args: Any, **options: Any) -> None:
        stopping = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stopping.set())
        watch_clusters(options["clusters"], stopping)


def watch_clusters(names: Iterable[str], stopping: threading.Event, *, round_seconds: float = ROUND_SECONDS) -> None:
    """Keep a watcher per cluster until ``stopping`` is set. A database that does not answer is waited for."""
    watchers: dict[tuple[UUID, str, str], ClusterWatcher] = {}
    wanted_names = frozenset(names)
    told: set[str] = set()
    leadership = Leadership()
    try:
        while not stopping.is_set():
            try:
                known = _follow(watchers, wanted_names, leadership)
                if missing := wanted_names - known - told:
                    log.warning("there is no cluster %s yet", ", ".join(sorted(missing)))
                    told |= missing
                if all(watcher.idle_seconds() < STUCK_SECONDS for watcher in watchers.values()):
                    beat()
            except (DatabaseError, InterfaceError) as error:
                log.warning("the database does not answer: %s", str(error).strip())
                if isinstance(error, (OperationalError, InterfaceError)):
                    beat()  # it waits for a database that is away: a restart would not bring that back
            finally:
                connections.close_all()
            stopping.wait(round_seconds)
    finally:
        for watcher in watchers.values():
            watcher.stop()
        for watcher in watchers.values():
            watcher.join(END_SECONDS)
        leadership.close()


def _follow(
    watchers: dict[tuple[UUID, str, str], ClusterWatcher], names: frozenset[str], leadership: Leadership
) -> set[str]:
    """One round; the names of the clusters that there are, led by this process or not."""
    try:
        leadership.confirm()
        rows = list(Cluster.objects.filter(name__in=names) if names else Cluster.objects.all())
        wanted = {(row.pk, row.type, row.address): row for row in rows if leadership.lead(row.pk, row.name)}
    except (DatabaseError, InterfaceError):
        # Watchers without a database do no harm; one that comes back is led by whoever asks first.
        leadership.close()
        raise
    for cluster_id in {key[0] for key in watchers} - {row.pk for row in rows}:
        leadership.leave(cluster_id)
    for key, watcher in list(watchers.items()):
        if key not in wanted:
            watcher.stop()
        if not watcher.is_alive():
            del watchers[key]
    for key, row in wanted.items():
        if key not in watchers:
            gateway: Callable[[], Any] = partial(gateway_for, row)
            watchers[key] = ClusterWatcher(cluster_id=row.pk, name=row.name, gateway=gateway)
            watchers[key].start()
            log.info("watching %s", row.name)
    return {row.name for row in rows}
