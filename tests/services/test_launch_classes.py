"""What launches are called from the rows around them: nodes, versions, endpoints, and what was there before."""

from __future__ import annotations

from datetime import timedelta

import pytest

from caches.domain.launches.labels import NEW_NODE_SECONDS
from caches.domain.launches.words import EventClass, Mark
from caches.models import Launch
from caches.services.launches.rows import launches_of_version_refresh
from controlplane.clusters.models import Cluster, ClusterType, Node
from controlplane.serving.models import Endpoint, Instance
from tests import factories
from tests.domain.launches import T0, mark
from tests.services.launches import ready_pod, settle, sighting, take_in

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)


class Fleet:
    """An endpoint with pods on nodes that are a day old."""

    def __init__(self) -> None:
        self.pool = factories.pool()
        self.cluster = self.pool.cluster
        self.endpoint: Endpoint = factories.endpoint(of=self.cluster)
        self.version = factories.version(model="llama")
        assert self.version.artifact is not None
        self.digest = self.version.artifact.digest
        self.old = self.node()

    def node(self, age: timedelta = timedelta(days=1)) -> Node:
        return factories.node(of=self.pool, joined_at=T0 - age)

    def launch(
        self, pod: str, node: Node, *, after: timedelta = timedelta(), digest: str = "", restart: int = 0
    ) -> Launch:
        self.instance(pod, node, digest)
        item = ready_pod(self.cluster, pod, 30, at=T0 + after, node=node, found="hit", restart=restart)
        (launch,) = take_in(item)
        return launch

    def instance(self, pod: str, node: Node, digest: str = "") -> None:
        Instance.objects.update_or_create(
            endpoint=self.endpoint,
            uid=pod,
            defaults={"name": f"default/{pod}", "node": node, "digest": digest or self.digest, "observed_at": T0},
        )


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


def test_the_first_pods_of_a_version_are_a_new_version(fleet: Fleet) -> None:
    first = fleet.launch("a", fleet.old)
    beside = fleet.launch("b", fleet.node(), after=timedelta(seconds=5))  # the first is not ready yet
    assert (first.event_class, beside.event_class) == (EventClass.NEW_VERSION, EventClass.NEW_VERSION)
    assert first.first_on_node is True


def test_scaling_out_is_a_cold_pod_where_the_node_was_and_a_new_node_where_it_was_not(fleet: Fleet) -> None:
    fleet.launch("a", fleet.old)
    cold = fleet.launch("b", fleet.old, after=HOUR)
    new = fleet.launch("c", fleet.node(age=-HOUR + timedelta(minutes=5)), after=HOUR)
    joined_after = fleet.launch("d", fleet.node(age=-2 * HOUR - timedelta(seconds=40)), after=2 * HOUR)
    assert (cold.event_class, cold.first_on_node) == (EventClass.COLD_POD, False)
    assert (new.event_class, new.node_age_seconds) == (EventClass.NEW_NODE, 301)
    assert (joined_after.event_class, joined_after.node_age_seconds) == (EventClass.NEW_NODE, 0)


def test_a_node_is_new_until_it_is_not(fleet: Fleet) -> None:
    fleet.launch("a", fleet.old)
    ages = {}
    for seconds in (NEW_NODE_SECONDS - 2, NEW_NODE_SECONDS - 1):  # and it is placed one later
        node = fleet.node(age=timedelta(seconds=seconds) - HOUR)
        ages[seconds] = fleet.launch(f"age-{seconds}", node, after=HOUR).event_class
    assert list(ages.values()) == [EventClass.NEW_NODE, EventClass.COLD_POD]


@pytest.mark.parametrize(
    ("joined", "served", "found", "age"),
    [
        (HOUR - timedelta(minutes=2), None, EventClass.NEW_NODE, 120),  # the node came for it
        (timedelta(minutes=10), None, EventClass.COLD_POD, 3000),  # it waited until there was room on an older one
        (HOUR - timedelta(minutes=5), HOUR - timedelta(minutes=4), EventClass.COLD_POD, 300),  # where another served
    ],
)
def test_a_node_is_as_old_as_it_is_when_the_pod_is_placed(
    fleet: Fleet, joined: timedelta, served: timedelta | None, found: EventClass, age: float
) -> None:
    """A pod may wait for hours."""
    fleet.launch("a", fleet.old, after=-HOUR)
    node = fleet.node(age=-joined)
    fleet.instance("b", node)
    seen = [mark(Mark.CREATED, 0), mark(Mark.SCHEDULED, 3600, node_uid=node.uid), mark(Mark.READY, 3700)]
    take_in(sighting(fleet.cluster, "b", *seen))
    if served is not None:
        fleet.launch("c", node, after=served)
        settle()
    launch = Launch.objects.get(pod_uid="b")
    assert (launch.event_class, launch.node_age_seconds, launch.stale_at) == (found, age, None)


def test_a_clock_that_is_behind_makes_no_node_served(fleet: Fleet) -> None:
    """Moved by the least there is it was ready when it was placed: its own readiness is not what was there before."""
    fleet.launch("a", fleet.old)
    young = fleet.node(age=timedelta(minutes=1) - HOUR)
    fleet.instance("b", young)
    seen = [mark(Mark.CREATED, 0), mark(Mark.SCHEDULED, 2, node_uid=young.uid), mark(Mark.READY, 20, skew=-30)]
    (launch,) = take_in(sighting(fleet.cluster, "b", *seen, at=T0 + HOUR))
    assert (launch.ready_seconds, launch.event_class) == (2, EventClass.NEW_NODE)
    launch.refresh_from_db()
    assert launch.stale_at is None


def test_a_second_version_is_new_again_and_the_way_back_is_not(fleet: Fleet) -> None:
    other = factories.version(model="llama").artifact
    assert other is not None
    fleet.launch("a", fleet.old)
    assert fleet.launch("b", fleet.old, after=HOUR, digest=other.digest).event_class == EventClass.NEW_VERSION
    assert fleet.launch("c", fleet.old, after=2 * HOUR).event_class == EventClass.COLD_POD


def test_an_endpoint_that_was_deleted_and_made_again_serves_no_new_version(fleet: Fleet) -> None:
    fleet.launch("a", fleet.old)
    name = fleet.endpoint.name
    Endpoint.objects.filter(pk=fleet.endpoint.pk).update(gone_at=T0)
    fleet.endpoint = factories.endpoint(of=fleet.cluster, name=name)
    assert fleet.launch("b", fleet.old, after=HOUR).event_class == EventClass.COLD_POD
    fleet.endpoint = factories.endpoint(of=fleet.cluster, name="another")
    assert fleet.launch("c", fleet.old, after=2 * HOUR).event_class == EventClass.NEW_VERSION


def test_a_container_that_starts_again_is_a_warm_restart(fleet: Fleet) -> None:
    fleet.launch("a", fleet.old)
    assert fleet.launch("a", fleet.old, after=HOUR, restart=1).event_class == EventClass.WARM_RESTART


def test_a_pod_after_its_endpoint_lost_a_node_is_a_recovery(fleet: Fleet) -> None:
    doomed = fleet.node()
    fleet.launch("a", doomed)
    fleet.launch("b", fleet.old, after=timedelta(minutes=10))
    Node.objects.filter(pk=doomed.pk).update(lost_at=T0 + HOUR)
    recovered = fleet.launch("c", fleet.old, after=HOUR + timedelta(minutes=1))
    late = fleet.launch("d", fleet.old, after=HOUR + timedelta(minutes=20))
    assert recovered.event_class == EventClass.NODE_LOSS
    assert late.event_class == EventClass.COLD_POD


def test_a_node_that_another_endpoint_lost_recovers_nothing_here(fleet: Fleet) -> None:
    fleet.launch("a", fleet.old)
    other = Fleet()
    doomed = other.node()
    other.launch("x", doomed)
    Node.objects.filter(pk=doomed.pk).update(lost_at=T0 + HOUR)
    assert fleet.launch("b", fleet.old, after=HOUR).event_class == EventClass.COLD_POD


def test_a_pod_that_ended_long_before_its_node_was_lost_is_not_replaced(fleet: Fleet) -> None:
    doomed = fleet.node()
    fleet.launch("a", doomed)
    take_in(sighting(fleet.cluster, "a", mark(Mark.ENDED, 600, reason="ScaledDown")))
    fleet.launch("b", fleet.old, after=timedelta(minutes=10))
    Node.objects.filter(pk=doomed.pk).update(lost_at=T0 + 2 * HOUR)
    assert fleet.launch("c", fleet.old, after=2 * HOUR).event_class == EventClass.COLD_POD


def test_a_launch_keeps_its_names_when_what_they_name_is_gone(fleet: Fleet) -> None:
    before = fleet.launch("a", fleet.old)
    names = (fleet.old.name, fleet.pool.name, fleet.endpoint.full_name, fleet.version.full_name)
    assert (before.node_name, before.pool_name, before.endpoint_name, before.version_name) == names
    Instance.objects.all().delete()
    fleet.old.delete()
    fleet.endpoint.delete()
    fleet.version.delete()
    take_in(sighting(fleet.cluster, "a", mark(Mark.ENDED, 4000, reason="Deleted")))
    after = Launch.objects.get()
    assert (after.node_name, after.pool_name, after.endpoint_name, after.version_name) == names
    assert after.node is None


def test_a_version_that_is_registered_afterwards_gives_its_name(fleet: Fleet) -> None:
    artifact = factories.artifact()
    before = fleet.launch("a", fleet.old, digest=artifact.digest)
    assert (before.version, before.version_name) == (None, "")
    registered = factories.version(artifact=artifact)
    assert launches_of_version_refresh(digest=artifact.digest) == 1
    settle()
    assert Launch.objects.get().version_name == registered.full_name


def test_nothing_is_known_around_it(fleet: Fleet) -> None:
    (launch,) = take_in(ready_pod(fleet.cluster, "stranger", 30))
    assert (launch.event_class, launch.node_age_seconds, launch.first_on_node) == (EventClass.UNKNOWN, None, None)


def test_a_trials_endpoint_serves_no_new_version_and_one_of_a_cluster_that_is_called_so_does(fleet: Fleet) -> None:
    fleet.endpoint = factories.endpoint(of=fleet.cluster, namespace="local", name="trial-1a2b3c4d")
    assert fleet.launch("a", fleet.old).event_class == EventClass.COLD_POD
    Cluster.objects.update(type=ClusterType.KUBERNETES)
    fleet.endpoint = factories.endpoint(of=fleet.cluster, namespace="local", name="trial-2b3c4d5e")
    assert fleet.launch("b", fleet.old, after=HOUR).event_class == EventClass.NEW_VERSION
