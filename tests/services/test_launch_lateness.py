"""What comes late changes what was assembled before it: labels are the same whenever anything is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta

import pytest
from django.utils import timezone

from caches.domain.launches.events import event_observations
from caches.domain.launches.words import EventClass, Mark
from caches.models import Launch
from caches.services.launches.assembly import launches_assemble, launches_recheck
from caches.services.launches.ingest import Sighting, sightings_record
from controlplane.clusters.local.nodes import LocalNode
from controlplane.clusters.local.serving import LocalEndpoint, engine_made, scheduled
from controlplane.clusters.models import Node
from controlplane.serving.models import Endpoint, Instance
from tests import factories
from tests.domain.launches import T0, mark
from tests.services.launches import ready_pod, settle, sighting, take_in
from tests.services.test_launch_batches import Lab, labels
from tests.services.test_launch_classes import HOUR, Fleet

pytestmark = pytest.mark.django_db
LOSS, COLD, NEW = EventClass.NODE_LOSS, EventClass.COLD_POD, EventClass.NEW_VERSION
MINUTE = timedelta(minutes=1)


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


def settled() -> None:
    """Until nothing contradicts anything. Bounded: what is right must not be assembled for ever."""
    for _ in range(5):
        settle()
        if not launches_recheck(now=T0 + 2 * HOUR):
            return
    raise AssertionError("it is never content")


def classes(names: str) -> list[str]:
    found = dict(Launch.objects.values_list("pod_uid", "event_class"))
    return [found[name] for name in names]


def lost(node: Node, after: timedelta) -> None:
    Node.objects.filter(pk=node.pk).update(lost_at=T0 + after)


def in_threes(items: Sequence[Sighting]) -> None:
    for start in range(0, len(items), 3):
        take_in(*items[start : start + 3])


def backwards(items: Sequence[Sighting]) -> None:
    for item in reversed(items):
        sightings_record(items=[item])
        launches_assemble()


def in_pieces(items: Sequence[Sighting]) -> None:
    """Observation by observation, of all launches in turn."""
    for number in range(max(len(item.observations) for item in items)):
        sightings_record(items=[replace(item, observations=item.observations[number : number + 1]) for item in items])
        launches_assemble()


@pytest.mark.parametrize("how", [in_threes, backwards, in_pieces])
def test_labels_are_the_same_in_whatever_order_launches_are_told(how: Callable[[Sequence[Sighting]], None]) -> None:
    lab = Lab()
    items = lab.pods(24)
    lab.nodes[2:] = [factories.node(of=lab.pool, joined_at=T0 + 50 * MINUTE)]  # a young one
    items += [one for one in lab.pods(30, "young") if one.observations[0].at >= T0 + 50 * MINUTE]  # type: ignore[operator]  # all say when
    lab.lose(0, 11)
    lab.lose(1, 14)
    take_in(*items)
    settled()
    together = labels()
    assert {row[0] for row in together.values()} == {NEW, COLD, LOSS, EventClass.NEW_NODE}
    Launch.objects.all().delete()
    how(items)
    settled()
    assert labels() == together


@pytest.mark.parametrize("heard", ["before", "after"])
def test_as_many_recover_as_were_lost_whenever_the_loss_is_heard_of(fleet: Fleet, heard: str) -> None:
    doomed = fleet.node()
    for name in "ab":
        fleet.launch(name, doomed)
    if heard == "before":
        lost(doomed, HOUR)
    for number, name in enumerate("cdef"):
        fleet.launch(name, fleet.old, after=HOUR + number * MINUTE)
    lost(doomed, HOUR)
    settled()
    assert classes("cdef") == [LOSS, LOSS, COLD, COLD]


def test_an_earlier_one_that_is_told_later_takes_its_place(fleet: Fleet) -> None:
    doomed = fleet.node()
    fleet.launch("a", doomed)
    lost(doomed, HOUR)
    assert fleet.launch("c", fleet.old, after=HOUR + 2 * MINUTE).event_class == LOSS
    assert fleet.launch("b", fleet.old, after=HOUR + MINUTE).event_class == LOSS
    settled()
    assert classes("bc") == [LOSS, COLD]


def test_a_lost_pod_that_is_told_last_is_replaced_by_who_was_told_before(fleet: Fleet) -> None:
    doomed = fleet.node()
    lost(doomed, HOUR)
    fleet.launch("z", fleet.old)
    assert fleet.launch("b", fleet.old, after=HOUR + MINUTE).event_class == COLD
    fleet.launch("a", doomed, after=MINUTE)
    settled()
    assert classes("ab") == [COLD, LOSS]


def test_a_node_that_came_back_was_not_lost(fleet: Fleet) -> None:
    """A complete listing may say that a node lives that was thought to be lost."""
    doomed = fleet.node()
    fleet.launch("a", doomed)
    lost(doomed, HOUR)
    assert fleet.launch("b", fleet.old, after=HOUR + MINUTE).event_class == LOSS
    Node.objects.filter(pk=doomed.pk).update(lost_at=None)
    settled()
    assert classes("b") == [COLD]


def test_a_pod_of_another_version_replaces_nothing(fleet: Fleet) -> None:
    doomed, other = fleet.node(), factories.version(model="llama").artifact
    assert other is not None
    fleet.launch("a", doomed)
    lost(doomed, HOUR)
    assert fleet.launch("b", fleet.old, after=HOUR + MINUTE, digest=other.digest).event_class == NEW
    assert fleet.launch("c", fleet.old, after=HOUR + 2 * MINUTE).event_class == LOSS


def test_a_restarted_pod_is_lost_once_and_one_that_was_starting_is_lost_too(fleet: Fleet) -> None:
    doomed, second = fleet.node(), fleet.node()
    fleet.launch("a", doomed)
    take_in(sighting(fleet.cluster, "a", mark(Mark.ENDED, 600, reason="Error")))
    fleet.launch("a", doomed, after=10 * MINUTE, restart=1)
    lost(doomed, HOUR)
    fleet.launch("b", fleet.old, after=HOUR + MINUTE)
    fleet.launch("c", fleet.old, after=HOUR + 2 * MINUTE)
    assert classes("bc") == [LOSS, COLD]
    # Another node goes while a pod starts there.
    fleet.instance("d", second)
    began = mark(Mark.SCHEDULED, 0, node_uid=second.uid)
    take_in(sighting(fleet.cluster, "d", began, at=T0 + HOUR + 20 * MINUTE))
    lost(second, HOUR + 21 * MINUTE)
    fleet.launch("e", fleet.old, after=HOUR + 22 * MINUTE)
    assert classes("e") == [LOSS]


def test_the_first_on_a_node_may_be_told_last(fleet: Fleet) -> None:
    assert fleet.launch("b", fleet.old, after=HOUR).first_on_node is True
    first = fleet.launch("a", fleet.old)
    settled()
    assert (first.first_on_node, Launch.objects.get(pod_uid="b").first_on_node) == (True, False)
    assert classes("ab") == [NEW, COLD]


def test_a_young_node_that_served_before_is_not_new(fleet: Fleet) -> None:
    fleet.launch("z", fleet.old)
    young = fleet.node(age=MINUTE - HOUR)
    assert fleet.launch("b", young, after=HOUR + 2 * MINUTE).event_class == EventClass.NEW_NODE
    fleet.launch("a", young, after=HOUR + MINUTE)
    settled()
    assert classes("ab") == [EventClass.NEW_NODE, COLD]


@pytest.mark.parametrize("told", ["uid", "name"])
def test_a_pod_that_is_seen_before_its_node_gets_its_class(fleet: Fleet, told: str) -> None:
    fleet.launch("z", fleet.old)
    digest = fleet.digest
    where = mark(Mark.SCHEDULED, 1, node="n-late", node_uid="u-late" if told == "uid" else "")
    seen = [mark(Mark.CREATED, 0, endpoint=fleet.endpoint.full_name, digest=digest), where, mark(Mark.READY, 30)]
    (before,) = take_in(sighting(fleet.cluster, "b", *seen, at=T0 + HOUR + MINUTE))
    assert (before.event_class, before.node_name) == (EventClass.UNKNOWN, "n-late")
    # An older machine had the name: not this one.
    factories.node(of=fleet.pool, name="n-late", uid="u-old", joined_at=T0 - HOUR, lost_at=T0)
    settled()
    assert classes("b") == [EventClass.UNKNOWN]
    joined = T0 + HOUR - 5 * MINUTE
    node = factories.node(of=fleet.pool, name="n-late", uid="u-late", joined_at=joined)
    settled()
    after = Launch.objects.get(pod_uid="b")
    assert (after.event_class, after.node, after.node_age_seconds) == (EventClass.NEW_NODE, node, 361)


def test_an_engine_that_is_seen_before_its_instance_gets_its_class(fleet: Fleet) -> None:
    fleet.launch("z", fleet.old)
    (before,) = take_in(ready_pod(fleet.cluster, "b", 3, at=T0 + HOUR + MINUTE))
    assert (before.event_class, before.endpoint, before.digest) == (EventClass.UNKNOWN, None, "")
    fleet.instance("b", fleet.old)
    settled()
    after = Launch.objects.get(pod_uid="b")
    assert (after.event_class, after.endpoint, after.digest) == (COLD, fleet.endpoint, fleet.digest)


def test_an_engine_that_is_seen_before_its_node_gets_its_class_and_so_does_the_next_one_there(fleet: Fleet) -> None:
    """Its instance was seen before the node too, and never changes again."""
    fleet.launch("z", fleet.old)
    local = LocalEndpoint("chat", "e-1", fleet.digest, 1, "chat", "", T0)
    joined = T0 + HOUR
    engine = engine_made(local, LocalNode("n-late", "u-late", {}, 1, joined))
    Instance.objects.create(
        endpoint=fleet.endpoint, uid="b", name="local/b", node=None, digest=fleet.digest, observed_at=T0
    )
    said = event_observations("Scheduled", joined + timedelta(seconds=0.3), scheduled(engine).message, 0)
    began = [one for _, one in said]
    (before,) = take_in(
        Sighting(fleet.cluster.pk, fleet.cluster.name, "b", "engine", 0, (*began, mark(Mark.READY, 3612)))
    )
    assert (before.event_class, before.node, before.node_name) == (EventClass.UNKNOWN, None, "n-late")
    node = factories.node(of=fleet.pool, name="n-late", uid="u-late", joined_at=joined)
    assert fleet.launch("c", node, after=HOUR + MINUTE).event_class == EventClass.NEW_NODE
    settled()
    assert classes("bc") == [EventClass.NEW_NODE, COLD]
    found = dict(Launch.objects.values_list("pod_uid", "first_on_node"))
    assert (Launch.objects.get(pod_uid="b").node, found["b"], found["c"]) == (node, True, False)


def test_a_pod_that_is_seen_before_its_endpoint_gets_it(fleet: Fleet) -> None:
    seen = [mark(Mark.CREATED, 0, endpoint="default/later", digest=fleet.digest), mark(Mark.READY, 30)]
    now = timezone.now()
    (before,) = take_in(sighting(fleet.cluster, "b", *seen, at=T0 + HOUR + MINUTE))
    assert before.endpoint is None
    made: Endpoint = factories.endpoint(of=fleet.cluster, namespace="default", name="later")
    assert made.created_at >= now
    settled()
    assert Launch.objects.get(pod_uid="b").endpoint == made


def test_a_version_that_is_registered_while_launches_are_assembled_gives_its_name_in_the_end(fleet: Fleet) -> None:
    artifact = factories.artifact()
    fleet.launch("b", fleet.old, after=HOUR + MINUTE, digest=artifact.digest)
    registered = factories.version(artifact=artifact)
    settled()
    assert Launch.objects.get(pod_uid="b").version_name == registered.full_name


def test_what_was_known_of_a_node_stays_known_when_its_row_is_gone(fleet: Fleet) -> None:
    fleet.launch("z", fleet.old)
    young = fleet.node(age=MINUTE - HOUR)
    fleet.launch("a", young, after=HOUR + MINUTE)
    fleet.launch("b", young, after=HOUR + 3 * MINUTE)
    before = labels()
    Instance.objects.all().delete()
    young.delete()
    for name in "ab":
        take_in(sighting(fleet.cluster, name, mark(Mark.ENDED, 9000, reason="Deleted")))
    settled()
    assert labels() == before


def test_what_is_right_is_not_assembled_again(fleet: Fleet) -> None:
    doomed = fleet.node()
    for number, name in enumerate("abcd"):
        fleet.launch(name, (doomed, fleet.old)[number % 2], after=number * MINUTE)
    lost(doomed, HOUR)
    for number, name in enumerate("efg"):
        fleet.launch(name, fleet.old, after=HOUR + number * MINUTE)
    settled()
    assert launches_recheck(now=T0 + HOUR + 5 * MINUTE) == 0
    take_in(sighting(fleet.cluster, "b", mark(Mark.ENDED, 5000, reason="Deleted")))
    assert not Launch.objects.filter(stale_at__isnull=False).exists()
    sightings_record(items=[sighting(fleet.cluster, "e", mark(Mark.FIRST_SUCCESS, 5000))])
    assert launches_assemble() == 1
    assert launches_assemble() == 0
