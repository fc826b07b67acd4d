"""What the watcher tells of engines becomes launches, however often it is told."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from django.utils import timezone

from caches.domain.launches.endings import NOT_SEEN
from caches.domain.launches.words import EventClass
from caches.launch_sink import LaunchSink
from caches.models import Launch, LaunchLog, LaunchObservation
from caches.models.launches import OF_TRIALS
from controlplane.clusters.documents import Consumer
from controlplane.clusters.gateway import ClusterEvent, EventType, Kind, WatchEvent
from controlplane.clusters.local.nodes import LocalNode
from controlplane.clusters.local.serving import LocalEndpoint, engine_made, scheduled
from controlplane.serving.models import Instance
from controlplane.serving.services import ENDPOINT_LABEL
from tests import factories
from tests.services.launches import settle

pytestmark = pytest.mark.django_db
OUTCOME = '{"found": "hit", "bytes": 0, "source": "", "seconds": 0.2}'


def event(
    reason: str, at: datetime, *, uid: str = "e-1", run: int = 0, kind: str = "Engine", message: str = ""
) -> ClusterEvent:
    return ClusterEvent(f"{uid}-{reason}-{run}", at, kind, "default/e", uid, reason, message, run)


def a_start(at: datetime, uid: str = "e-1") -> tuple[ClusterEvent, ...]:
    return (
        event("Scheduled", at, uid=uid),
        event("Ensured", at + timedelta(seconds=1), uid=uid, message=OUTCOME),
        event("Started", at + timedelta(seconds=2), uid=uid),
        event("Ready", at + timedelta(seconds=5), uid=uid),
    )


def watched(kind: Kind, *objects: ClusterEvent | Consumer, how: EventType = EventType.ADDED) -> tuple[WatchEvent, ...]:
    return tuple(WatchEvent(how, kind, "t", one) for one in objects)


def test_the_events_of_an_engine_are_its_launch_however_they_are_told() -> None:
    now = timezone.now()
    node = factories.node(joined_at=now - timedelta(days=1))
    endpoint, digest = factories.endpoint(of=node.cluster), factories.version().artifact.digest  # type: ignore[union-attr]
    Instance.objects.create(endpoint=endpoint, uid="e-1", name="e", node=node, digest=digest, observed_at=now)
    sink, cluster = LaunchSink(), str(node.cluster_id)
    for one in reversed(a_start(now)):
        sink.changed(cluster, watched(Kind.EVENT, one), now)
    sink.relisted(cluster, Kind.EVENT, a_start(now), now)
    LaunchSink().relisted(cluster, Kind.EVENT, a_start(now), now)  # another watcher
    settle()
    launch = Launch.objects.get()
    assert (launch.state, launch.ready_seconds, launch.weights, launch.node) == ("Ready", 5, "Hit", node)
    assert (launch.event_class, launch.endpoint, launch.digest) == (EventClass.NEW_VERSION, endpoint, digest)
    assert LaunchObservation.objects.count() == 5


def test_an_engine_of_a_trial_is_one_before_anything_else_is_known_of_it() -> None:
    """Its instance comes later, and until then it must not be counted with what people asked for."""
    now, cluster = timezone.now(), factories.cluster()
    trial = factories.endpoint(of=cluster, namespace="local", name="trial-1a2b3c4d")
    local = LocalEndpoint(trial.name, trial.uid, "sha256:x", 0, "chat", "", now)
    said = scheduled(engine_made(local, LocalNode("n", "u", {}, 1, now)))
    LaunchSink().changed(str(cluster.pk), watched(Kind.EVENT, said), now)
    settle()
    assert Launch.objects.get().endpoint == trial
    assert Launch.objects.filter(OF_TRIALS).count() == 1


def test_an_engine_that_is_removed_has_ended_and_what_was_ready_stays_ready() -> None:
    now = timezone.now()
    cluster = factories.cluster()
    sink = LaunchSink()
    sink.relisted(str(cluster.pk), Kind.EVENT, (*a_start(now), event("Scheduled", now, uid="e-2")), now)
    settle()
    labels = {ENDPOINT_LABEL: "chat"}
    gone = [Consumer(uid, "default/e", "n", "u", frozenset(), labels=labels) for uid in ("e-1", "e-2", "e-3")]
    bystander = Consumer("e-1", "x", "n", "u", frozenset())
    sink.changed(str(cluster.pk), watched(Kind.CONSUMER, *gone, how=EventType.DELETED), now + timedelta(minutes=1))
    sink.changed(str(cluster.pk), watched(Kind.CONSUMER, bystander, how=EventType.DELETED), now + timedelta(minutes=2))
    settle()
    states = {launch.pod_uid: (launch.state, launch.end_reason) for launch in Launch.objects.all()}
    assert states == {"e-1": ("Ready", "Deleted"), "e-2": ("Ended", "Deleted")}
    assert Launch.objects.get(pod_uid="e-1").ended_at == now + timedelta(minutes=1)


def test_an_engine_s_log_is_due_once_it_is_ready_or_has_ended_and_no_listing_of_pods_ends_it() -> None:
    now = timezone.now()
    sink, cluster = LaunchSink(), str(factories.cluster().pk)
    starts, crash = a_start(now), event("BackOff", now + timedelta(seconds=9), run=1, message="killed")
    sink.relisted(
        cluster, Kind.EVENT, (starts[0], event("Started", now, run=1), event("Scheduled", now, uid="e-2")), now
    )
    assert {one.state for one in LaunchLog.objects.all()} == {""}
    sink.changed(cluster, watched(Kind.EVENT, *starts, crash), now)
    sink.relisted(cluster, Kind.POD, (), now)
    settle()
    due = LaunchLog.objects.filter(state="Due").values_list("launch__pod_uid", "launch__restart_count")
    assert sorted(due) == [("e-1", 0), ("e-1", 1)]
    ended = Launch.objects.exclude(ended_at=None).values_list("pod_uid", "restart_count", "end_reason")
    assert sorted(ended) == [("e-1", 0, NOT_SEEN), ("e-1", 1, "killed")], "engines are no pods"


def test_events_of_other_things_are_no_launches() -> None:
    now = timezone.now()
    cluster = factories.cluster()
    sink = LaunchSink()
    sink.relisted(str(cluster.pk), Kind.EVENT, (event("Ready", now, kind="Node"), event("Killing", now)), now)
    sink.relisted(str(cluster.pk), Kind.NODE, (), now)
    sink.changed(str(cluster.pk), watched(Kind.EVENT, event("Ready", now), how=EventType.DELETED), now)
    assert Launch.objects.count() == 0
