"""Which pools a change of the cluster marks: those whose plan it may change, once, and never another cluster's."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import OperationalError

from caches import sinks
from caches.models import CacheEntry, NodeProjection, PoolLoop
from caches.sinks import CAPACITY_STEP_BYTES, CachesSink
from controlplane.clusters.documents import CapacityStatus, Consumer, NodeCacheSpec, NodeCacheStatus, Orphan
from controlplane.clusters.gateway import EventType, Kind, Observed, ObservedNode, ObservedNodeCache, WatchEvent
from controlplane.clusters.models import Node, NodePool
from tests import factories

pytestmark = pytest.mark.django_db
AT = datetime(2026, 9, 1, tzinfo=UTC)


class Sight:
    """A sink with one node in one pool, and how often the pool was marked since it was last asked."""

    def __init__(self) -> None:
        self.sink = CachesSink()
        self.row: Node = factories.node(name="n1", uid="uid-1")
        assert self.row.pool is not None
        self.pool: NodePool = self.row.pool
        self.cluster = str(self.row.cluster_id)
        self.node = ObservedNode("n1", "uid-1", {"a": "b"}, True, True, AT)

    def marks(self, pool: NodePool | None = None) -> int:
        loop = PoolLoop.objects.filter(pool=pool or self.pool).first()
        if loop is None:
            return 0
        PoolLoop.objects.filter(pk=loop.pk).update(wanted_round=0)
        return loop.wanted_round

    def see(self, *objects: Observed, kind: EventType = EventType.MODIFIED, sink: CachesSink | None = None) -> int:
        kinds = {ObservedNode: Kind.NODE, ObservedNodeCache: Kind.NODE_CACHE, Consumer: Kind.CONSUMER}
        events = tuple(WatchEvent(kind, kinds[type(one)], "1", one) for one in objects)
        (sink or self.sink).changed(self.cluster, events, AT)
        return self.marks()

    def cache(self, *, node_uid: str = "uid-1", **capacity: int) -> ObservedNodeCache:
        sizes = {"capacity_bytes": 1000, "used_bytes": 0, "other_bytes": 0, "reserved_bytes": 0} | capacity
        status = NodeCacheStatus("n1", node_uid, 0, datetime.now(UTC), CapacityStatus(**sizes))
        return ObservedNodeCache("n1", node_uid, 0, NodeCacheSpec("n1", node_uid, "gpu"), status)


@pytest.fixture
def sight() -> Sight:
    return Sight()


@pytest.mark.parametrize(
    "change",
    [
        {"ready": False},
        {"ready": None},
        {"schedulable": False},
        {"labels": {"a": "c"}},
        {"labels": {}},
        {"taints": ("gpu=broken:NoSchedule",)},
        {"terminating_at": AT},
    ],
)
def test_a_fact_that_a_plan_depends_on_marks_once(sight: Sight, change: dict[str, Any]) -> None:
    assert sight.see(sight.node) == 1
    changed = replace(sight.node, **change)
    assert [sight.see(changed), sight.see(changed), sight.see(sight.node)] == [1, 0, 1]


def test_the_order_of_labels_is_no_change(sight: Sight) -> None:
    one = replace(sight.node, labels={"a": "1", "b": "2"})
    sight.see(one)
    assert sight.see(replace(one, labels={"b": "2", "a": "1"})) == 0


def test_a_change_that_is_undone_in_the_same_breath_marks_nothing(sight: Sight) -> None:
    sight.see(sight.node)
    assert sight.see(replace(sight.node, ready=False), sight.node) == 0
    assert sight.see(sight.node, replace(sight.node, ready=False)) == 1


@pytest.mark.parametrize(
    ("capacity", "marks"),
    [
        ({"capacity_bytes": 2000}, 1),
        ({"used_bytes": 500, "reserved_bytes": 9}, 0),  # entries say that already
        ({"other_bytes": CAPACITY_STEP_BYTES - 1}, 0),
        ({"other_bytes": CAPACITY_STEP_BYTES}, 1),
    ],
)
def test_a_disk_marks_when_it_changes_by_something_that_matters(
    sight: Sight, capacity: dict[str, Any], marks: int
) -> None:
    assert sight.see(sight.cache()) == 1
    assert sight.see(sight.cache(**capacity)) == marks


def test_an_orphan_that_comes_or_grows_marks(sight: Sight) -> None:
    sight.see(sight.cache())
    for orphans in ((Orphan("x", 5, False),), (Orphan("x", 6, False),), ()):
        cache = sight.cache()
        assert cache.status is not None
        cache = replace(cache, status=replace(cache.status, orphans=orphans))
        assert (sight.see(cache), sight.see(cache)) == (1, 0)


def test_a_node_cache_that_no_agent_wrote_to_yet_says_nothing(sight: Sight) -> None:
    assert sight.see(replace(sight.cache(), status=None)) == 0


def test_a_listing_of_nodes_marks_every_pool_of_its_cluster_and_no_other(sight: Sight) -> None:
    empty, foreign = factories.pool(of=sight.row.cluster), factories.pool()
    sight.sink.relisted(sight.cluster, Kind.NODE, (), AT)
    assert [sight.marks(pool) for pool in (sight.pool, empty, foreign)] == [1, 1, 0]
    sight.sink.relisted(sight.cluster, Kind.NODE, (), AT)
    assert sight.marks() == 1  # whatever was missed in between


def test_what_a_listing_told_is_no_news_to_the_watch_after_it(sight: Sight) -> None:
    sight.sink.relisted(sight.cluster, Kind.NODE, (sight.node,), AT)
    sight.sink.relisted(sight.cluster, Kind.NODE_CACHE, (sight.cache(),), AT)
    sight.marks()
    assert sight.see(sight.node, sight.cache()) == 0


def test_a_machine_of_the_same_uid_in_another_cluster_is_another_machine(sight: Sight) -> None:
    twin = factories.node(name="n1", uid="uid-1")
    assert twin.pool is not None
    sight.see(sight.node)
    events = (WatchEvent(EventType.MODIFIED, Kind.NODE, "1", sight.node),)
    sight.sink.changed(str(twin.cluster_id), events, AT)
    assert (sight.marks(), sight.marks(twin.pool)) == (0, 1)


def test_a_deleted_node_marks_and_is_news_when_it_comes_back(sight: Sight) -> None:
    sight.see(sight.node, sight.cache())
    assert sight.see(sight.node, kind=EventType.DELETED) == 1
    assert (sight.see(sight.node), sight.see(sight.cache())) == (1, 1)


def test_nodes_that_a_listing_lacks_are_forgotten(sight: Sight) -> None:
    others = tuple(replace(sight.node, name=f"m{number}", uid=f"other-{number}") for number in range(3))
    sight.sink.relisted(sight.cluster, Kind.NODE, (sight.node, *others), AT)
    sight.sink.relisted("00000000-0000-7000-8000-000000000000", Kind.NODE, others, AT)
    assert len(sight.sink._facts) == 7
    sight.sink.relisted(sight.cluster, Kind.NODE, (sight.node,), AT)
    assert len(sight.sink._facts) == 4  # a watcher runs for months, machines for hours


@pytest.mark.parametrize("kind", [Kind.NODE, Kind.NODE_CACHE])
def test_what_could_not_be_marked_is_news_again(sight: Sight, kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = sight.node if kind is Kind.NODE else sight.cache()
    with monkeypatch.context() as broken:

        def away(**_: Any) -> int:
            raise OperationalError("the database is away")

        broken.setattr(sinks, "pools_mark_dirty", away)
        with pytest.raises(OperationalError):
            sight.see(seen)
    assert sight.see(seen) == 1


def test_a_consumer_marks_the_pool_of_its_node_and_an_unknown_one_none(sight: Sight) -> None:
    consumer = Consumer("pod-1", "llama-0", "n1", "uid-1", frozenset({"sha256:1"}))
    assert sight.see(consumer) == 1
    assert sight.see(replace(consumer, uid="pod-2", node_uid="nobody")) == 0
    assert sight.see(consumer, kind=EventType.DELETED) == 1


def test_a_node_of_no_pool_marks_nothing(sight: Sight) -> None:
    Node.objects.update(pool=None)
    assert sight.see(sight.node, sight.cache()) == 0


def test_the_last_word_about_a_node_cache_counts(sight: Sight) -> None:
    NodeProjection.objects.create(node=sight.row, spec_hash="x", generation=1, applied_at=AT)
    events = [WatchEvent(kind, Kind.NODE_CACHE, "1", sight.cache()) for kind in (EventType.DELETED, EventType.ADDED)]
    sight.sink.changed(sight.cluster, tuple(events), AT)
    assert NodeProjection.objects.exists()
    sight.sink.changed(sight.cluster, tuple(reversed(events)), AT)
    assert not NodeProjection.objects.exists()


def test_a_large_listing_is_mirrored_in_parts_and_nothing_is_left_out(
    sight: Sight, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sinks, "BATCH", 2)
    sizes: list[int] = []
    monkeypatch.setattr(sinks, "statuses_mirror", lambda *, cluster_id, caches: sizes.append(len(caches)))
    caches = tuple(sight.cache(node_uid=f"uid-{number}") for number in range(5))
    sight.sink.relisted(sight.cluster, Kind.NODE_CACHE, caches, AT)
    assert sizes == [2, 2, 1]


def test_nothing_at_all_is_no_change(sight: Sight) -> None:
    sight.sink.changed(sight.cluster, (WatchEvent(EventType.BOOKMARK, Kind.NODE, "9", None),), AT)
    for kind in (Kind.NODE_CACHE, Kind.CONSUMER, Kind.EVENT):
        sight.sink.relisted(sight.cluster, kind, (), AT)
    assert (sight.marks(), CacheEntry.objects.count()) == (0, 0)
