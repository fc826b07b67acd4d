"""What an update does with the rows of the version before, and what processes of that version may still write."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any

import pytest
from django.apps import apps
from django.db import IntegrityError, connection, transaction
from django.utils import timezone

from caches.domain.manifests import manifest_decode
from caches.models import Artifact, LaunchCount, LaunchHour
from caches.services.artifacts import weights_artifact
from caches.services.launches.assembly import KEPT
from caches.services.launches.counts import hours_count
from controlplane.clusters.models import Cluster
from controlplane.serving.models import Instance
from tests import factories
from tests.services.launches import put_launches, settle

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)
COUNTS = import_module("caches.migrations.0034_launch_trials_counts")
READ = import_module("caches.migrations.0031_artifact_servable_read")


def hour_before(**ago: float) -> datetime:
    return timezone.now().astimezone(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(**ago)


def run(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


def insert_without(row: Any, *columns: str) -> None:
    """As a process that does not know of these columns writes it."""
    fields = [field for field in row._meta.concrete_fields if field.column not in columns]
    names = ", ".join(field.column for field in fields)
    values = [field.get_db_prep_save(getattr(row, field.attname), connection) for field in fields]
    with connection.cursor() as cursor:
        marks = ", ".join(["%s"] * len(values))
        cursor.execute(f"INSERT INTO {row._meta.db_table} ({names}) VALUES ({marks})", values)


def files_of(*paths: str) -> Artifact:
    artifact = factories.of_files(factories.version(), *paths).artifact
    assert artifact is not None
    return artifact


def count(cluster: Cluster, at: datetime) -> None:
    """Two launches that were counted when they were young."""
    put_launches(cluster, [10.0, 20.0], at=at, pool_name="a", endpoint_name="lab/chat")
    LaunchHour.objects.get_or_create(cluster=cluster, start=at, defaults={"dirty_at": timezone.now()})
    settle()


def as_before() -> None:
    """Counts as the version before left them: of no endpoint and no digest, trials among the others."""
    LaunchCount.objects.filter(by__in=("Digest", "Place", "Endpoint")).delete()
    LaunchCount.objects.update(digest="")


def test_processes_of_before_write_instances_endpoints_and_artifacts() -> None:
    made = factories.instance(of=factories.endpoint())
    endpoint, artifact = made.endpoint, factories.artifact()
    Instance.objects.all().delete()
    insert_without(made, "wait_reason", "wait_message", "leaving", "node_name", "node_uid")
    found = Instance.objects.get()
    assert (found.wait_reason, found.wait_message, found.leaving, found.runs_on) == ("", "", False, None)
    type(endpoint).objects.all().delete()
    insert_without(endpoint, "unwritten")
    assert type(endpoint).objects.get().unwritten == {}
    Artifact.objects.all().delete()
    insert_without(artifact, "servable_locally")
    assert Artifact.objects.get().servable_locally is False


def test_workers_of_before_cannot_take_marks_away() -> None:
    put_launches(factories.cluster(), [10.0], at=hour_before(hours=2))
    row = LaunchCount.objects.filter(by="Nothing", step="Hour").get()
    row.delete()
    with pytest.raises(IntegrityError), transaction.atomic():
        insert_without(row, "id", "trial", "digest", "endpoint_name")


def test_what_can_be_served_locally_is_read_from_manifests() -> None:
    rows = {files_of(*paths).pk: fit for paths, fit in (
        (("a.gguf", "config.json"), True),
        (("a.gguf", "b.gguf"), False),
        (("deep/a.gguf",), False),
        (("model.safetensors",), False),
    )}  # fmt: skip
    broken = factories.artifact()
    Artifact.objects.filter(pk=broken.pk).update(manifest=b"no manifest")
    Artifact.objects.update(servable_locally=False)
    READ.read(apps, None)
    assert dict(Artifact.objects.values_list("pk", "servable_locally")) == {**rows, broken.pk: False}


def test_what_a_process_of_before_registered_is_read_once_more_when_it_is_registered_again() -> None:
    manifest = manifest_decode(bytes(files_of("a.gguf").manifest))
    artifact, _ = weights_artifact(manifest)
    Artifact.objects.update(servable_locally=False)
    again, made = weights_artifact(manifest)
    assert (again.pk, again.servable_locally, made) == (artifact.pk, True, False)
    assert Artifact.objects.get(pk=artifact.pk).servable_locally


def test_pools_of_hours_that_are_not_counted_again_can_be_chosen_and_a_repeat_adds_none() -> None:
    count(factories.cluster(), hour_before(days=120))
    as_before()
    for _ in range(2):
        run(COUNTS.PLACES)
    places = LaunchCount.objects.filter(by="Place", step="Day").values_list("pool_name", "endpoint_name", "launches")
    assert list(places) == [("a", "", 2)]


def test_hours_are_counted_again_that_have_all_their_launches() -> None:
    assert "interval '90 days'" in COUNTS.COUNT_AGAIN and timedelta(days=90) == KEPT
    cluster = factories.cluster()
    kept, purged = hour_before(days=89), hour_before(days=90, hours=12)
    for at in (kept, purged):
        count(cluster, at)
    as_before()
    LaunchCount.objects.filter(by="Nothing").update(launches=5)  # three of each are gone
    LaunchHour.objects.all().delete()
    for _ in range(2):
        run(COUNTS.COUNT_AGAIN)
    assert list(LaunchHour.objects.values_list("start", flat=True)) == [kept]
    settle()
    hours = LaunchCount.objects.filter(by="Nothing", step="Hour")
    assert dict(hours.values_list("start", "launches")) == {kept: 2, purged: 5}
    assert set(LaunchCount.objects.filter(by="Endpoint").values_list("endpoint_name", flat=True)) == {"lab/chat"}


def test_the_hour_that_goes_on_does_not_wait_behind_those_of_an_update() -> None:
    cluster, now = factories.cluster(), hour_before()
    starts = [now - number * HOUR for number in range(5)]
    for number, start in enumerate(starts):
        LaunchHour.objects.create(cluster=cluster, start=start, dirty_at=timezone.now() - number * HOUR)
    hours_count(limit=2)
    assert set(LaunchHour.objects.filter(step="Hour").values_list("start", flat=True)) == {*starts[2:]}
