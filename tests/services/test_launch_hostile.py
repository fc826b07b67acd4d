"""Pods are written by tenants: one that says what no database takes spoils no launch of anybody else's."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from caches.launch_sink import LaunchSink
from caches.models import Launch, LaunchObservation
from caches.services.launches import ingest as launch_ingest
from caches.services.launches.traffic import BIGGEST, answers_record
from controlplane.clusters.gateway import ClusterEvent, EventType, Kind, Observed, WatchEvent
from controlplane.clusters.models import Node
from controlplane.clusters.pod_runs import ContainerRun
from controlplane.serving.answers import Answered
from tests import factories
from tests.services.launches import settle
from tests.services.test_launch_pods import after, event, pod, ready_pod, run

pytestmark = pytest.mark.django_db


@pytest.fixture
def began() -> datetime:
    return timezone.now().replace(microsecond=0) - timedelta(minutes=5)


@pytest.fixture
def node(began: datetime) -> Node:
    return factories.node(joined_at=began - timedelta(days=1))


@pytest.fixture
def tell(node: Node) -> Callable[..., None]:
    def told(*seen: Observed) -> None:
        kinds: dict[Any, Kind] = {ClusterEvent: Kind.EVENT}
        events = (WatchEvent(EventType.MODIFIED, kinds.get(type(one), Kind.POD), "t", one) for one in seen)
        LaunchSink().changed(str(node.cluster_id), tuple(events), timezone.now())

    return told


def step(began: datetime, message: str) -> dict[str, Any]:
    return {"ensures": (ContainerRun("ensure", 0, after(began, 2), after(began, 9), 0, "Completed", message),)}


def hostile(began: datetime) -> list[tuple[str, dict[str, Any]]]:
    ended = run(0, after(began, 10), after(began, 20), "Error \0\ud800")
    return [
        ("message", step(began, '{"found": "\\u0000", "source": "\\udfff"}')),
        ("nested", step(began, "[" * 1000)),
        ("digest", {"digest": "sha256:\0"}),
        ("long", {"digest": "x" * 5000}),
        ("reason", {"runs": (ended,)}),
        ("leaving", {"leaving_at": after(began, 30), "leaving_reason": "\0" * 999}),
    ]


@pytest.mark.parametrize("number", range(6))
def test_what_one_pod_says_spoils_no_other_launch(
    tell: Callable[..., None], began: datetime, node: Node, number: int
) -> None:
    name, fields = hostile(began)[number]
    tell(pod(began, node, name, **fields), ready_pod(began, node, "honest"))
    settle()
    honest = Launch.objects.get(pod_uid="honest")
    assert (honest.state, honest.ready_seconds, honest.weights) == ("Ready", 20, "Miss")
    assert Launch.objects.get(pod_uid=name).stale_at is None, "and it is a launch itself"


@pytest.mark.parametrize("message", ["\0", "\ud800", "x" * 100_000, "🔥" * 300, "\u202e\u0085 in 5s"])
def test_what_an_event_says_of_one_pod_spoils_no_other(
    tell: Callable[..., None], began: datetime, node: Node, message: str
) -> None:
    tell(ready_pod(began, node, "honest"), pod(began, node, "other"))
    tell(event("FailedMount", after(began, 3), message, "other"), event("Pulling", after(began, 2), "", "honest"))
    settle()
    assert Launch.objects.get(pod_uid="honest").image == "Miss"
    assert LaunchObservation.objects.filter(launch__pod_uid="other", mark="Noted").count() == 1


def test_a_pod_whose_events_never_end_fills_no_disk(
    tell: Callable[..., None], began: datetime, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch_ingest, "MOST_OBSERVATIONS", 12)
    tell(pod(began, node, "loud"), ready_pod(began, node, "honest"))
    for number in range(30):
        tell(event("BackOff", after(began, 30 + number), str(number), "loud"))
    assert 12 <= LaunchObservation.objects.filter(launch__pod_uid="loud").count() <= 13
    tell(event("Pulling", after(began, 2), "", "honest"))
    settle()
    assert Launch.objects.get(pod_uid="honest").image == "Miss", "nobody else pays for it"


def test_events_of_pods_that_nobody_follows_are_no_launches(
    tell: Callable[..., None], began: datetime, node: Node
) -> None:
    tell(event("Pulling", after(began, 2), "", "stranger"))
    other = factories.node(joined_at=began)
    LaunchSink().changed(
        str(other.cluster_id), (WatchEvent(EventType.MODIFIED, Kind.POD, "t", pod(began, other, "p-9")),), began
    )
    tell(event("Pulling", after(began, 2), "", "p-9"))  # of the same uid in another cluster
    settle()
    assert [one.image for one in Launch.objects.all()] == ["Unknown"]


@pytest.mark.parametrize(
    ("requests", "kept"), [([1, 2], 3), ([2**62, 2**62], BIGGEST), ([2**63, 1], BIGGEST), ([0, 0], None)]
)
def test_requests_that_routers_tell_are_added_up_to_what_fits(
    tell: Callable[..., None], began: datetime, node: Node, requests: list[int], kept: int | None
) -> None:
    tell(ready_pod(began, node))
    for count in requests:
        answers_record([Answered("p-1", count)])
    launch = Launch.objects.select_related("traffic").get()
    assert (launch.traffic.requests if hasattr(launch, "traffic") else None) == kept
