"""Node rows follow what the cluster says: repeated, late or out of order, they end up the same."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from controlplane.clusters import sinks
from controlplane.clusters.gateway import EventType, ObservedNodeCache
from controlplane.clusters.models import Cluster, Node
from controlplane.clusters.services import (
    cluster_contacted,
    cluster_failed,
    cluster_identified,
    node_statuses,
    nodes_changed,
    nodes_relisted,
)
from tests import factories
from tests.clusters.sightings import T0, event, report, seen

pytestmark = pytest.mark.django_db
LATER = T0 + timedelta(minutes=1)


@pytest.fixture
def cluster() -> Cluster:
    made = factories.cluster(observed_at=None)
    factories.pool(of=made, name="pool-a")
    return made


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[frozenset[UUID]]]:
    """What the listeners were told of changed pools."""
    heard: list[frozenset[UUID]] = []
    monkeypatch.setattr(sinks, "_pools_listeners", [heard.append])
    yield heard


def _live(cluster: Cluster) -> dict[str, str]:
    return dict(Node.objects.filter(cluster=cluster, lost_at=None).values_list("name", "uid"))


def _facts(cluster: Cluster) -> list[tuple[object, ...]]:
    fields = ("name", "uid", "labels", "ready", "schedulable", "joined_at", "observed_at", "lost_at", "pool_id")
    return list(Node.objects.filter(cluster=cluster).order_by("uid").values_list(*fields))


def test_it_makes_a_row_for_every_node_and_gives_it_its_pool(cluster: Cluster) -> None:
    pool = cluster.pools.get()
    strange = seen("b-1", labels={}, ready=None, schedulable=False)

    assert nodes_relisted(cluster_id=cluster.pk, items=[seen("a-1"), strange], at=LATER) == {pool.pk}
    row = Node.objects.get(name="a-1")
    assert (row.uid, row.pool, row.ready, row.schedulable) == ("uid-a-1", pool, True, True)
    assert (row.joined_at, row.observed_at, row.reported_at, row.capacity_bytes) == (T0, LATER, None, None)
    other = Node.objects.get(name="b-1")
    assert (other.pool, other.ready, other.schedulable) == (None, None, False)


def test_it_changes_nothing_when_it_is_told_the_same_again(cluster: Cluster) -> None:
    items = [seen("a-1"), seen("a-2", ready=False)]
    nodes_relisted(cluster_id=cluster.pk, items=items, at=LATER)
    before = _facts(cluster)

    assert nodes_relisted(cluster_id=cluster.pk, items=items, at=LATER) == frozenset()
    nodes_changed(cluster_id=cluster.pk, events=[event(EventType.ADDED, item) for item in items], at=LATER)
    assert _facts(cluster) == before


def test_it_closes_the_old_incarnation_of_a_replaced_node(cluster: Cluster) -> None:
    nodes_relisted(cluster_id=cluster.pk, items=[seen("a-1", "one")], at=T0)
    replaced = seen("a-1", "two", created_at=LATER)
    nodes_relisted(cluster_id=cluster.pk, items=[replaced], at=LATER)

    old, new = Node.objects.get(uid="one"), Node.objects.get(uid="two")
    assert (old.lost_at, old.ready) == (LATER, None)
    assert (new.lost_at, new.joined_at) == (None, LATER)
    assert old.pool == new.pool


def test_it_follows_increments_of_a_replacement_in_any_grouping(cluster: Cluster) -> None:
    one, two = seen("a-1", "one"), seen("a-1", "two", created_at=LATER)
    steps = [event(EventType.ADDED, one), event(EventType.DELETED, one), event(EventType.ADDED, two)]
    nodes_changed(cluster_id=cluster.pk, events=steps, at=LATER)
    assert _live(cluster) == {"a-1": "two"}

    other = factories.cluster()
    for step in steps:
        nodes_changed(cluster_id=other.pk, events=[step], at=LATER)
    assert _live(other) == {"a-1": "two"}
    assert Node.objects.get(cluster=other, uid="one").lost_at == LATER


@pytest.mark.parametrize("known", [True, False])
def test_it_takes_the_newest_of_two_incarnations_told_at_once(cluster: Cluster, known: bool) -> None:
    one, two = seen("a-1", "one", ready=False), seen("a-1", "two", created_at=LATER)
    if known:
        nodes_relisted(cluster_id=cluster.pk, items=[seen("a-1", "one")], at=T0)
    for events in ([one, two], [two, one]):
        nodes_changed(cluster_id=cluster.pk, events=[event(EventType.MODIFIED, item) for item in events], at=LATER)
        assert _live(cluster) == {"a-1": "two"}
    assert list(Node.objects.exclude(lost_at=None).values_list("uid", flat=True)) == (["one"] if known else [])


def test_it_marks_what_is_missing_from_a_complete_listing_as_lost(cluster: Cluster) -> None:
    nodes_relisted(cluster_id=cluster.pk, items=[seen("a-1"), seen("a-2")], at=T0)
    nodes_relisted(cluster_id=cluster.pk, items=[seen("a-2")], at=LATER)
    assert _live(cluster) == {"a-2": "uid-a-2"}
    nodes_relisted(cluster_id=cluster.pk, items=[], at=LATER)
    assert Node.objects.get(uid="uid-a-1").lost_at == LATER
    assert _live(cluster) == {}


def test_it_touches_no_other_cluster(cluster: Cluster) -> None:
    other = factories.node()
    nodes_relisted(cluster_id=cluster.pk, items=[seen(other.name, other.uid)], at=T0)
    nodes_relisted(cluster_id=cluster.pk, items=[], at=LATER)
    other.refresh_from_db()
    assert other.lost_at is None


def test_it_ignores_an_old_word_about_a_replaced_node(cluster: Cluster) -> None:
    old, new = seen("a-1", "one"), seen("a-1", "two", created_at=LATER)
    nodes_relisted(cluster_id=cluster.pk, items=[new], at=LATER)

    nodes_changed(cluster_id=cluster.pk, events=[event(EventType.MODIFIED, old)], at=LATER)
    nodes_changed(cluster_id=cluster.pk, events=[event(EventType.DELETED, old)], at=LATER)
    nodes_relisted(cluster_id=cluster.pk, items=[old], at=LATER)
    assert _live(cluster) == {"a-1": "two"}


def test_it_wakes_no_lost_node_by_an_echo_but_by_a_listing(cluster: Cluster) -> None:
    nodes_relisted(cluster_id=cluster.pk, items=[seen("a-1")], at=T0)
    nodes_changed(cluster_id=cluster.pk, events=[event(EventType.DELETED, seen("a-1"))], at=T0)
    nodes_changed(cluster_id=cluster.pk, events=[event(EventType.MODIFIED, seen("a-1"))], at=LATER)
    assert _live(cluster) == {}

    nodes_relisted(cluster_id=cluster.pk, items=[seen("a-1")], at=LATER)
    assert _live(cluster) == {"a-1": "uid-a-1"}
    assert Node.objects.get().observed_at == LATER


@pytest.mark.parametrize("change", [{"ready": False}, {"ready": None}, {"schedulable": False}, {"labels": {"x": "y"}}])
def test_it_tells_the_pool_when_a_node_leaves_it_and_leaves_other_changes_to_who_hears_of_nodes(
    cluster: Cluster,
    told: list[frozenset[UUID]],
    django_capture_on_commit_callbacks: object,
    change: dict[str, Any],
) -> None:
    nodes_relisted(cluster_id=cluster.pk, items=[seen("a-1")], at=T0)
    with django_capture_on_commit_callbacks(execute=True):  # type: ignore[operator]
        nodes_changed(cluster_id=cluster.pk, events=[event(EventType.MODIFIED, seen("a-1", **change))], at=LATER)
    assert frozenset().union(*told) == ({cluster.pools.get().pk} if "labels" in change else set())
    row = Node.objects.get()
    assert all(getattr(row, name) == value for name, value in change.items())


def test_it_tells_no_pool_when_nothing_changed(
    cluster: Cluster, told: list[frozenset[UUID]], django_capture_on_commit_callbacks: object
) -> None:
    nodes_relisted(cluster_id=cluster.pk, items=[seen("a-1")], at=T0)
    with django_capture_on_commit_callbacks(execute=True):  # type: ignore[operator]
        nodes_relisted(cluster_id=cluster.pk, items=[seen("a-1")], at=LATER)
    assert told == []
    assert Node.objects.get().observed_at == LATER


def test_it_costs_the_same_for_many_nodes(cluster: Cluster, django_assert_max_num_queries: object) -> None:
    items = [seen(f"a-{number}") for number in range(300)]
    for ready in (True, False):
        changed = [seen(item.name, ready=ready) for item in items]
        with django_assert_max_num_queries(20):  # type: ignore[operator]
            nodes_relisted(cluster_id=cluster.pk, items=changed, at=LATER)
    assert Node.objects.filter(ready=False).count() == 300


def test_it_writes_what_an_agent_reports(cluster: Cluster) -> None:
    nodes_relisted(cluster_id=cluster.pk, items=[seen("a-1", "one")], at=T0)

    assert node_statuses(cluster_id=cluster.pk, items=[report("one", T0)], at=LATER) == 1
    row = Node.objects.get()
    sizes = (row.capacity_bytes, row.used_bytes, row.other_bytes, row.reserved_bytes)
    assert (sizes, row.reported_at, row.agent_version) == ((1000, 1, 3, 4), T0, "1.0")
    assert row.orphans == [{"name": "sha256-ff", "bytes": 9, "partial": True}]


def test_a_thousand_reports_cost_what_a_few_do(cluster: Cluster, django_assert_max_num_queries: object) -> None:
    names = [f"a-{number}" for number in range(300)]
    nodes_relisted(cluster_id=cluster.pk, items=[seen(name, name) for name in names], at=T0)
    for at in (T0, LATER):
        with django_assert_max_num_queries(6):  # type: ignore[operator]
            written = node_statuses(cluster_id=cluster.pk, items=[report(name, at, used=5) for name in names], at=LATER)
        assert written == 300
    assert set(Node.objects.values_list("used_bytes", "reported_at")) == {(5, LATER)}


def test_it_takes_newer_reports_only(cluster: Cluster) -> None:
    nodes_relisted(cluster_id=cluster.pk, items=[seen("a-1", "one")], at=T0)
    write = [report("one", LATER, used=2), report("one", LATER, used=9), report("one", T0, used=8)]
    assert [node_statuses(cluster_id=cluster.pk, items=[item], at=LATER) for item in write] == [1, 0, 0]
    assert Node.objects.get().used_bytes == 2


def test_it_takes_no_report_from_the_future_at_its_word(cluster: Cluster) -> None:
    nodes_relisted(cluster_id=cluster.pk, items=[seen("a-1", "one")], at=T0)
    node_statuses(cluster_id=cluster.pk, items=[report("one", LATER + timedelta(days=1))], at=LATER)
    assert Node.objects.get().reported_at == LATER


def test_it_takes_no_report_of_a_lost_or_silent_node(cluster: Cluster) -> None:
    nodes_relisted(cluster_id=cluster.pk, items=[seen("a-1", "one")], at=T0)
    nodes_relisted(cluster_id=cluster.pk, items=[], at=T0)
    silent = ObservedNodeCache("a-1", "one", 1, report("one", T0).spec, None)
    assert node_statuses(cluster_id=cluster.pk, items=[report("one", LATER), silent], at=LATER) == 0


def test_it_remembers_when_the_cluster_answered_last(cluster: Cluster) -> None:
    nodes_relisted(cluster_id=cluster.pk, items=[seen("a-1")], at=T0)
    cluster_failed(cluster_id=cluster.pk, error="no route\0" + "x" * 2000)
    cluster.refresh_from_db()
    assert cluster.error.startswith("no routex") and len(cluster.error) == 1000

    cluster_contacted(cluster_id=cluster.pk, at=LATER)
    assert Node.objects.get().observed_at == T0
    cluster_contacted(cluster_id=cluster.pk, at=LATER, nodes_too=True)
    cluster_contacted(cluster_id=cluster.pk, at=T0, nodes_too=True, error="half of it")
    cluster.refresh_from_db()
    assert (cluster.observed_at, cluster.error, Node.objects.get().observed_at) == (LATER, "half of it", LATER)


@pytest.fixture
def replaced(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Cluster]]:
    """The clusters that the listeners were told of."""
    heard: list[Cluster] = []
    monkeypatch.setattr(sinks, "_cluster_listeners", [heard.append])
    yield heard


def test_another_cluster_at_the_same_address_is_noticed_once(cluster: Cluster, replaced: list[Cluster]) -> None:
    for uid in ("one", "one", "", "one"):
        cluster_identified(cluster_id=cluster.pk, uid=uid)
    assert replaced == [], "the first word about it is no change, and no word is none"
    for uid in ("two", "two"):
        cluster_identified(cluster_id=cluster.pk, uid=uid)
    assert replaced == [cluster]
    cluster.refresh_from_db()
    assert cluster.uid == "two"


def test_it_is_not_remembered_before_everybody_heard_of_it(
    cluster: Cluster, replaced: list[Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster_identified(cluster_id=cluster.pk, uid="one")

    def fails(cluster: Cluster) -> None:
        raise RuntimeError("killed here")

    with monkeypatch.context() as patch, pytest.raises(RuntimeError):
        patch.setattr(sinks, "_cluster_listeners", [fails])
        cluster_identified(cluster_id=cluster.pk, uid="two")
    cluster_identified(cluster_id=cluster.pk, uid="two")
    assert replaced == [cluster]
