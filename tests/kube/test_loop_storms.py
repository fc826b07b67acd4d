"""An API server that forgets and throttles, under the whole loop: nothing is lost, nothing is asked in circles."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from caches.models import CacheEntry
from caches.services.loop.rounds import pool_reconcile
from controlplane.clusters.gateway import Kind
from controlplane.clusters.models import Cluster, Node
from tests.kube.faulty import Answer, FaultyProxy, Hang
from tests.kube.fleets import pin_versions, ready
from tests.kube.world import KubeWorld, sent
from tests.plugins.kube import KubeApi
from tests.waiting import until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.faults]
THROTTLED = Answer(429, headers={"Retry-After": "1"})


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds are run by the tests, not by a worker."""
    monkeypatch.setattr("controlplane.celery.publish", lambda task, *ids, countdown=0.0: True)


def test_a_slow_watcher_that_was_compacted_away_loses_no_change(
    make_world: Callable[..., KubeWorld], proxy: FaultyProxy, kube_api: KubeApi
) -> None:
    world = make_world(nodes=3, watch=True)
    first, second, _ = world.names
    with world.through(proxy.client(read_seconds=5.0)), world.watched(watch_seconds=2.0):
        until(lambda: Node.objects.filter(lost_at=None).count() == 3, "it has listed the nodes")
        proxy.rule = lambda method, path: Hang() if "watch=true" in path else None
        world.label(first, {"team": "search"})
        world.report(second)
        kube_api.compact()
        proxy.rule = lambda method, path: None
        seen = len(proxy.seen)
        started = time.monotonic()
        until(lambda: Node.objects.get(name=first).labels.get("team") == "search", "the label is told", seconds=150)
        until(lambda: Node.objects.get(name=second).reported_at is not None, "the report is told", seconds=150)
        spent = time.monotonic() - started
        assert len(proxy.seen) - seen <= 30 + 3 * len(Kind) * spent, "lists and watches of every kind, and no hot loop"
        until(lambda: Cluster.objects.get().error == "", "nothing is wrong any more", seconds=150)


def test_a_storm_of_429_is_waited_out(make_world: Callable[..., KubeWorld], proxy: FaultyProxy) -> None:
    world = make_world(nodes=12, watch=True, max_downloads=100)
    pin_versions(world, 2)
    with world.through(proxy.client()), world.watched(watch_seconds=2.0):
        until(lambda: Node.objects.filter(lost_at=None, pool=world.pool).count() == 12, "it has listed the nodes")
        proxy.rule = lambda method, path: THROTTLED
        world.report_all()
        seen, started = len(proxy.seen), time.monotonic()
        assert pool_reconcile(pool_id=world.pool.pk) is None
        assert "Throttled" in world.loop().error
        assert written(proxy, seen) <= 8, "a round stops asking at the first refusals"
        threading.Event().wait(3.0)
        # What was on its way when it began, and then each kind once in the second that it was told to wait.
        most = len(Kind) * (2 + time.monotonic() - started) + 8
        assert len(proxy.seen) - seen <= most
        proxy.rule = lambda method, path: None
        until(lambda: Node.objects.filter(reported_at__isnull=False).count() == 12, "every report is told", seconds=150)
        until(lambda: pool_reconcile(pool_id=world.pool.pk) is not None, "the round goes through")
        world.obey()
        until(lambda: ready(world) == 24, "every copy is told", seconds=150)
    assert set(world.generations().values()) <= {2}, "nothing was applied twice"


def written(proxy: FaultyProxy, since: int) -> int:
    """Requests of rounds: whoever watches only reads."""
    return sum(1 for method, _ in proxy.seen[since:] if method != "GET")


def test_writers_at_the_same_time_lose_nothing(make_world: Callable[..., KubeWorld]) -> None:
    """Agents report, people label and Hearth applies at once: no report, label or line is lost to another's write."""
    world = make_world(nodes=8)
    pin_versions(world, 2)
    world.report_all()
    world.observe()
    world.reconcile()
    world.observe()
    problems: list[BaseException] = []

    def write(work: Callable[[str], Any]) -> None:
        try:
            for turn in range(5):
                for name in world.names:
                    work(f"{name} {turn}")
        except BaseException as error:
            problems.append(error)

    def label(word: str) -> None:
        name, turn = word.split()
        world.label(name, {f"person-{turn}": "x"})

    def report(word: str) -> None:
        world.report(word.split()[0])

    for name in world.names:
        world.obey(name)
    threads = [threading.Thread(target=write, args=(work,)) for work in (label, report)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        world.observe()
        world.reconcile()
    for thread in threads:
        thread.join(200)
    assert problems == [] and not any(thread.is_alive() for thread in threads)
    world.observe()
    count = sent(world.gateway.client)  # type: ignore[attr-defined]
    world.reconcile()
    assert count().get("PATCH", 0) <= 8
    assert CacheEntry.objects.filter(state="Ready").count() == 16
    for name in world.names:
        labels = world.labels(name)
        assert {f"person-{turn}" for turn in range(5)} <= labels.keys()
        assert sum("weights-cache-ready" in label for label in labels) == 2
        assert len(world.desired(name)) == 2
    assert world.loop().error == ""
