"""The watcher's news become a publication, and what is no news does not."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from controlplane.clusters.documents import Consumer
from controlplane.clusters.endpoints import EndpointName, ObservedEndpoint
from controlplane.clusters.gateway import EventType, Kind, Observed, WatchEvent
from routing import sinks
from routing.sinks import RoutingSink

AT = datetime(2026, 1, 1, tzinfo=UTC)
POD = Consumer("pod-1", "default/pod-1", "n1", "u1", frozenset({"sha256:1"}), ready=False, address="10.0.0.1")
ENDPOINT = ObservedEndpoint(EndpointName("InferenceEndpointConfig", "default", "chat"), "uid-1", 1, {})


class Broker:
    """Counts what it is told; ``up`` False answers nothing."""

    def __init__(self) -> None:
        self.told, self.up = 0, True

    def publish(self, task: str, *ids: str, **_: Any) -> bool:
        assert task == "routing.publish"
        self.told += self.up
        return self.up


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    made = Broker()
    monkeypatch.setattr(sinks, "publish", made.publish)
    return made


def event(item: Observed, type_: EventType = EventType.MODIFIED) -> WatchEvent:
    kind = Kind.CONSUMER if isinstance(item, Consumer) else Kind.ENDPOINT
    return WatchEvent(type_, kind, "t", item)


def change(sink: RoutingSink, *events: WatchEvent) -> None:
    sink.changed("c", events, AT)


@pytest.mark.parametrize(
    ("after", "told"),
    [
        (POD, 0),
        (replace(POD, restart_count=3), 0),
        (replace(POD, ready=True), 1),
        (replace(POD, address="10.0.0.2"), 1),
        (replace(POD, node_uid="u2"), 1),
        (ENDPOINT, 1),
    ],
)
def test_it_publishes_what_routers_would_see(broker: Broker, after: Observed, told: int) -> None:
    sink = RoutingSink()
    change(sink, event(POD))
    assert broker.told == 1
    change(sink, event(after))
    assert broker.told == 1 + told


def test_a_pod_that_ended_is_news_although_it_says_the_same(broker: Broker) -> None:
    sink = RoutingSink()
    change(sink, event(POD))
    change(sink, event(POD, EventType.DELETED))
    change(sink, event(POD, EventType.ADDED))
    assert broker.told == 3


def test_a_listing_is_news_once_and_when_something_is_missing(broker: Broker) -> None:
    sink, other = RoutingSink(), replace(POD, uid="pod-2")
    for items in ((POD, other), (other, POD), (POD,)):
        sink.relisted("c", Kind.CONSUMER, items, AT)
    assert broker.told == 2, "the order says nothing"
    sink.relisted("c", Kind.NODE_CACHE, (), AT)
    assert broker.told == 2


def test_what_could_not_be_told_is_told_the_next_time(broker: Broker) -> None:
    sink = RoutingSink()
    broker.up = False
    change(sink, event(POD))
    broker.up = True
    change(sink, event(POD))
    assert broker.told == 1


def test_its_memory_is_bounded(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks, "MOST", 10)
    sink = RoutingSink()
    for number in range(100):
        change(sink, event(replace(POD, uid=f"pod-{number}")))
    assert broker.told == 100 and len(sink._facts) <= 11
