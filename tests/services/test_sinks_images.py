"""Which changes have a pool's images looked at before the next sweep does, and how often."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from caches import sinks
from caches.sinks import AGAIN_SECONDS, CachesSink
from controlplane.clusters.gateway import EventType, Kind, ObservedNode, WatchEvent
from controlplane.clusters.models import Node
from tests import factories

pytestmark = pytest.mark.django_db
AT = datetime(2026, 9, 1, tzinfo=UTC)
NODE = ObservedNode("n1", "uid-1", {}, True, True, AT)
AWAY = replace(NODE, ready=False)


class Watching:
    """A sink that has listed one node, a clock, and the pools whose images it asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sink, self.now = CachesSink(), 100.0
        self.row: Node = factories.node(name="n1", uid="uid-1")
        self.cluster, self.pool = str(self.row.cluster_id), str(self.row.pool_id)
        self.sent: list[tuple[str, ...]] = []
        monkeypatch.setattr(sinks, "publish_on_commit", lambda *sent: self.sent.append(sent))
        monkeypatch.setattr(sinks, "monotonic", lambda: self.now)
        self.relist(NODE)

    def asked(self) -> list[str]:
        sent, self.sent = self.sent, []
        assert {task for task, _ in sent} <= {"caches.pool_images"}
        return [pool_id for _, pool_id in sent]

    def relist(self, *nodes: ObservedNode) -> list[str]:
        self.sink.relisted(self.cluster, Kind.NODE, nodes, AT)
        return self.asked()

    def see(self, *nodes: ObservedNode, after: float = AGAIN_SECONDS) -> list[str]:
        events = tuple(WatchEvent(EventType.MODIFIED, Kind.NODE, "1", node) for node in nodes)
        self.now += after
        self.sink.changed(self.cluster, events, AT)
        return self.asked()


@pytest.fixture
def watching(monkeypatch: pytest.MonkeyPatch) -> Watching:
    return Watching(monkeypatch)


@pytest.mark.parametrize("away", [AWAY, replace(NODE, ready=None)])
def test_a_node_that_is_ready_again_has_its_pools_images_looked_at(away: ObservedNode, watching: Watching) -> None:
    assert watching.see(away) == []
    assert watching.see(NODE) == [watching.pool]
    assert watching.see(NODE) == []
    assert watching.see(replace(NODE, labels={"a": "b"})) == [], "it was ready all the time"


def test_a_listing_tells_of_a_node_that_came_back_too(watching: Watching) -> None:
    assert watching.relist(NODE) == []
    assert watching.see(AWAY) == []
    watching.now += AGAIN_SECONDS
    assert watching.relist(NODE) == [watching.pool]


def test_a_node_that_flaps_and_many_that_return_ask_once_a_second(watching: Watching) -> None:
    factories.node(name="n2", uid="uid-2", of=watching.row.pool)
    other = replace(NODE, name="n2", uid="uid-2")
    assert watching.see(AWAY, replace(other, ready=False)) == []
    assert watching.see(NODE, other) == [watching.pool]
    assert [watching.see(AWAY, after=0), watching.see(NODE, after=AGAIN_SECONDS / 2)] == [[], []]


def test_a_node_of_no_pool_asks_for_nothing(watching: Watching) -> None:
    Node.objects.filter(pk=watching.row.pk).update(pool=None)
    assert [watching.see(AWAY), watching.see(NODE)] == [[], []]
