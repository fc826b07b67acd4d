"""What reading pods keeps of launches that are open: as much as there are of them, however often their pods change."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from uuid import uuid4

import pytest

from caches.launch_sink import LaunchSink
from controlplane.clusters.gateway import ClusterEvent, EventType, Kind, WatchEvent
from controlplane.clusters.kubernetes.gateway import KubernetesGateway
from controlplane.clusters.kubernetes.pod_events import MOST_WAITING, Launching
from controlplane.clusters.pod_runs import ObservedPod
from controlplane.clusters.watching import QUEUE_SIZE, ClusterWatcher
from tests.clusters.played_pods import PlayedPods
from tests.clusters.pod_documents import moment

PODS = 300


@pytest.fixture
def played() -> PlayedPods:
    return PlayedPods(PODS)


@pytest.fixture
def gateway(played: PlayedPods) -> KubernetesGateway:
    return KubernetesGateway("played", client=played)  # type: ignore[arg-type]  # what is asked of the client


def changes(gateway: KubernetesGateway, token: str) -> Iterator[WatchEvent]:
    return (one for one in gateway.watch(Kind.POD, token, 1.0) if one.type is not EventType.BOOKMARK)


def kept() -> int:
    """Pods of these tests that somebody holds on to."""
    gc.collect()
    # By type: what is lazy and of somebody else would be made by being asked for its class.
    return sum(type(one) is ObservedPod and one.uid.startswith("uid-pod-") for one in gc.get_objects())


def uids(gateway: KubernetesGateway) -> int:
    launching: Launching = gateway._kinds.launching
    return len(launching._seen.keys() | launching._before.keys())


def test_changes_of_open_launches_leave_nothing_behind(played: PlayedPods, gateway: KubernetesGateway) -> None:
    token = gateway.list(Kind.POD).token
    assert (kept(), uids(gateway)) == (0, PODS), "a listing is handed on, and who was listed is known"
    for _ in range(3):
        for number in [*range(PODS)] * 4:
            played.put("MODIFIED", number)
        assert sum(1 for _ in changes(gateway, token)) >= PODS
        assert (kept(), uids(gateway)) == (0, PODS)


def test_a_watch_keeps_the_last_of_each_pod_until_it_ends(played: PlayedPods, gateway: KubernetesGateway) -> None:
    token = gateway.list(Kind.POD).token
    for number in [*range(PODS)] * 8:
        played.put("MODIFIED", number)
    watch = changes(gateway, token)
    last = ""
    for one in watch:
        assert isinstance(one.object, ObservedPod)
        last = one.object.uid
        if played.version > 7 * PODS:
            break
    del one
    assert last and 0 < kept() <= PODS
    watch.close()  # type: ignore[attr-defined]  # a generator
    del watch
    assert kept() == 0


def test_launches_that_ended_are_let_go_with_the_second_listing(played: PlayedPods, gateway: KubernetesGateway) -> None:
    token = gateway.list(Kind.POD).token
    for number in range(PODS):
        played.put("DELETED", number)
    assert sum(one.type is EventType.DELETED for one in changes(gateway, token)) == PODS
    assert (kept(), uids(gateway)) == (0, PODS), "what is said of them late is still told"
    gateway.list(Kind.POD)
    gateway.list(Kind.POD)
    assert (kept(), uids(gateway)) == (0, 0)


def test_events_that_wait_for_pods_and_what_waits_for_the_database_are_bounded(
    gateway: KubernetesGateway,
) -> None:
    launching = Launching()
    for number in range(MOST_WAITING + 500):
        nobodys = ClusterEvent(f"event-{number}", moment(0), "Pod", "default/x", f"nobody-{number}", "Pulling", "")
        assert not launching.takes(nobodys)
    assert len(launching._waiting) == MOST_WAITING
    watcher = ClusterWatcher(cluster_id=uuid4(), name="lab", gateway=lambda: gateway)
    assert watcher._queue.maxsize == QUEUE_SIZE
    assert not vars(LaunchSink()), "the sink itself remembers nothing"
