"""Who mounts what, as the watcher tells it: repeated, out of turn, of nodes that nobody knows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from caches.models import ConsumerSeen
from caches.services.consumers_seen import consumers_changed, consumers_relisted
from controlplane.clusters.documents import Consumer
from controlplane.clusters.models import Node
from tests import factories

pytestmark = pytest.mark.django_db
AT = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.fixture
def node() -> Node:
    return factories.node()


def engine(node: Node, uid: str, *digests: str, **fields: Any) -> Consumer:
    return Consumer(uid, fields.pop("name", uid), node.name, fields.pop("node_uid", node.uid), frozenset(digests))


def seen() -> dict[str, list[str]]:
    return {row.uid: row.digests for row in ConsumerSeen.objects.all()}


def test_a_listing_is_the_whole_truth_of_one_cluster(node: Node) -> None:
    elsewhere = factories.node()
    for one in (node, elsewhere):
        consumers_relisted(cluster_id=one.cluster_id, items=[engine(one, f"on-{one.name}", "b", "a")], at=AT)
    assert seen() == {f"on-{one.name}": ["a", "b"] for one in (node, elsewhere)}
    consumers_relisted(cluster_id=node.cluster_id, items=[], at=AT)
    assert list(seen()) == [f"on-{elsewhere.name}"]


def test_a_repeat_changes_the_time_and_news_change_the_rest(node: Node) -> None:
    later = AT + timedelta(seconds=5)
    consumers_relisted(cluster_id=node.cluster_id, items=[engine(node, "e", "a")], at=AT)
    key = ConsumerSeen.objects.get().pk
    consumers_relisted(cluster_id=node.cluster_id, items=[engine(node, "e", "b", name="renamed")], at=later)
    row = ConsumerSeen.objects.get()
    assert (row.pk, row.name, row.digests, row.observed_at) == (key, "renamed", ["b"], later)


def test_one_that_is_told_twice_in_one_batch_is_one(node: Node) -> None:
    consumers_relisted(cluster_id=node.cluster_id, items=[engine(node, "e", "a"), engine(node, "e", "b")], at=AT)
    assert seen() == {"e": ["b"]}


def test_the_consumer_of_an_unknown_or_foreign_node_is_passed_over(node: Node) -> None:
    foreign = factories.node()
    items = [engine(node, "x", "a", node_uid="who?"), engine(foreign, "y", "a"), engine(node, "z", "a")]
    consumers_relisted(cluster_id=node.cluster_id, items=items, at=AT)
    assert seen() == {"z": ["a"]}


def test_a_replaced_node_does_not_inherit_its_predecessors_engines(node: Node) -> None:
    consumers_relisted(cluster_id=node.cluster_id, items=[engine(node, "old", "a")], at=AT)
    Node.objects.update(lost_at=AT)
    heir = factories.node(of=node.pool, name=node.name)
    consumers_changed(cluster_id=node.cluster_id, seen=[engine(heir, "new", "a")], gone=["old"], at=AT)
    assert [(row.uid, row.node) for row in ConsumerSeen.objects.all()] == [("new", heir)]


def test_what_comes_and_goes_in_one_batch_is_gone(node: Node) -> None:
    consumers_changed(cluster_id=node.cluster_id, seen=[engine(node, "short", "a")], gone=["short", "never"], at=AT)
    assert seen() == {}


def test_increments_leave_the_others_alone(node: Node) -> None:
    cluster = node.cluster_id
    consumers_relisted(cluster_id=cluster, items=[engine(node, "a", "1"), engine(node, "b", "2")], at=AT)
    consumers_changed(cluster_id=cluster, seen=[engine(node, "c")], gone=["a"], at=AT)
    assert seen() == {"b": ["2"], "c": []}
    foreign = factories.cluster()
    consumers_changed(cluster_id=foreign.pk, seen=[], gone=["b"], at=AT)  # the same uid in another cluster
    assert "b" in seen()
