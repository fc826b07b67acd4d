"""Rows under reports and listings that are wrong, doubled, out of order, huge or hostile."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from controlplane.clusters.documents import CapacityStatus, Condition, Orphan
from controlplane.clusters.gateway import EventType, Kind, ObservedNodeCache, WatchEvent
from controlplane.clusters.models import Cluster, Node, NodePool
from controlplane.clusters.services import (
    cluster_contacted,
    cluster_failed,
    node_assign_pools,
    node_statuses,
    nodes_changed,
    nodes_relisted,
)
from tests import factories
from tests.clusters.sightings import T0, event, report, seen

pytestmark = pytest.mark.django_db
LATER = T0 + timedelta(minutes=1)
SECOND = timedelta(seconds=1)


@pytest.fixture
def cluster() -> Cluster:
    made = factories.cluster(observed_at=None)
    nodes_relisted(cluster_id=made.pk, items=[seen("a-1", "one"), seen("a-2", "two")], at=T0)
    return made


def _told(uid: str, at: datetime = LATER, **changes: Any) -> ObservedNodeCache:
    made = report(uid, at)
    assert made.status is not None
    return replace(made, status=replace(made.status, **changes))


def _write(cluster: Cluster, *items: ObservedNodeCache, at: datetime = LATER) -> int:
    return node_statuses(cluster_id=cluster.pk, items=items, at=at)


def _row(uid: str = "one") -> Node:
    return Node.objects.get(uid=uid)


# -- what agents report


@pytest.mark.parametrize(
    ("said", "stored"),
    [
        (CapacityStatus(2**63, 2**70, -1, 5), (2**63 - 1, 2**63 - 1, 0, 5)),
        (CapacityStatus(0, 0, 0, 0), (0, 0, 0, 0)),
        (CapacityStatus(-5, 1, 1, 1), (0, 1, 1, 1)),
        (CapacityStatus(2**63 - 1, 0, 0, 0), (2**63 - 1, 0, 0, 0)),
    ],
)
def test_it_stores_sizes_that_no_disk_has_as_the_nearest_possible(
    cluster: Cluster, said: CapacityStatus, stored: tuple[int, ...]
) -> None:
    """One agent's nonsense must not keep what all the others say out of the rows."""
    assert _write(cluster, _told("one", capacity=said), _told("two")) == 2
    row = _row()
    assert (row.capacity_bytes, row.used_bytes, row.other_bytes, row.reserved_bytes) == stored


@pytest.mark.parametrize("name", ["nul\0inside", "not utf-8 \udcff", "\ud800", "größe ✓", "x" * 5000])
def test_it_stores_whatever_lies_on_a_disk(cluster: Cluster, name: str) -> None:
    condition = Condition("Odd", "True", "Odd", name, T0)
    told = _told("one", orphans=(Orphan(name, 1, False),), conditions=(condition,), agent_version=name)
    assert _write(cluster, told, _told("two")) == 2
    row = _row()
    (orphan,), (kept,) = row.orphans, row.conditions
    assert orphan["bytes"] == 1 and kept["message"] == orphan["name"]
    assert "\0" not in orphan["name"] and len(row.agent_version) <= 40
    assert ("größe" in name) <= (orphan["name"] == name)


def test_it_takes_the_newest_of_several_reports_in_any_order(cluster: Cluster) -> None:
    reports = [report("one", T0 + SECOND * number, used=number) for number in (2, 5, 3)]
    assert _write(cluster, *reports) == 1
    assert _row().used_bytes == 5
    assert _write(cluster, *reversed(reports)) == 0


def test_it_takes_no_word_of_an_earlier_incarnation_for_this_one(cluster: Cluster) -> None:
    """An object that outlived its node's replacement still holds the old status."""
    left = _told("one", node_uid="zero")
    assert _write(cluster, left) == 0
    assert _row().reported_at is None
    assert _write(cluster, left, report("one", LATER), left) == 1


def test_it_takes_two_reports_of_the_same_moment_once(cluster: Cluster) -> None:
    first, second = report("one", T0, used=1), report("one", T0, used=2)
    assert _write(cluster, first) == 1
    assert _write(cluster, second) == 0, "whoever is told twice must not flip"


def test_it_never_lets_a_wrong_clock_silence_a_node(cluster: Cluster) -> None:
    ahead = report("one", LATER + timedelta(hours=5), used=1)
    assert _write(cluster, ahead) == 1 and _row().reported_at == LATER
    assert _write(cluster, replace(ahead, generation=2), at=LATER + SECOND) == 1, "the clock stays ahead"
    assert _row().reported_at == LATER + SECOND


def test_it_takes_reports_for_the_right_cluster_only(cluster: Cluster) -> None:
    other = factories.cluster()
    assert node_statuses(cluster_id=other.pk, items=[report("one", LATER)], at=LATER) == 0
    assert _row().reported_at is None
    assert node_statuses(cluster_id=cluster.pk, items=[], at=LATER) == 0


def test_it_writes_many_reports_in_one_look(cluster: Cluster, django_assert_max_num_queries: Any) -> None:
    items = [seen(f"n-{number}") for number in range(60)]
    nodes_relisted(cluster_id=cluster.pk, items=items, at=T0)
    reports = [replace(report(item.uid, LATER), node_name=item.name) for item in items]
    with django_assert_max_num_queries(65):
        assert _write(cluster, *reports) == 60
    with django_assert_max_num_queries(4):
        assert _write(cluster, *reports) == 0


# -- what the cluster says of nodes


def test_it_takes_the_last_word_about_each_machine(cluster: Cluster) -> None:
    states = [seen("a-1", "one", ready=ready) for ready in (True, False, None)]
    nodes_changed(cluster_id=cluster.pk, events=[event(EventType.MODIFIED, state) for state in states], at=LATER)
    assert _row().ready is None
    back = [event(EventType.DELETED, states[0]), event(EventType.ADDED, states[0])]
    nodes_changed(cluster_id=cluster.pk, events=back, at=LATER)
    assert (_row().lost_at, _row().ready) == (None, True)


def test_it_hears_only_of_nodes_among_all_kinds(cluster: Cluster) -> None:
    other = WatchEvent(EventType.DELETED, Kind.NODE_CACHE, "t", report("one", LATER))
    bookmark = WatchEvent(EventType.BOOKMARK, Kind.NODE, "t", None)
    assert nodes_changed(cluster_id=cluster.pk, events=[other, bookmark], at=LATER) == frozenset()
    assert _row().observed_at == T0 and _row().lost_at is None


@pytest.mark.parametrize("uid", ["never seen", "two"])
def test_it_loses_nobody_by_a_word_about_another(cluster: Cluster, uid: str) -> None:
    stranger = seen("a-1", uid)
    nodes_changed(cluster_id=cluster.pk, events=[event(EventType.DELETED, stranger)], at=LATER)
    assert _row("one").lost_at is None


def test_it_moves_a_name_to_a_machine_known_by_another(cluster: Cluster) -> None:
    """Two machines swap their names; the rows follow what the cluster lists."""
    swapped = [seen("a-2", "one-b", created_at=LATER), seen("a-1", "two-b", created_at=LATER)]
    nodes_relisted(cluster_id=cluster.pk, items=swapped, at=LATER)
    live = Node.objects.filter(cluster=cluster, lost_at=None)
    assert dict(live.values_list("name", "uid")) == {"a-1": "two-b", "a-2": "one-b"}
    assert Node.objects.exclude(lost_at=None).count() == 2


def test_it_keeps_the_first_loss_when_it_is_told_twice(cluster: Cluster) -> None:
    for at in (LATER, LATER + SECOND):
        nodes_relisted(cluster_id=cluster.pk, items=[seen("a-2", "two")], at=at)
        nodes_changed(cluster_id=cluster.pk, events=[event(EventType.DELETED, seen("a-1", "one"))], at=at)
    assert _row().lost_at == LATER


def test_it_never_turns_the_clock_of_an_observation_back(cluster: Cluster) -> None:
    nodes_relisted(cluster_id=cluster.pk, items=[seen("a-1", "one")], at=LATER)
    nodes_relisted(cluster_id=cluster.pk, items=[seen("a-1", "one")], at=T0)
    assert _row().observed_at == LATER


def test_it_keeps_the_pool_of_a_lost_node_for_its_history(cluster: Cluster) -> None:
    pool = factories.pool(of=cluster, name="pool-a")
    node_assign_pools(cluster_id=cluster.pk)
    nodes_relisted(cluster_id=cluster.pk, items=[], at=LATER)
    assert _row().pool == pool
    NodePool.objects.filter(pk=pool.pk).update(selector={"other": "label"})
    node_assign_pools(cluster_id=cluster.pk)
    assert _row().pool == pool, "membership is about the living"


def test_it_returns_the_pools_that_won_and_lost(cluster: Cluster) -> None:
    first = factories.pool(of=cluster, name="pool-a")
    second = factories.pool(of=cluster, name="special", selector={"disk": "big"}, priority=5)
    assert node_assign_pools(cluster_id=cluster.pk) == {first.pk}
    moved = seen("a-1", "one", labels={"hearth.dev/pool": "pool-a", "disk": "big"})
    changed = nodes_changed(cluster_id=cluster.pk, events=[event(EventType.MODIFIED, moved)], at=LATER)
    assert changed == {first.pk, second.pk}
    gone = nodes_changed(cluster_id=cluster.pk, events=[event(EventType.DELETED, moved)], at=LATER)
    assert gone == {second.pk}


# -- the cluster itself


@pytest.mark.parametrize("error", ["", "no route", "x" * 3000, "nul\0", "bytes \udcfe"])
def test_it_keeps_any_error_in_its_room_and_forgets_it_on_contact(cluster: Cluster, error: str) -> None:
    cluster_failed(cluster_id=cluster.pk, error=error)
    cluster.refresh_from_db()
    assert len(cluster.error) <= 1000 and (cluster.error == "") is (error == "")
    assert cluster.observed_at is None, "a failure is no contact"
    cluster_contacted(cluster_id=cluster.pk, at=LATER)
    assert Cluster.objects.filter(pk=cluster.pk, error="", observed_at=LATER).exists()


def test_it_confirms_no_lost_node_and_no_other_clusters(cluster: Cluster) -> None:
    other = factories.node(observed_at=T0)
    nodes_relisted(cluster_id=cluster.pk, items=[seen("a-2", "two")], at=T0)
    cluster_contacted(cluster_id=cluster.pk, at=LATER, nodes_too=True)
    assert (_row("one").observed_at, _row("two").observed_at) == (T0, LATER)
    other.refresh_from_db()
    assert other.observed_at == T0


def test_it_writes_nothing_for_a_cluster_that_is_gone(cluster: Cluster) -> None:
    cluster_id = cluster.pk
    cluster.delete()
    cluster_contacted(cluster_id=cluster_id, at=LATER, nodes_too=True)
    cluster_failed(cluster_id=cluster_id, error="x")
    assert node_statuses(cluster_id=cluster_id, items=[report("one", LATER)], at=LATER) == 0
    with pytest.raises(Cluster.DoesNotExist):
        nodes_changed(cluster_id=cluster_id, events=[event(EventType.ADDED, seen("a-1"))], at=LATER)
