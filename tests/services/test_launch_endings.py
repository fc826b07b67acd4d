"""Launches of runs that nobody saw end are closed by the next run of their container, however that is told."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from caches.domain.launches.endings import NOT_SEEN
from caches.domain.launches.observations import Observation
from caches.domain.launches.timeline import RULE
from caches.domain.launches.words import Mark
from caches.launch_sink import LaunchSink
from caches.models import Launch, LaunchLog, LaunchObservation
from caches.services.launches.assembly import launches_assemble, launches_recheck
from caches.services.launches.ingest import Sighting, sightings_record
from caches.services.launches.pods import pods_missing
from caches.services.launches.retiming import launches_retime
from controlplane.clusters.documents import Consumer
from controlplane.clusters.gateway import ClusterEvent, EventType, Kind, WatchEvent
from controlplane.clusters.models import Cluster, ClusterType
from controlplane.clusters.pod_runs import ContainerRun, ObservedPod
from controlplane.serving.services import ENDPOINT_LABEL
from tests import factories
from tests.domain.launches import mark
from tests.services.launches import settle, sighting, take_in

pytestmark = pytest.mark.django_db
SECOND = timedelta(seconds=1)
BEGAN = timezone.now().replace(microsecond=0) - timedelta(hours=1)  # nothing begins later than it is heard of


@pytest.fixture
def cluster() -> Cluster:
    return factories.cluster()


def ends() -> list[tuple[int, str, float | None, str]]:
    """(run, state, seconds from BEGAN until it ended, why) of every launch."""
    rows = Launch.objects.order_by("restart_count").values_list("restart_count", "state", "ended_at", "end_reason")
    return [(run, state, (at - BEGAN).total_seconds() if at else None, why) for run, state, at, why in rows]


def saw(cluster: Cluster, *seen: Observation, run: int = 0) -> Sighting:
    return sighting(cluster, "u", *seen, restart=run, at=BEGAN)


def three_runs(cluster: Cluster) -> list[Sighting]:
    """A ready one, one that never was, and one that goes on; nobody saw any of them end."""
    return [
        saw(cluster, mark(Mark.CREATED, 0), mark(Mark.STARTED, 5), mark(Mark.READY, 9)),
        saw(cluster, mark(Mark.STARTED, 300), run=1),
        saw(cluster, mark(Mark.STARTED, 600), mark(Mark.READY, 604), run=3),
    ]


CLOSED = [(0, "Ready", 300, NOT_SEEN), (1, "Ended", 600, NOT_SEEN), (3, "Ready", None, "")]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("together", [True, False])
def test_every_run_but_the_last_has_ended_in_whatever_order_they_are_told(
    cluster: Cluster, order: Sequence[int], together: bool
) -> None:
    runs = three_runs(cluster)
    for group in [[runs[number] for number in order]] if together else [[runs[number]] for number in order]:
        take_in(*group)
    assert ends() == CLOSED
    seen = LaunchObservation.objects.count()
    take_in(*runs)
    assert ends() == CLOSED and LaunchObservation.objects.count() == seen, "twice is once, and nobody saw an end"


def test_every_part_of_it_in_any_order_gives_the_same(cluster: Cluster) -> None:
    parts = [replace(one, observations=(seen,)) for one in three_runs(cluster) for seen in one.observations]
    for part in reversed(parts):
        take_in(part)
    assert ends() == CLOSED


def test_other_pods_and_containers_do_not_end_it(cluster: Cluster) -> None:
    first, second, _ = three_runs(cluster)
    other = Sighting(cluster.pk, cluster.name, "u", "sidecar", 1, second.observations)
    beside = Sighting(cluster.pk, cluster.name, "v", "engine", 1, second.observations)
    take_in(first, other, beside)
    assert set(Launch.objects.values_list("ended_at", flat=True)) == {None}


def test_who_saw_it_end_is_believed_whenever_he_says_so(cluster: Cluster) -> None:
    take_in(*three_runs(cluster))
    take_in(saw(cluster, mark(Mark.ENDED, 250, reason="OOMKilled")))
    assert ends()[0] == (0, "Ready", 250, "OOMKilled")


def test_a_later_run_that_is_told_to_have_begun_at_another_time_moves_the_end(cluster: Cluster) -> None:
    take_in(*three_runs(cluster))
    take_in(saw(cluster, mark(Mark.RESTARTED, 299), run=1))
    assert ends()[0] == (0, "Ready", 299, NOT_SEEN)


def test_what_is_closed_is_not_assembled_again(cluster: Cluster) -> None:
    take_in(*three_runs(cluster))
    sightings_record(items=[saw(cluster, mark(Mark.FIRST_SUCCESS, 700), run=3)])
    assert [launches_assemble(), launches_assemble()] == [1, 0]


def test_phases_that_are_made_again_know_of_the_end(cluster: Cluster) -> None:
    take_in(*three_runs(cluster))
    ended = Launch.objects.filter(restart_count=1)
    before = ended.values("phases", "unknown_seconds", "reached").get()
    ended.update(rule=1, unknown_seconds=None, phases=[])
    assert launches_retime() == 1
    assert ended.values("phases", "unknown_seconds", "reached", "rule").get() == {**before, "rule": RULE}


def left_open(cluster: Cluster, **fields: Any) -> None:
    """As a version that knows nothing of it leaves the second of ``three_runs``."""
    take_in(*three_runs(cluster))
    as_open = {"state": "Starting", "ended_at": None, "end_reason": "", "total_seconds": None}
    Launch.objects.filter(restart_count=1).update(**as_open, **fields)


def test_phases_of_what_is_stored_as_going_on_are_not_made_without_its_end(cluster: Cluster) -> None:
    left_open(cluster, rule=1, unknown_seconds=None, phases=[])
    assert (launches_retime(), launches_retime()) == (1, 0)
    found = Launch.objects.get(restart_count=1)
    assert (found.phases, found.unknown_seconds, found.rule) == ([], None, 1), "not a part of it"
    settle()
    found.refresh_from_db()
    assert ends() == CLOSED and found.rule == RULE and found.phases


@pytest.mark.parametrize("how", ["lately", "there"])
def test_what_another_version_left_open_beside_a_later_run_is_closed(cluster: Cluster, how: str) -> None:
    left_open(cluster)
    now = BEGAN
    if how == "there":  # a pod that is there is looked at, whenever it began
        now += timedelta(days=9)
        assert launches_recheck(now=now) == 0
        factories.instance(of=factories.endpoint(of=cluster), uid="u")
    assert launches_recheck(now=now) == 1
    settle()
    assert ends() == CLOSED and launches_recheck(now=now) == 0


def test_what_goes_on_or_has_nothing_left_that_was_seen_is_not_assembled_for_ever(cluster: Cluster) -> None:
    left_open(cluster)
    LaunchObservation.objects.filter(launch__restart_count=1).delete()
    assert launches_recheck(now=BEGAN) == 0, "it would stay as it is"


@pytest.mark.parametrize("lag", [0, 550])
def test_a_run_whose_node_lags_is_closed_and_not_told_to_be_gone_at_every_listing(cluster: Cluster, lag: int) -> None:
    Cluster.objects.filter(pk=cluster.pk).update(type=ClusterType.KUBERNETES)
    first = saw(cluster, mark(Mark.CREATED, 0), mark(Mark.STARTED, 5 - lag))
    take_in(first, saw(cluster, mark(Mark.RESTARTED, 300 - lag), run=1))
    LaunchLog.objects.bulk_create([LaunchLog(launch_id=key) for key in Launch.objects.values_list("pk", flat=True)])
    assert ends()[0] == (0, "Ended", max(0, 300 - lag), NOT_SEEN)
    told = []
    for number in range(3):
        told.append(pods_missing(cluster_id=cluster.pk, present=[], at=BEGAN + (900 + number) * SECOND))
        settle()
    assert told == [1, 0, 0], "of the run that went on, once"


def test_an_end_that_nobody_saw_is_no_earlier_beginning(cluster: Cluster) -> None:
    take_in(saw(cluster, mark(Mark.PULLING, 50)))
    take_in(saw(cluster, mark(Mark.RESTARTED, 40), run=1))
    first = Launch.objects.get(restart_count=0)
    assert (first.began_at, first.ended_at) == (BEGAN + 50 * SECOND, BEGAN + 40 * SECOND)


def test_an_engine_on_a_machine_that_was_without_power_has_one_launch_that_goes_on(cluster: Cluster) -> None:
    now, sink = BEGAN, LaunchSink()

    def tell(reason: str, at: float, run: int) -> None:
        said = ClusterEvent(f"{reason}-{run}", now + at * SECOND, "Engine", "local/chat-1", "e-1", reason, "", run)
        sink.changed(str(cluster.pk), (WatchEvent(EventType.ADDED, Kind.EVENT, "t", said),), now)
        settle()

    for reason, at, run in (("Scheduled", 0, 0), ("Started", 2, 0), ("Ready", 5, 0)):
        tell(reason, at, run)
    assert Launch.objects.get().ended_at is None
    tell("Started", 100, 1)  # the machine is back, and with it the engine
    tell("Ready", 103, 1)
    first, second = Launch.objects.order_by("restart_count")
    assert (first.state, first.ended_at, first.end_reason) == ("Ready", now + 100 * SECOND, NOT_SEEN)
    assert (second.state, second.ended_at) == ("Ready", None)
    engine = Consumer("e-1", "local/chat-1", "a-4", "u", frozenset(), labels={ENDPOINT_LABEL: "chat"})
    sink.changed(str(cluster.pk), (WatchEvent(EventType.DELETED, Kind.CONSUMER, "t", engine),), now + 200 * SECOND)
    settle()
    again = Launch.objects.order_by("restart_count").values_list("ended_at", "end_reason")
    assert list(again) == [(now + 100 * SECOND, NOT_SEEN), (now + 200 * SECOND, "Deleted")]


def test_runs_of_a_pod_that_restarted_while_nobody_watched_have_ended(cluster: Cluster) -> None:
    """The status tells of the run before at most: of the first nobody knows more than that it ended."""
    began, sink = BEGAN, LaunchSink()

    def tell(*runs: ContainerRun, gone: bool = False) -> None:
        pod = ObservedPod(
            "p-1", "default/chat-0", "chat", "sha256:" + "a" * 64, "n", "server", began, began + SECOND, runs=runs
        )
        change = EventType.DELETED if gone else EventType.MODIFIED
        sink.changed(str(cluster.pk), (WatchEvent(change, Kind.POD, "t", pod),), began + 200 * SECOND)
        settle()

    tell(ContainerRun("server", 0, began + 10 * SECOND))
    crashed = ContainerRun("server", 2, began + 60 * SECOND, began + 90 * SECOND, 137, "OOMKilled")
    tell(crashed, ContainerRun("server", 3, began + 91 * SECOND))
    tell(crashed, ContainerRun("server", 3, began + 91 * SECOND), gone=True)
    found = Launch.objects.order_by("restart_count").values_list("restart_count", "ended_at", "end_reason")
    assert list(found) == [(0, began + 90 * SECOND, NOT_SEEN), (3, began + 200 * SECOND, "Deleted")]
