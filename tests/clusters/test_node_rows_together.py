"""Several writers of the same rows: two watchers at once, people beside them, and any order of what is seen."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connections
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.django import TestCase

from controlplane.audit.services import SYSTEM
from controlplane.clusters.gateway import EventType, ObservedNode
from controlplane.clusters.models import Cluster, Node
from controlplane.clusters.services import node_assign_pools, nodes_changed, nodes_relisted, pool_update
from controlplane.errors import Stale
from tests import factories
from tests.clusters.sightings import T0, event, seen


def _side_by_side(*works: Callable[[], None]) -> list[BaseException]:
    """Run them in threads with their own connections; what they raised."""
    raised: list[BaseException] = []
    start = threading.Barrier(len(works))

    def run(work: Callable[[], None]) -> None:
        try:
            start.wait(60)
            work()
        except BaseException as error:
            raised.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return raised


@pytest.mark.django_db(transaction=True)
def test_it_bears_two_watchers_and_a_person_at_once() -> None:
    cluster = factories.cluster()
    pool = factories.pool(of=cluster, name="pool-a")
    rounds = [[seen(f"a-{n}", f"{n}-{r}", created_at=T0 + timedelta(seconds=r)) for n in range(6)] for r in range(6)]

    def watch(seed: int) -> Callable[[], None]:
        order = random.Random(seed)

        def work() -> None:
            for at, items in enumerate(rounds):
                mixed = order.sample(items, len(items))
                nodes_relisted(cluster_id=cluster.pk, items=mixed, at=T0 + timedelta(seconds=at))
                events = [event(EventType.MODIFIED, item) for item in mixed]
                nodes_changed(cluster_id=cluster.pk, events=events, at=T0 + timedelta(seconds=at))

        return work

    def person() -> None:
        for number in range(10):
            pool_update(actor=SYSTEM, pool_id=pool.pk, changes={"priority": number})
            node_assign_pools(cluster_id=cluster.pk)

    assert _side_by_side(watch(1), watch(2), person) == []
    live = Node.objects.filter(cluster=cluster, lost_at=None)
    assert dict(live.values_list("name", "uid")) == {item.name: item.uid for item in rounds[-1]}
    assert live.filter(pool=pool).count() == 6
    assert Node.objects.filter(cluster=cluster).exclude(lost_at=None).count() == 30


@pytest.mark.django_db(transaction=True)
def test_it_lets_one_of_two_people_win() -> None:
    pool = factories.pool()
    read_at = pool.updated_at

    def change(value: int) -> Callable[[], None]:
        return lambda: _ignore(
            pool_update(actor=SYSTEM, pool_id=pool.pk, changes={"max_downloads": value}, if_updated_at=read_at)
        )

    raised = _side_by_side(*(change(value) for value in range(101, 105)))
    assert [type(error) for error in raised] == [Stale] * 3
    pool.refresh_from_db()
    assert pool.max_downloads in range(101, 105)


def _ignore(_value: object) -> None:
    return None


# One machine name lives through incarnations; each is seen, changes, and is replaced or removed.
steps = st.lists(
    st.tuples(st.sampled_from(["a", "b"]), st.sampled_from(["change", "replace", "remove"]), st.booleans()),
    max_size=12,
)


class TestAnyHistory(TestCase):
    """Rows depend on what happened, not on how the news of it were cut, doubled or listed."""

    def setUp(self) -> None:
        self.cluster = factories.cluster()
        factories.pool(of=self.cluster, name="pool-a")

    @settings(max_examples=25, deadline=None)
    @given(history=steps, cuts=st.randoms(use_true_random=False))
    def test_it_ends_like_the_cluster(self, history: list[tuple[str, str, bool]], cuts: random.Random) -> None:
        Node.objects.filter(cluster=self.cluster).delete()
        truth, news = _play(history)
        while news:
            count = cuts.randint(1, len(news))
            batch, news = news[:count], news[count:]
            for _ in range(cuts.randint(1, 2)):  # told twice now and then
                nodes_changed(cluster_id=self.cluster.pk, events=batch, at=T0)
        self._agrees(truth)
        nodes_relisted(cluster_id=self.cluster.pk, items=list(truth.values()), at=T0 + timedelta(hours=1))
        self._agrees(truth)

    def _agrees(self, truth: dict[str, ObservedNode]) -> None:
        fields = ("name", "uid", "ready", "joined_at")
        rows = Node.objects.filter(cluster=self.cluster, lost_at=None).values_list(*fields)
        assert sorted(rows) == sorted((n.name, n.uid, n.ready, n.created_at) for n in truth.values())


def _play(history: list[tuple[str, str, bool]]) -> tuple[dict[str, ObservedNode], list[Any]]:
    """What is there in the end, and the events that a watch would tell of it."""
    truth: dict[str, ObservedNode] = {}
    news = []
    for number, (name, act, ready) in enumerate(history):
        known = truth.get(name)
        if known is not None and act != "change":
            news.append(event(EventType.DELETED, truth.pop(name)))
        if act == "remove":
            continue
        if known is not None and act == "change":
            truth[name] = seen(name, known.uid, ready=ready, created_at=known.created_at)
            news.append(event(EventType.MODIFIED, truth[name]))
        else:
            truth[name] = seen(name, f"{name}-{number}", ready=ready, created_at=T0 + timedelta(seconds=number))
            news.append(event(EventType.ADDED, truth[name]))
    return truth, news


def test_it_reads_histories_as_it_should() -> None:
    truth, news = _play([("a", "change", True), ("a", "replace", False), ("b", "remove", True), ("a", "remove", True)])
    assert truth == {}
    assert [item.type for item in news] == [EventType.ADDED, EventType.DELETED, EventType.ADDED, EventType.DELETED]


@pytest.mark.django_db
def test_it_needs_its_cluster() -> None:
    gone = factories.cluster()
    cluster_id = gone.pk
    gone.delete()
    with pytest.raises(Cluster.DoesNotExist):
        nodes_relisted(cluster_id=cluster_id, items=[seen("a-1")], at=T0)
    assert nodes_changed(cluster_id=cluster_id, events=[], at=T0) == frozenset()
