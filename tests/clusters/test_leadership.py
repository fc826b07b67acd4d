"""Of two watchers one leads a cluster; the other follows when the first ends, however it ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest
from django.db import DatabaseError, connection

from controlplane.clusters.leadership import Leadership
from controlplane.clusters.local.fleet import LocalFleet
from controlplane.clusters.models import Cluster, ClusterType, Node
from controlplane.clusters.watching import ClusterWatcher
from controlplane.ids import new_id
from controlplane.management.commands.watch_cluster import watch_clusters
from tests.waiting import until

ONE, OTHER = new_id(), new_id()


@pytest.fixture
def pair(db: None) -> Iterator[tuple[Leadership, Leadership]]:
    """As in two processes."""
    first, second = Leadership(), Leadership()
    yield first, second
    first.close()
    second.close()


def killed(leadership: Leadership) -> None:
    """PostgreSQL ends the session, as it does when the process behind it dies."""
    with leadership._connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        (pid,) = cursor.fetchone()
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])


def test_it_leads_alone(pair: tuple[Leadership, Leadership]) -> None:
    first, second = pair
    assert [first.lead(ONE, "one"), second.lead(ONE, "one"), first.lead(ONE, "one")] == [True, False, True]
    assert second.lead(OTHER, "other"), "each cluster for itself"


def test_it_is_followed_when_it_leaves(pair: tuple[Leadership, Leadership]) -> None:
    first, second = pair
    first.lead(ONE, "one")
    first.lead(OTHER, "other")
    first.leave(ONE)
    first.leave(ONE)
    assert (second.lead(ONE, "one"), second.lead(OTHER, "other")) == (True, False)
    first.close()
    # PostgreSQL lets go of the lock when it sees the end of the connection, a moment after close() returned.
    until(lambda: second.lead(OTHER, "other"), "the other follows")


def test_it_is_followed_when_it_dies_and_knows_that_it_no_longer_leads(pair: tuple[Leadership, Leadership]) -> None:
    first, second = pair
    first.lead(ONE, "one")
    killed(first)
    assert second.lead(ONE, "one")
    with pytest.raises(DatabaseError):
        first.confirm()
    first.confirm()
    assert first.lead(ONE, "one") is False


def test_it_says_once_that_it_waits(pair: tuple[Leadership, Leadership], caplog: pytest.LogCaptureFixture) -> None:
    first, second = pair
    first.lead(ONE, "one")
    caplog.set_level("INFO")
    for _ in range(3):
        second.lead(ONE, "one")
    assert [record.message for record in caplog.records] == [
        "one is watched by another process; waiting in case it ends"
    ]


@pytest.mark.django_db(transaction=True)
def test_two_commands_watch_a_cluster_once_and_the_second_takes_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = LocalFleet(tmp_path / "fleet")
    fleet.create(nodes=1)
    Cluster.objects.create(name="home", type=ClusterType.LOCAL, address=str(fleet.folder))
    started: list[tuple[str, UUID]] = []
    run = ClusterWatcher.run

    def counted(watcher: ClusterWatcher) -> None:
        started.append((threading.current_thread().name, watcher.cluster_id))
        run(watcher)

    monkeypatch.setattr(ClusterWatcher, "run", counted)
    stops = [threading.Event(), threading.Event()]
    threads = [
        threading.Thread(target=watch_clusters, args=([], stop), kwargs={"round_seconds": 0.1}) for stop in stops
    ]
    try:
        threads[0].start()
        until(lambda: Node.objects.count() == 1, "the first watches")
        threads[1].start()
        fleet.cordon(Node.objects.get().name)
        until(lambda: not Node.objects.get().schedulable, "it still does")
        assert len(started) == 1
        stops[0].set()
        threads[0].join(60)
        until(lambda: len(started) == 2, "the second takes over")
    finally:
        for stop in stops:
            stop.set()
        for thread in threads:
            thread.join(60)
