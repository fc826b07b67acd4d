"""An engine of the local fleet whose node is taken away is lost with it, and its launch says so."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from django.utils import timezone

from caches.domain.launches.events import NODE_LOST
from caches.domain.launches.words import EventClass
from caches.launch_sink import LaunchSink
from caches.models import Launch, LaunchObservation
from caches.models.launches import NODE_LOST_REASONS
from controlplane.clusters.documents import Consumer
from controlplane.clusters.gateway import ClusterEvent, EventType, Kind, WatchEvent
from controlplane.clusters.local import serving
from controlplane.clusters.local.fleet import LocalFleet
from controlplane.clusters.local.gateway import LocalGateway
from controlplane.clusters.local.link import event_put
from controlplane.clusters.local.serving import ENDPOINT_LABEL, endpoint_serve, engine_made, engine_put, event_of
from tests import factories
from tests.services.launches import settle

pytestmark = pytest.mark.django_db
DIGEST = "sha256:" + "a1" * 32
NOW = timezone.now() - timedelta(minutes=5)
Told = WatchEvent


def event(reason: str, seconds: float, run: int = 0) -> Told:
    at = NOW + timedelta(seconds=seconds)
    said = ClusterEvent(f"{reason}-{run}", at, "Engine", "local/chat-1", "e-1", reason, "exit 1", run)
    return WatchEvent(EventType.ADDED, Kind.EVENT, "t", said)


def gone() -> Told:
    engine = Consumer("e-1", "local/chat-1", "a-9", "u", frozenset(), labels={ENDPOINT_LABEL: "chat"})
    return WatchEvent(EventType.DELETED, Kind.CONSUMER, "t", engine)


def tell(cluster: str, *told: Told, at: datetime | None = None) -> None:
    LaunchSink().changed(cluster, told, at or NOW + timedelta(seconds=90))
    settle()


STARTED = (event("Scheduled", 0), event("Started", 2), event("Ready", 5))
CRASHED = event("BackOff", 30)
LOST = event(NODE_LOST, 60)


def test_the_fleet_and_the_launches_have_one_word_for_it() -> None:
    assert serving.NODE_LOST == NODE_LOST and NODE_LOST in NODE_LOST_REASONS


@pytest.mark.parametrize("order", [(LOST, gone()), (gone(), LOST), (LOST, LOST, gone(), LOST)])
@pytest.mark.parametrize("apart", [True, False])
def test_a_launch_says_that_it_was_lost_with_its_node(order: Sequence[Told], apart: bool) -> None:
    cluster = str(factories.cluster().pk)
    tell(cluster, *STARTED)
    for group in [[one] for one in order] if apart else [order]:
        tell(cluster, *group)
    launch = Launch.objects.get()
    assert (launch.state, launch.end_reason) == ("Ready", NODE_LOST)
    assert launch.ended_at == NOW + timedelta(seconds=60)


@pytest.mark.parametrize(
    "groups",
    [
        [(*STARTED, CRASHED, LOST, gone())],
        [STARTED, (CRASHED,), (LOST,), (gone(),)],
        [(LOST, *STARTED, CRASHED), (gone(),)],
    ],
)
def test_it_is_the_run_that_goes_on_that_was_lost(groups: Sequence[Sequence[Told]]) -> None:
    """It had crashed and was not started again yet: the engine's own count of restarts lags behind."""
    cluster = str(factories.cluster().pk)
    for group in groups:
        tell(cluster, *group)
    ends = Launch.objects.order_by("restart_count").values_list("restart_count", "state", "end_reason")
    assert list(ends) == [(0, "Ready", "exit 1"), (1, "Ended", NODE_LOST)]


def test_engines_beside_it_are_told_apart() -> None:
    cluster = str(factories.cluster().pk)
    other = ClusterEvent("x", NOW, "Engine", "local/chat-2", "e-2", "Scheduled", "", 7)
    tell(cluster, *STARTED, WatchEvent(EventType.ADDED, Kind.EVENT, "t", other), LOST)
    assert dict(Launch.objects.values_list("pod_uid", "end_reason")) == {"e-1": NODE_LOST, "e-2": ""}


def test_of_an_engine_whose_starts_nobody_saw_it_says_nothing() -> None:
    """It began before anybody watched, or its launch is too old to be kept: that it never became ready is not known."""
    tell(str(factories.cluster().pk), LOST, gone())
    assert not Launch.objects.exists()


def test_what_ended_before_its_node_was_taken_away_did_not_end_with_it() -> None:
    cluster = str(factories.cluster().pk)
    tell(cluster, *STARTED, gone(), at=NOW + timedelta(seconds=20))
    count = LaunchObservation.objects.count()
    tell(cluster, LOST)
    assert Launch.objects.get().end_reason == "Deleted" and LaunchObservation.objects.count() == count + 1


@pytest.fixture
def fleet(tmp_path: Path) -> LocalFleet:
    made = LocalFleet(tmp_path / "fleet")
    made.create(nodes=2)
    return made


def engines(gateway: LocalGateway) -> dict[str, Consumer]:
    return {one.uid: one for one in gateway.list(Kind.CONSUMER).items if isinstance(one, Consumer)}


@pytest.mark.parametrize("verb", ["remove", "replace"])
def test_a_node_that_is_taken_from_a_fleet_is_why_its_engine_ended_and_the_next_one_began(
    fleet: LocalFleet, verb: str
) -> None:
    cluster, gateway, sink = factories.cluster(name="local"), LocalGateway(fleet.folder), LaunchSink()
    endpoint = endpoint_serve(fleet.store, "chat", DIGEST)
    rows = [row.node for row in fleet.nodes()]
    local = factories.endpoint(of=cluster, namespace=serving.NAMESPACE, name="chat")
    nodes = [factories.node(of=factories.pool(of=cluster), name=one.name, uid=one.uid) for one in rows]
    first, second = (engine_made(endpoint, one) for one in rows)
    for engine, node in zip((first, second), nodes, strict=True):
        factories.instance(of=local, uid=engine.uid, node=node, digest=DIGEST)

    def start(engine: Consumer) -> None:
        with fleet.store.write() as session:
            engine_put(session, engine)
            for reason in ("Scheduled", "Started", "Ready"):
                event_put(session, event_of(engine, reason, f"{engine.name} was placed on {engine.node_name}."))

    start(first)
    before = engines(gateway)
    getattr(fleet, verb)(rows[0].name)
    start(second)
    after = engines(gateway)
    sink.relisted(str(cluster.pk), Kind.EVENT, gateway.list(Kind.EVENT).items, timezone.now())
    left = [WatchEvent(EventType.DELETED, Kind.CONSUMER, "t", one) for uid, one in before.items() if uid not in after]
    sink.changed(str(cluster.pk), tuple(left), timezone.now())
    settle()
    lost, replacement = Launch.objects.get(pod_uid=first.uid), Launch.objects.get(pod_uid=second.uid)
    assert (lost.state, lost.end_reason) == ("Ready", NODE_LOST)
    assert (replacement.event_class, replacement.ended_at) == (EventClass.NODE_LOSS, None)
