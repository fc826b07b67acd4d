"""Which changes have a cluster's endpoints looked at before the next sweep does, and how often."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from uuid import uuid4

import pytest

from caches import sinks
from caches.sinks import AGAIN_SECONDS, CachesSink
from controlplane.clusters.documents import Consumer
from controlplane.clusters.endpoints import EndpointName, ObservedEndpoint
from controlplane.clusters.gateway import EventType, Kind, Observed, WatchEvent

pytestmark = pytest.mark.django_db
AT = datetime(2026, 9, 1, tzinfo=UTC)
POD = Consumer("p", "default/chat-1", "", "", frozenset(), labels={"hearth.dev/endpoint": "chat"})
NAME = EndpointName("InferenceEndpointConfig", "default", "chat")
LOOKED_AT = ObservedEndpoint(NAME, "u", 3, {}, {}, {"observedGeneration": 3}, ())


class Watching:
    """A sink, a clock, and the rounds that were asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sink, self.now = CachesSink(), 100.0
        self.asked: list[tuple[str, ...]] = []
        monkeypatch.setattr(sinks, "publish_on_commit", lambda *sent: self.asked.append(sent))
        monkeypatch.setattr(sinks, "monotonic", lambda: self.now)

    def see(self, one: Observed, cluster: str) -> int:
        kind = Kind.CONSUMER if isinstance(one, Consumer) else Kind.ENDPOINT
        self.sink.changed(cluster, (WatchEvent(EventType.MODIFIED, kind, "1", one),), AT)
        asked, self.asked = self.asked, []
        assert set(asked) <= {("caches.endpoints_round", cluster)}
        return len(asked)


@pytest.fixture
def watching(monkeypatch: pytest.MonkeyPatch) -> Watching:
    return Watching(monkeypatch)


@pytest.mark.parametrize(
    ("seen", "asked"),
    [
        (POD, 1),
        (replace(POD, labels={"app": "something else"}), 0),
        (LOOKED_AT, 0),
        (replace(LOOKED_AT, generation=4), 1),
        (replace(LOOKED_AT, status={}), 1),
        (replace(LOOKED_AT, deleting_at=AT), 1),
    ],
)
def test_what_is_news_of_an_endpoint_asks_for_a_round(seen: Observed, asked: int, watching: Watching) -> None:
    assert watching.see(seen, str(uuid4())) == asked


def test_many_changes_ask_for_few_rounds_and_clusters_for_their_own(watching: Watching) -> None:
    one, other = str(uuid4()), str(uuid4())
    assert [watching.see(POD, one) for _ in range(3)] == [1, 0, 0]
    assert watching.see(POD, other) == 1
    watching.now += AGAIN_SECONDS
    assert [watching.see(POD, one), watching.see(POD, one)] == [1, 0]
