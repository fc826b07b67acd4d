"""Labels where the watcher hears late, where a pod ended before its node was lost, and where a young node served."""

from __future__ import annotations

from datetime import timedelta

import pytest

from caches.domain.launches.losses import HEARD_WITHIN
from caches.domain.launches.words import EventClass, Mark
from controlplane.clusters.models import Node
from tests.domain.launches import T0, mark
from tests.services.launches import ready_pod, sighting, take_in
from tests.services.test_launch_classes import HOUR, Fleet

pytestmark = pytest.mark.django_db


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


def lost(node: Node, at: timedelta) -> None:
    Node.objects.filter(pk=node.pk).update(lost_at=T0 + at)


@pytest.mark.parametrize(
    ("heard", "found"),
    [
        (timedelta(), EventClass.NODE_LOSS),
        (timedelta(seconds=1), EventClass.NODE_LOSS),
        (HEARD_WITHIN, EventClass.NODE_LOSS),
        (HEARD_WITHIN + timedelta(seconds=1), EventClass.COLD_POD),
    ],
)
def test_who_replaces_a_lost_pod_may_be_seen_before_the_loss(fleet: Fleet, heard: timedelta, found: EventClass) -> None:
    doomed = fleet.node()
    fleet.launch("a", doomed)
    lost(doomed, HOUR + heard)
    assert fleet.launch("b", fleet.old, after=HOUR).event_class == found


def test_a_pod_that_ended_by_itself_before_its_node_was_lost_is_not_replaced(fleet: Fleet) -> None:
    """Scaled in, then its node is taken away: the next pod recovers nothing."""
    doomed = fleet.node()
    fleet.launch("a", doomed)
    take_in(sighting(fleet.cluster, "a", mark(Mark.ENDED, 3400, reason="ScaledDown")))
    lost(doomed, timedelta(seconds=3500))
    assert fleet.launch("b", fleet.old, after=HOUR).event_class == EventClass.COLD_POD


def test_a_pod_that_was_seen_to_end_just_before_its_node_was_lost_with_it(fleet: Fleet) -> None:
    doomed = fleet.node()
    fleet.launch("a", doomed)
    take_in(sighting(fleet.cluster, "a", mark(Mark.ENDED, 3499, reason="Deleted")))
    lost(doomed, timedelta(seconds=3500))
    assert fleet.launch("b", fleet.old, after=HOUR).event_class == EventClass.NODE_LOSS


@pytest.mark.parametrize(
    ("reason", "found"),
    [
        ("DeletionByPodGC", EventClass.NODE_LOSS),  # the node's object is gone before anybody said that it is lost
        ("DeletionByTaintManager", EventClass.NODE_LOSS),
        ("PreemptionByScheduler", EventClass.COLD_POD),
        ("EvictionByEvictionAPI", EventClass.COLD_POD),
        ("TerminationByKubelet", EventClass.COLD_POD),
    ],
)
def test_the_clusters_word_for_why_a_pod_ended_tells_losses(fleet: Fleet, reason: str, found: EventClass) -> None:
    fleet.launch("a", fleet.node())
    take_in(sighting(fleet.cluster, "a", mark(Mark.ENDED, 3500, reason=reason)))
    assert fleet.launch("b", fleet.old, after=HOUR).event_class == found


def test_a_scale_up_just_before_the_cluster_gave_a_pod_up_recovers_nothing(fleet: Fleet) -> None:
    fleet.launch("a", fleet.node())
    up = fleet.launch("up", fleet.old, after=HOUR - timedelta(seconds=5))
    take_in(sighting(fleet.cluster, "a", mark(Mark.ENDED, HOUR.total_seconds(), reason="DeletionByTaintManager")))
    recovery = fleet.launch("b", fleet.old, after=HOUR + timedelta(seconds=1))
    up.refresh_from_db()
    assert (up.event_class, recovery.event_class) == (EventClass.COLD_POD, EventClass.NODE_LOSS)


def test_a_node_that_served_is_not_new(fleet: Fleet) -> None:
    fleet.launch("a", fleet.old)
    young = fleet.node(age=timedelta(minutes=1) - HOUR)
    first = fleet.launch("b", young, after=HOUR)
    beside = fleet.launch("c", young, after=HOUR + timedelta(seconds=20))  # the first is not ready yet
    later = fleet.launch("d", young, after=HOUR + timedelta(seconds=40))
    assert [one.event_class for one in (first, beside, later)] == [
        EventClass.NEW_NODE, EventClass.NEW_NODE, EventClass.COLD_POD,
    ]  # fmt: skip


def test_a_node_that_served_is_not_new_to_launches_of_the_same_batch(fleet: Fleet) -> None:
    fleet.launch("a", fleet.old)
    young = fleet.node(age=timedelta(minutes=1) - HOUR)
    pods = [ready_pod(fleet.cluster, name, 30, at=T0 + HOUR + timedelta(minutes=n), node=young, digest=fleet.digest)
            for n, name in enumerate(("b", "c"))]  # fmt: skip
    assert [one.event_class for one in take_in(*reversed(pods))] == [EventClass.COLD_POD, EventClass.NEW_NODE]
