"""Observations taken in: repeated, in parts, in any order, too many, while somebody assembles."""

from __future__ import annotations

import random
from datetime import timedelta
from uuid import uuid4

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from caches.domain.launches.words import EventClass, Mark, launch_id
from caches.models import Launch, LaunchHour, LaunchObservation
from caches.services.launches import assembly as launch_assembly
from caches.services.launches.assembly import launches_assemble, launches_purge
from caches.services.launches.ingest import MOST_OBSERVATIONS, sightings_record
from controlplane.clusters.models import Cluster
from tests import factories
from tests.domain.launches import T0, mark, whole
from tests.services.launches import ready_pod, settle, sighting, take_in

pytestmark = pytest.mark.django_db


@pytest.fixture
def cluster() -> Cluster:
    return factories.cluster()


def test_a_launch_has_the_id_that_every_observer_computes(cluster: Cluster) -> None:
    (launch,) = take_in(sighting(cluster, "u-1", *whole()))
    assert launch.pk == launch_id(cluster=cluster.name, pod_uid="u-1", container="engine", restart_count=0)
    assert (launch.state, launch.ready_seconds, launch.total_seconds) == ("Ready", 96, 100)
    assert launch.phase_seconds == [2, 30, 20, 13, 25, 6, 4]
    assert (launch.weights, launch.image, launch.event_class) == ("Miss", "Miss", EventClass.UNKNOWN)
    assert launch.began_at == T0


def test_what_comes_twice_is_there_once_and_changes_nothing(cluster: Cluster) -> None:
    item = sighting(cluster, "u-1", *whole())
    assert sightings_record(items=[item, item]) == len(whole())
    settle()
    before = Launch.objects.get()
    assert sightings_record(items=[item]) == 0
    after = Launch.objects.get()
    assert (after.stale_at, after.updated_at) == (None, before.updated_at)
    assert LaunchObservation.objects.count() == len(whole())
    assert launches_assemble() == 0


def test_parts_in_any_order_make_the_same_launch(cluster: Cluster) -> None:
    parts = whole()
    random.Random(7).shuffle(parts)
    for part in parts:
        sightings_record(items=[sighting(cluster, "u-1", part)])
        launches_assemble()
    (whole_at_once,) = take_in(sighting(cluster, "u-2", *whole()))
    bit_by_bit = Launch.objects.get(pod_uid="u-1")
    for name in ("phases", "phase_seconds", "ready_seconds", "state", "reached", "began_at", "weights", "image"):
        assert getattr(bit_by_bit, name) == getattr(whole_at_once, name), name


def test_what_comes_after_it_was_assembled_is_assembled_again(cluster: Cluster) -> None:
    sightings_record(items=[sighting(cluster, "u-1", mark(Mark.CREATED, 0))])
    assert launches_assemble() == 1
    sightings_record(items=[sighting(cluster, "u-1", mark(Mark.READY, 50))])
    assert Launch.objects.get().stale_at is not None
    assert launches_assemble() == 1
    assert Launch.objects.get().ready_seconds == 50


def test_a_batch_costs_the_same_few_statements_however_large(cluster: Cluster) -> None:
    counts = []
    for size in (1, 50):
        items = [sighting(cluster, f"{size}-{number}", *whole()) for number in range(size)]
        with CaptureQueriesContext(
            connection,
        ) as queries:
            sightings_record(items=items)
        counts.append(len(queries))
    assert counts[0] == counts[1]


def test_a_launch_that_flaps_for_ever_fills_no_disk(cluster: Cluster) -> None:
    for start in range(0, 3 * MOST_OBSERVATIONS, MOST_OBSERVATIONS):
        flaps = [mark(Mark.READY, number) for number in range(start, start + MOST_OBSERVATIONS)]
        sightings_record(items=[sighting(cluster, "u-1", mark(Mark.CREATED, 0), *flaps)])
    assert LaunchObservation.objects.count() <= 2 * MOST_OBSERVATIONS
    settle()
    assert Launch.objects.get().ready_seconds == 0


def test_a_restart_is_its_own_launch(cluster: Cluster) -> None:
    first, second = take_in(
        ready_pod(cluster, "u-1", 60), ready_pod(cluster, "u-1", 20, restart=1, at=T0 + timedelta(hours=1))
    )
    assert first.pk != second.pk
    assert (first.ready_seconds, second.ready_seconds) == (60, 20)
    assert second.event_class == EventClass.WARM_RESTART


def test_an_observation_without_words_that_are_known_is_passed_over(cluster: Cluster) -> None:
    """A newer process wrote it; it is kept for whoever understands it."""
    (launch,) = take_in(sighting(cluster, "u-1", *whole()))
    LaunchObservation.objects.create(
        id=uuid4(), launch=launch, observer="Oracle", mark="Foreseen", clock="Server", received_at=timezone.now()
    )
    Launch.objects.update(stale_at=timezone.now())
    settle()
    assert Launch.objects.get().ready_seconds == 96


def test_a_clock_that_is_ahead_begins_no_launch_in_the_future(cluster: Cluster) -> None:
    ahead = timezone.now() + timedelta(days=3)
    sightings_record(items=[sighting(cluster, "u-1", mark(Mark.READY, 0), at=ahead)])
    assert Launch.objects.get().began_at <= timezone.now()


def test_old_launches_go_and_the_others_stay(cluster: Cluster) -> None:
    now = timezone.now()
    take_in(
        ready_pod(cluster, "old", 10, at=now - launch_assembly.KEPT - timedelta(days=1)),
        ready_pod(cluster, "new", 10, at=now - timedelta(days=1)),
    )
    assert launches_purge(now=now) == 1
    assert [launch.pod_uid for launch in Launch.objects.all()] == ["new"]
    assert set(LaunchObservation.objects.values_list("launch__pod_uid", flat=True)) == {"new"}


def test_hours_that_are_too_old_are_not_counted_again(cluster: Cluster) -> None:
    """Their launches are gone: counting would say that there were none."""
    old = timezone.now() - launch_assembly.KEPT - timedelta(days=1)
    sightings_record(items=[ready_pod(cluster, "old", 10, at=old)])
    launches_assemble()
    assert LaunchHour.objects.count() == 0
