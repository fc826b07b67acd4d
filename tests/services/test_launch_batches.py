"""Assembly by the batch: it says what one after the other would, costs few statements, and a crash costs a repeat."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from caches.domain.launches.words import EventClass, Mark, MissReason
from caches.models import Launch, LaunchHour
from caches.services.launches import assembly as launch_assembly
from caches.services.launches.assembly import launches_assemble
from caches.services.launches.ingest import Sighting, sightings_record
from controlplane.clusters.models import Node, NodePool
from controlplane.serving.models import Endpoint, Instance
from tests import factories
from tests.domain.launches import T0, mark
from tests.services.launches import ready_pod, settle, sighting, take_in

pytestmark = pytest.mark.django_db
LABELS = ("event_class", "first_on_node", "node_age_seconds", "weights", "miss_reason", "pod_name", "endpoint_name")
COUNT = 24


class Lab:
    """Two endpoints with pods on three nodes, of which one is lost on the way."""

    def __init__(self) -> None:
        self.pool: NodePool = factories.pool()
        self.nodes: list[Node] = [factories.node(of=self.pool, joined_at=T0 - timedelta(days=1)) for _ in range(3)]
        self.endpoints: list[Endpoint] = [factories.endpoint(of=self.pool.cluster) for _ in range(2)]
        self.digests = [factories.artifact().digest for _ in range(2)]

    def pods(self, count: int, prefix: str = "pod") -> list[Sighting]:
        """Launches two minutes apart; whatever is chosen is the same for the same number."""
        return [self._pod(f"{prefix}-{number}", number, random.Random(number)) for number in range(count)]

    def _pod(self, name: str, number: int, chance: random.Random) -> Sighting:
        node, endpoint, digest = chance.choice(self.nodes), chance.choice(self.endpoints), chance.choice(self.digests)
        Instance.objects.create(
            endpoint=endpoint, uid=name, name=f"{endpoint.namespace}/{name}", node=node, digest=digest, observed_at=T0
        )
        at, found = T0 + timedelta(minutes=2 * number), chance.choice(["hit", "miss", "partial"])
        return ready_pod(self.pool.cluster, name, 30 + number, at=at, node=node, found=found)

    def lose(self, index: int, minutes: int) -> None:
        Node.objects.filter(pk=self.nodes[index].pk).update(lost_at=T0 + timedelta(minutes=minutes))


def labels() -> dict[str, tuple[Any, ...]]:
    return {row.pod_uid: tuple(getattr(row, name) for name in LABELS) for row in Launch.objects.all()}


def test_a_batch_says_what_one_after_the_other_says() -> None:
    lab = Lab()
    lab.lose(0, 21)
    items = lab.pods(COUNT)
    for item in items:
        sightings_record(items=[item])
        assert launches_assemble() == 1
    one_by_one = labels()
    assert {row[0] for row in one_by_one.values()} == {
        EventClass.NEW_VERSION, EventClass.COLD_POD, EventClass.NODE_LOSS
    }  # fmt: skip
    assert {row[1] for row in one_by_one.values()} == {True, False}
    Launch.objects.all().delete()
    random.Random(5).shuffle(items)
    take_in(*items)
    assert labels() == one_by_one


def test_a_batch_beside_what_is_stored_says_the_same() -> None:
    lab = Lab()
    lab.lose(1, 25)
    items = lab.pods(COUNT)
    for item in items:
        sightings_record(items=[item])
        assert launches_assemble() == 1
    one_by_one = labels()
    Launch.objects.all().delete()
    take_in(*items[: COUNT // 2])
    take_in(*items[COUNT // 2 :])
    assert labels() == one_by_one
    # Assembled again, alone or with others, nothing of it changes.
    Launch.objects.filter(pod_uid__in=["pod-3", "pod-20"]).update(stale_at=timezone.now())
    settle()
    assert labels() == one_by_one


def test_a_batch_costs_as_many_statements_as_one_launch() -> None:
    lab, counts = Lab(), []
    for prefix, size in (("a", 1), ("b", 30)):
        sightings_record(items=lab.pods(size, prefix))
        with CaptureQueriesContext(connection) as queries:
            assert launches_assemble() == size
        counts.append(len(queries))
    assert counts[0] == counts[1] <= 28


def test_it_assembles_no_more_than_asked_and_first_what_waits_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_assembly, "BATCH", 3)
    items = Lab().pods(8)
    for item in items:
        sightings_record(items=[item])
    assert launches_assemble(limit=5) == 5
    waiting = set(Launch.objects.filter(stale_at__isnull=False).values_list("pod_uid", flat=True))
    assert waiting == {"pod-5", "pod-6", "pod-7"}
    assert launches_assemble(limit=5) == 3
    assert launches_assemble() == 0


def test_a_crash_before_the_end_costs_a_repeat_and_leaves_nothing_half_written(monkeypatch: pytest.MonkeyPatch) -> None:
    sightings_record(items=Lab().pods(4))

    def killed(**fields: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(launch_assembly, "hours_mark_dirty", killed)
        with pytest.raises(KeyboardInterrupt):
            launches_assemble()
    assert Launch.objects.filter(stale_at__isnull=False, state="Starting").count() == 4
    assert not LaunchHour.objects.exists()
    settle()
    assert Launch.objects.filter(stale_at__isnull=True, state="Ready").count() == 4


def test_words_of_any_script_and_every_kind_of_nothing_are_written_as_they_are() -> None:
    cluster = factories.cluster()
    reason = 'Error: "ENOSPC" \\ {quota} 日本語 \u202e 🔥'
    (launch,) = take_in(sighting(cluster, "u", mark(Mark.CREATED, 0), mark(Mark.ENDED, 9, reason=reason)))
    assert (launch.end_reason, launch.state, launch.ready_seconds) == (reason, "Ended", None)
    assert (launch.first_on_node, launch.node_age_seconds, launch.node, launch.miss_reason) == (None, None, None, "")
    assert launch.phase_seconds == [None] * 7
    assert [one["state"] for one in launch.phases].count("NotReached") == 6


def test_an_engine_has_its_instance_s_name_and_says_why_it_missed() -> None:
    lab = Lab()
    (item,) = lab.pods(1)
    (launch,) = take_in(item)
    assert launch.title == f"{launch.endpoint_name}, pod-0"
    assert launch.endpoint_name in {one.full_name for one in lab.endpoints}
    lab.nodes.append(factories.node(of=lab.pool, joined_at=T0 + timedelta(hours=1)))
    missed = ready_pod(lab.pool.cluster, "x", 30, at=T0 + timedelta(hours=1), node=lab.nodes[-1], found="miss")
    (launch,) = take_in(missed)
    assert launch.miss_reason == MissReason.NEW_NODE
    assert "pod x" in launch.title


def test_an_endpoint_that_is_gone_for_good_is_known_by_its_name() -> None:
    lab = Lab()
    lab.endpoints, lab.digests = lab.endpoints[:1], lab.digests[:1]
    name = lab.endpoints[0].name
    first, second = lab.pods(2)
    take_in(first)
    lab.endpoints[0].delete()
    lab.endpoints = [factories.endpoint(of=lab.pool.cluster, name=name)]
    Instance.objects.create(endpoint=lab.endpoints[0], uid="pod-1", name="x", digest=lab.digests[0], observed_at=T0)
    (launch,) = take_in(second)
    assert launch.event_class == EventClass.COLD_POD
