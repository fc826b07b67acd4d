"""What the watcher tells of pods becomes launches: in any order, late, twice, never, and only of what it saw begin."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from caches.domain.launches.words import EventClass, Mark
from caches.launch_sink import LaunchSink
from caches.models import Launch, LaunchLog, LaunchObservation
from controlplane.clusters.gateway import ClusterEvent, EventType, Kind, Observed, WatchEvent
from controlplane.clusters.models import Cluster, Node
from controlplane.clusters.pod_runs import ContainerRun, ObservedPod
from tests import factories
from tests.services.launches import settle

pytestmark = pytest.mark.django_db
DIGEST = "sha256:" + "a" * 64
FOUND = '{"found": "miss", "bytes": 9, "seconds": 7.5, "source": "models"}'


@pytest.fixture
def began() -> datetime:
    return timezone.now().replace(microsecond=0) - timedelta(minutes=5)


@pytest.fixture
def node(began: datetime) -> Node:
    return factories.node(joined_at=began - timedelta(days=1))


@pytest.fixture
def tell(node: Node) -> Callable[..., None]:
    """``tell(observed, …)`` as the watch does; ``relist`` as a listing, ``gone`` for what was deleted."""
    sink = LaunchSink()

    def told(*seen: Observed, gone: bool = False, relist: Kind | None = None, at: datetime | None = None) -> None:
        at, cluster = at or timezone.now(), str(node.cluster_id)
        if relist is not None:
            sink.relisted(cluster, relist, seen, at)
            return
        change = EventType.DELETED if gone else EventType.MODIFIED
        kinds = {ObservedPod: Kind.POD, ClusterEvent: Kind.EVENT}
        sink.changed(cluster, tuple(WatchEvent(change, kinds[type(one)], "t", one) for one in seen), at)

    return told


def run(number: int, since: datetime, until: datetime | None = None, reason: str = "", **fields: Any) -> ContainerRun:
    return ContainerRun("server", number, since, until, 1 if until else None, reason, **fields)


def pod(began: datetime, node: Node | None, uid: str = "p-1", **fields: Any) -> ObservedPod:
    """Placed after a second when ``node`` is given; the other fields are ObservedPod's."""
    fields.setdefault("digest", DIGEST)
    placed = {"scheduled_at": began + timedelta(seconds=1)} if node else {}
    return ObservedPod(
        uid=uid, name=f"default/chat-{uid}", endpoint=fields.pop("endpoint", "chat"), container="server",
        node_name=node.name if node else "", created_at=began, **(placed | fields),
    )  # fmt: skip


def after(began: datetime, seconds: float) -> datetime:
    return began + timedelta(seconds=seconds)


def ready_pod(began: datetime, node: Node, uid: str = "p-1", seconds: float = 20, **fields: Any) -> ObservedPod:
    ensured = ContainerRun("ensure", 0, after(began, 2), after(began, 9), 0, "Completed", FOUND)
    return pod(
        began, node, uid, runs=(run(0, after(began, 10)),), ensures=(ensured,), ready_at=after(began, seconds), **fields
    )  # fmt: skip


def event(reason: str, at: datetime, message: str = "", uid: str = "p-1", **fields: Any) -> ClusterEvent:
    fields.setdefault("reporter", "kubelet")
    return ClusterEvent(f"{uid}-{reason}-{at}", at, "Pod", "chat-0", uid, reason, message, container="server", **fields)


PULLED = 'Successfully pulled image "vllm:1" in 4.2s (5s including waiting). Image size: 1 bytes.'


def test_a_pod_and_its_events_are_a_launch(tell: Callable[..., None], began: datetime, node: Node) -> None:
    factories.endpoint(of=node.cluster, namespace="default", name="chat")
    tell(pod(began, None))
    tell(event("Pulling", after(began, 2)), event("Pulled", after(began, 8), PULLED))
    tell(ready_pod(began, node))
    settle()
    launch = Launch.objects.get()
    assert (launch.container, launch.pod_name, launch.node, launch.digest) == (
        "server",
        "default/chat-p-1",
        node,
        DIGEST,
    )
    assert (launch.state, launch.ready_seconds, launch.weights, launch.image) == ("Ready", 20, "Miss", "Miss")
    assert launch.phase_seconds == [1, 0, 7.5, None, None, None, None], "a second of both belongs to the later phase"
    assert LaunchLog.objects.get().state == "Due"


def test_whatever_the_order_and_however_often_it_is_the_same(
    tell: Callable[..., None], began: datetime, node: Node
) -> None:
    parts = [pod(began, None), pod(began, node), ready_pod(began, node), event("Pulled", after(began, 8), PULLED)]
    tell(parts[0])
    shuffled = parts * 3
    random.Random(5).shuffle(shuffled)
    for part in shuffled:
        tell(part)
    settle()
    stored = set(LaunchObservation.objects.values_list("pk", flat=True))
    tell(parts[2], relist=Kind.POD)
    tell(parts[3], relist=Kind.EVENT)
    assert set(LaunchObservation.objects.values_list("pk", flat=True)) == stored, "a relist gives the same rows"
    assert Launch.objects.get().ready_seconds == 20 and Launch.objects.get().stale_at is None


def test_a_pod_that_is_deleted_before_it_was_placed_has_ended(tell: Callable[..., None], began: datetime) -> None:
    tell(pod(began, None), event("FailedScheduling", after(began, 1), "0/3 nodes are available"))
    tell(event("FailedScheduling", after(began, 1), "0/3 nodes are available", reporter="default-scheduler"))
    tell(pod(began, None), gone=True, at=after(began, 60))
    settle()
    launch = Launch.objects.get()
    assert (launch.state, launch.reached, launch.end_reason) == ("Ended", "WaitingForNode", "Deleted")
    assert launch.total_seconds == 60
    notes = LaunchObservation.objects.filter(mark=Mark.NOTED)
    assert {one.facts["message"] for one in notes} == {"0/3 nodes are available"}


def test_what_vanished_while_nobody_watched_has_ended(tell: Callable[..., None], began: datetime, node: Node) -> None:
    tell(ready_pod(began, node), pod(began, node, "p-2"), pod(began, node, "p-3"))
    tell(event("Ready", began, uid="e-1"))
    settle()
    tell(pod(began, node, "p-3"), relist=Kind.POD, at=after(began, 200))
    settle()
    states = {one.pod_uid: (one.state, one.end_reason) for one in Launch.objects.all()}
    assert states == {"p-1": ("Ready", "Deleted"), "p-2": ("Ended", "Deleted"), "p-3": ("Starting", "")}


def test_launches_of_others_do_not_end_because_a_cluster_does_not_list_them(
    tell: Callable[..., None], node: Node
) -> None:
    """Reported over REST, or of an engine of the local fleet."""
    factories.launch(on=node, pod_uid="pushed", ended_at=None)
    tell(relist=Kind.POD)
    assert Launch.objects.get().ended_at is None and Launch.objects.get().stale_at is None


def test_every_run_of_a_container_that_crashes_is_a_launch_with_its_own_pulls(
    tell: Callable[..., None], began: datetime, node: Node
) -> None:
    first = run(0, after(began, 10), after(began, 20), "Error 1")
    second = run(1, after(began, 21), after(began, 31), "OOMKilled")
    tell(pod(began, node, runs=(run(0, after(began, 10)),)))
    tell(event("Pulled", after(began, 8), PULLED))
    tell(pod(began, node, runs=(first,), waits_to_restart=True))
    tell(pod(began, node, runs=(first, run(1, after(began, 21)))))
    tell(event("Pulled", after(began, 21), 'Container image "vllm:1" already present on machine'))
    tell(event("BackOff", after(began, 32), "Back-off restarting", first_at=after(began, 20)))
    tell(pod(began, node, runs=(second,), waits_to_restart=True))
    tell(pod(began, node, runs=(second, run(2, after(began, 61))), ready_at=after(began, 70)))
    settle()
    rows = list(Launch.objects.order_by("restart_count"))
    assert [(one.state, one.end_reason, one.image) for one in rows] == [
        ("Ended", "Error 1", "Miss"), ("Ended", "OOMKilled", "Hit"), ("Ready", "", "Unknown"),
    ]  # fmt: skip
    assert {one.event_class for one in rows[1:]} == {EventClass.WARM_RESTART} and rows[2].ready_seconds == 39
    assert {one.node_id for one in rows} == {node.pk}
    assert set(LaunchLog.objects.values_list("state", flat=True)) == {"Due"}


def test_what_is_said_of_a_restarts_image_before_the_restart_is_known_belongs_to_it(
    tell: Callable[..., None], began: datetime, node: Node
) -> None:
    first = run(0, after(began, 10), after(began, 20), "Error 1")
    tell(pod(began, node, runs=(run(0, after(began, 10)),)))
    tell(event("Pulled", after(began, 8), PULLED))
    tell(event("Pulled", after(began, 21), 'Container image "vllm:1" already present on machine'))
    tell(pod(began, node, runs=(first, run(1, after(began, 21)))))
    settle()
    assert list(Launch.objects.order_by("restart_count").values_list("image", flat=True)) == ["Miss", "Hit"]
    again = Launch.objects.get(restart_count=1)
    assert again.phase_seconds[1] == 0
    assert LaunchObservation.objects.filter(launch=again, mark=Mark.PULLED).count() == 0


def test_only_what_was_seen_to_begin_is_told_of(tell: Callable[..., None], node: Node) -> None:
    """Of a pod that has run for weeks nobody knows when it was first ready: it may have failed its probes just now."""
    long_ago = timezone.now() - timedelta(days=20)
    node.joined_at = long_ago - timedelta(days=1)
    node.save()
    tell(ready_pod(long_ago, node, "old", seconds=19 * 86400), relist=Kind.POD)
    tell(pod(long_ago, node, "flaps", runs=(run(0, after(long_ago, 9)),)), relist=Kind.POD)
    tell(pod(long_ago, None, "waits"), relist=Kind.POD)
    restarted = after(long_ago, 20 * 86400 - 60)
    again = (run(3, after(long_ago, 9), restarted, "Error 1"), run(4, after(restarted, 1)))
    tell(pod(long_ago, node, "again", runs=again), relist=Kind.POD)
    known = set(Launch.objects.values_list("pod_uid", "restart_count"))
    assert known == {("waits", 0), ("again", 4)}


def test_a_probe_that_fails_now_and_then_is_no_start(tell: Callable[..., None], began: datetime, node: Node) -> None:
    tell(ready_pod(began, node, seconds=20))
    settle()
    for flap in range(30, 200, 10):
        tell(ready_pod(began, node, seconds=flap))
    settle()
    assert Launch.objects.get().ready_seconds == 20
    assert LaunchObservation.objects.filter(mark=Mark.READY).count() == 1


@pytest.mark.parametrize(
    ("fields", "launches"),
    [
        ({"digest": "", "endpoint": ""}, 0),
        ({"digest": "", "endpoint": "unknown"}, 0),
        ({"digest": "", "endpoint": "chat"}, 1),
        ({"endpoint": ""}, 1),
        ({"endpoint": "unknown"}, 1),
    ],
)
def test_pods_of_endpoints_and_those_that_name_weights_have_launches(
    tell: Callable[..., None], began: datetime, node: Node, fields: dict[str, str], launches: int
) -> None:
    factories.endpoint(of=node.cluster, namespace="default", name="chat")
    tell(pod(began, node, **fields))
    tell(event("Pulled", after(began, 8), PULLED))
    assert Launch.objects.count() == launches
    assert LaunchObservation.objects.filter(mark=Mark.PULLED).count() == launches


def test_a_pod_ran_on_the_machine_that_had_the_name_then(
    tell: Callable[..., None], began: datetime, node: Node
) -> None:
    """Its node was replaced: the pod is still listed, and another machine has the name."""
    Node.objects.filter(pk=node.pk).update(lost_at=after(began, 30))
    factories.node(of=node.pool, name=node.name, joined_at=after(began, 31))
    tell(pod(began, node))
    settle()
    assert Launch.objects.get().node == node


def test_a_pod_of_a_lost_node_ends_for_that_reason_and_its_successor_is_a_recovery(
    tell: Callable[..., None], began: datetime, node: Node
) -> None:
    endpoint = factories.endpoint(of=node.cluster, namespace="default", name="chat")
    other = factories.node(of=node.pool, joined_at=began - timedelta(days=1))
    for uid, on in (("p-1", node), ("p-2", other)):
        factories.instance(of=endpoint, uid=uid, node=on, digest=DIGEST)
    tell(ready_pod(began, node))
    settle()
    lost: dict[str, Any] = {"leaving_at": after(began, 100), "leaving_reason": "DeletionByTaintManager"}
    tell(ready_pod(began, node, **lost))
    tell(ready_pod(after(began, 101), other, "p-2"))
    settle()
    first, second = Launch.objects.order_by("began_at")
    assert (first.state, first.end_reason) == ("Ready", "DeletionByTaintManager")
    assert (second.event_class, second.node) == (EventClass.NODE_LOSS, other)


def test_five_thousand_pods_cost_a_few_statements_a_batch_and_nothing_is_remembered(
    tell: Callable[..., None], began: datetime, node: Node
) -> None:
    costs = []
    for size in (50, 500):
        pods = [ready_pod(began, node, f"{size}-{number}") for number in range(size)]
        tell(*pods)
        with CaptureQueriesContext(connection) as queries:
            tell(*pods)
        costs.append(len(queries))
    assert costs[0] == costs[1]
    assert vars(LaunchSink()) == {}


def test_events_of_pods_that_nobody_knows_change_nothing(tell: Callable[..., None], began: datetime) -> None:
    tell(event("Pulled", began, PULLED, uid="other"))
    tell(relist=Kind.EVENT)
    assert Launch.objects.count() == 0


def test_a_cluster_that_is_gone_is_no_accident_of_its_launches(node: Node, began: datetime) -> None:
    with pytest.raises(Cluster.DoesNotExist):
        LaunchSink().relisted(str(factories.cluster().pk)[:-12] + "0" * 12, Kind.POD, (pod(began, None),), began)
