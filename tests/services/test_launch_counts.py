"""Counts by hour and day: exact, made again where something changed, never twice."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.utils import timezone

from caches.domain.launches.period import period_of
from caches.domain.launches.sketch import Sketch
from caches.domain.launches.words import Mark
from caches.models import Launch, LaunchCount, LaunchHour
from caches.selectors.launches.lists import hours_waiting
from caches.services.launches.assembly import hours_mark_dirty, launches_assemble
from caches.services.launches.counts import hours_count
from caches.services.launches.ingest import sightings_record
from controlplane.clusters.models import Cluster
from tests import factories
from tests.domain.launches import mark
from tests.services.launches import pods, put_launches, ready_pod, settle, sighting, take_in

pytestmark = pytest.mark.django_db


@pytest.fixture
def cluster() -> Cluster:
    return factories.cluster()


@pytest.fixture
def noon() -> datetime:
    """The last noon but one, UTC."""
    return timezone.now().astimezone(UTC).replace(hour=12, minute=0, second=0, microsecond=0) - timedelta(days=2)


def counted(step: str) -> dict[datetime, tuple[int, int, int]]:
    rows = LaunchCount.objects.filter(step=step, by="Nothing")
    return {row.start: (row.launches, row.ready, row.ended) for row in rows}


def test_it_counts_by_hour_and_by_day(cluster: Cluster, noon: datetime) -> None:
    lost = sighting(cluster, "lost", mark(Mark.CREATED, 0), mark(Mark.ENDED, 9), at=noon + timedelta(minutes=59))
    take_in(*pods(cluster, [10, 20, 30], at=noon), lost, ready_pod(cluster, "later", 40, at=noon + timedelta(hours=1)))
    assert counted("Hour") == {noon: (4, 3, 1), noon + timedelta(hours=1): (1, 1, 0)}
    assert counted("Day") == {noon.replace(hour=0): (5, 4, 1)}
    day = LaunchCount.objects.get(step="Day", by="Nothing")
    assert Sketch.from_bytes(day.sketch) == Sketch.of([10, 20, 30, 40])


def test_counting_again_counts_nothing_twice(cluster: Cluster, noon: datetime) -> None:
    take_in(*pods(cluster, [10, 20], at=noon))
    for _ in range(2):
        hours_mark_dirty(cluster_id=cluster.pk, moments=[noon])
        assert hours_count() == 1
        assert hours_count() == 0
    assert counted("Hour") == {noon: (2, 2, 0)}
    assert counted("Day") == {noon.replace(hour=0): (2, 2, 0)}


def test_what_comes_late_moves_a_launch_to_its_hour(cluster: Cluster, noon: datetime) -> None:
    """It was first seen ready; that it began an hour before is learnt afterwards."""
    late = noon + timedelta(minutes=5)
    take_in(sighting(cluster, "u", mark(Mark.READY, 0), at=late))
    assert counted("Hour") == {noon: (1, 1, 0)}
    take_in(sighting(cluster, "u", mark(Mark.CREATED, -600), at=late))
    assert counted("Hour") == {noon - timedelta(hours=1): (1, 1, 0)}
    assert Launch.objects.get().ready_seconds == 600


def test_what_changes_while_an_hour_is_counted_is_counted_afterwards(cluster: Cluster, noon: datetime) -> None:
    take_in(*pods(cluster, [10], at=noon))
    hours_mark_dirty(cluster_id=cluster.pk, moments=[noon])
    read = LaunchHour.objects.get(step="Hour")
    hours_mark_dirty(cluster_id=cluster.pk, moments=[noon])
    assert LaunchHour.objects.get(step="Hour").dirty_at > read.dirty_at
    assert LaunchHour.objects.filter(pk=read.pk, dirty_at=read.dirty_at).delete()[0] == 0


def test_an_hour_whose_launches_moved_away_counts_none(cluster: Cluster, noon: datetime) -> None:
    take_in(*pods(cluster, [10], at=noon))
    Launch.objects.update(began_at=noon + timedelta(days=1))
    hours_mark_dirty(cluster_id=cluster.pk, moments=[noon, noon + timedelta(days=1)])
    settle()
    assert set(counted("Hour")) == {noon + timedelta(days=1)}
    assert set(counted("Day")) == {noon.replace(hour=0) + timedelta(days=1)}


def test_clusters_are_counted_apart(cluster: Cluster, noon: datetime) -> None:
    other = factories.cluster()
    take_in(*pods(cluster, [10, 20], at=noon), *pods(other, [30], at=noon))
    rows = LaunchCount.objects.filter(step="Day", by="Nothing").order_by("launches")
    assert [(row.cluster_id, row.launches) for row in rows] == [(other.pk, 1), (cluster.pk, 2)]


def test_classes_hits_and_pools_are_cells_of_their_own(cluster: Cluster, noon: datetime) -> None:
    pool = factories.pool(of=cluster)
    node = factories.node(of=pool, joined_at=noon - timedelta(days=1))
    take_in(
        ready_pod(cluster, "a", 10, at=noon, node=node, found="hit"),
        ready_pod(cluster, "b", 90, at=noon, node=node, found="miss"),
        ready_pod(cluster, "c", 10, at=noon),
    )
    cells = LaunchCount.objects.filter(step="Hour", by="Version").values_list(
        "pool_name", "event_class", "weights", "launches"
    )
    assert set(cells) == {
        (pool.name, "ColdPodOnWarmNode", "Hit", 1),
        (pool.name, "ColdPodOnWarmNode", "Miss", 1),
        ("", "Unknown", "Unknown", 1),
    }


def test_a_launch_that_goes_on_is_counted_before_it_is_ready(cluster: Cluster, noon: datetime) -> None:
    sightings_record(items=[sighting(cluster, "u", mark(Mark.CREATED, 0), at=noon)])
    launches_assemble()
    hours_count()
    assert counted("Hour") == {noon: (1, 0, 0)}
    assert Sketch.from_bytes(LaunchCount.objects.get(step="Hour", by="Nothing").sketch).count == 0


def test_counts_of_an_earlier_release_are_made_again_hour_by_hour(cluster: Cluster, noon: datetime) -> None:
    """Killed in between it goes on where it was; meanwhile the hours that wait say so."""
    for hour in range(3):
        at = noon + timedelta(hours=hour)
        put_launches(cluster, [10.0, 20.0], at=at, endpoint_name="lab/chat", digest="sha256:a")
        put_launches(cluster, [900.0], at=at, endpoint_name="local/trial-1a2b3c4d")
    right = set(LaunchCount.objects.values_list("by", "step", "start", "trial", "endpoint_name", "digest", "launches"))
    # As that release left them: of no endpoint, and trials among the others.
    LaunchCount.objects.filter(by__in=("Digest", "Place", "Endpoint")).delete()
    LaunchCount.objects.filter(trial=True).delete()
    LaunchCount.objects.update(launches=3, digest="")
    hours_mark_dirty(cluster_id=cluster.pk, moments=[noon + timedelta(hours=hour) for hour in range(3)])
    period = period_of("now-3d", "now", timezone.now())
    left = []
    while hours_waiting(period, targets=None):
        assert hours_count(limit=1) == 1
        left.append(hours_waiting(period, targets=None))
    settle()
    assert left == [2, 1, 0]
    found = set(LaunchCount.objects.values_list("by", "step", "start", "trial", "endpoint_name", "digest", "launches"))
    assert found == right and {row[3] for row in found} == {True, False}


def test_an_hour_waits_once_whatever_the_clusters_and_for_their_readers(cluster: Cluster, noon: datetime) -> None:
    """The current hour of a dozen busy clusters is one hour of a page, and no update."""
    busy = [cluster, *(factories.cluster() for _ in range(11))]
    for one in busy:
        hours_mark_dirty(cluster_id=one.pk, moments=[noon])
    hours_mark_dirty(cluster_id=cluster.pk, moments=[noon + timedelta(hours=1)])
    period = period_of("now-3d", "now", timezone.now())
    own, other = busy[0].name, busy[1].name
    seen = [hours_waiting(period, targets=one) for one in (
        None, frozenset({own}), frozenset({other}), frozenset({f"{own}.gpu", f"{own}.cpu"}), frozenset({"none"}),
    )]  # fmt: skip
    assert seen == [2, 2, 1, 2, 0]
