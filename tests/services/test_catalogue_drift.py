"""Drift: noticed, named and recorded; nothing is replaced."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from django.conf import LazySettings
from django.utils import timezone

from caches.domain.manifests import manifest_decode, manifest_encode
from caches.models import ModelVersion, SourceConnection
from caches.services.catalogue import rechecks_due, version_recheck, version_register
from caches.services.connections import connection_create
from caches.sources.secrets import write_secret
from controlplane.audit.models import AuditEvent, Via
from controlplane.audit.services import Actor
from controlplane.embedded.seaweed import S3
from controlplane.errors import Clash, Missing
from controlplane.operations.models import Operation
from controlplane.operations.services import operation_cancel
from controlplane.operations.steps import operation_step
from tests import factories
from tests.sources.conftest import Bucket, make_bucket

ADA = Actor("ada", Via.API)
pytestmark = pytest.mark.django_db


@pytest.fixture
def folder(tmp_path: Path, settings: LazySettings) -> Path:
    settings.SOURCE_ROOTS = [str(tmp_path)]
    settings.SECRETS_DIR = tmp_path / "secrets"
    place = tmp_path / "m"
    place.mkdir()
    for name in ("a.bin", "b.bin", "c.bin"):
        (place / name).write_text(name)
    return place


@pytest.fixture
def version(folder: Path) -> ModelVersion:
    disk = connection_create(actor=ADA, name="disk", type="Filesystem", allowed=[str(folder.parent)])
    return registered(disk, folder.as_uri())


def registered(connection: SourceConnection, uri: str) -> ModelVersion:
    row, operation = version_register(
        actor=ADA, model="llama", version="1", connection=connection, uri=uri, ignore_patterns=["*.txt"]
    )
    assert operation_step(operation_id=operation.pk)
    row.refresh_from_db()
    assert row.state == "Available"
    return row


def rechecked(version: ModelVersion) -> Operation:
    operation = version_recheck(actor=ADA, version_id=version.pk)
    assert operation_step(operation_id=operation.pk)
    operation.refresh_from_db()
    version.refresh_from_db()
    return operation


def test_nothing_changed_is_said_and_not_audited(version: ModelVersion, folder: Path) -> None:
    (folder / "ignored.txt").write_text("patterns leave it out")
    before = version.drift_checked_at
    operation = rechecked(version)
    assert (operation.state, (operation.result or {})["drift"], version.drift) == ("Succeeded", "Matches", "Matches")
    assert version.drift_checked_at is not None and before is not None and version.drift_checked_at > before
    assert not AuditEvent.objects.filter(action="version.drift").exists()


def test_it_names_what_was_added_removed_and_changed_and_replaces_nothing(version: ModelVersion, folder: Path) -> None:
    artifact = version.artifact_id
    (folder / "a.bin").write_text("A.bin")
    (folder / "b.bin").unlink()
    (folder / "new").mkdir()
    (folder / "new" / "d.bin").write_text("d")
    operation = rechecked(version)
    changes = [
        {"path": "a.bin", "change": "Changed"},
        {"path": "b.bin", "change": "Removed"},
        {"path": "new/d.bin", "change": "Added"},
    ]
    assert operation.state == "Succeeded" and operation.result == {
        "drift": "Drifted",
        "changed_count": 3,
        "changed": changes,
    }
    assert (version.drift, version.drift_changed, version.artifact_id) == ("Drifted", changes, artifact)
    event = AuditEvent.objects.get(action="version.drift")
    assert (event.before, (event.after or {})["drift"], event.operation_id) == (
        {"drift": "Matches"},
        "Drifted",
        operation.pk,
    )
    rechecked(version)
    assert AuditEvent.objects.filter(action="version.drift").count() == 1


def test_a_folder_that_is_gone_has_lost_every_file(version: ModelVersion, folder: Path) -> None:
    shutil.rmtree(folder)
    rechecked(version)
    assert version.drift == "Drifted"
    assert [change["change"] for change in version.drift_changed] == ["Removed"] * 3


def test_at_most_a_hundred_changes_are_kept_and_all_are_counted(version: ModelVersion, folder: Path) -> None:
    for number in range(150):
        (folder / f"{number:03}.bin").write_text("x")
    operation = rechecked(version)
    assert ((operation.result or {})["changed_count"], len(version.drift_changed)) == (150, 100)


def test_a_source_that_cannot_be_asked_is_unreachable_not_drifted(
    version: ModelVersion, folder: Path, settings: LazySettings
) -> None:
    settings.SOURCE_ROOTS = ["/nowhere"]
    operation = rechecked(version)
    assert (operation.state, version.drift, version.drift_changed) == ("Failed", "Unreachable", [])
    assert (operation.error or {})["next_step"]
    settings.SOURCE_ROOTS = [str(folder.parent)]
    rechecked(version)
    assert version.drift == "Matches"


def test_the_same_bytes_uploaded_again_are_no_drift_where_the_store_proves_it(
    s3_server: S3, tmp_path: Path, settings: LazySettings
) -> None:
    settings.SECRETS_DIR = tmp_path
    keys = {"access_key_id": s3_server.access_key, "secret_access_key": s3_server.secret_key}
    bucket: Bucket = make_bucket(s3_server.endpoint, keys)
    write_secret("keys", keys)
    connection = connection_create(
        actor=ADA, name="s3", type="S3", endpoint=bucket.endpoint, secret_name="keys", allowed=[bucket.name]
    )
    body = b"x" * (5 * 1024 * 1024) + b"y"
    bucket.put("m/f", body, ChecksumAlgorithm="CRC64NVME")
    bucket.put("m/plain", b"old")
    row = registered(connection, f"s3://{bucket.name}/m")
    bucket.put_multipart("m/f", [body[:-1], b"y"], "CRC64NVME", "FULL_OBJECT")
    rechecked(row)
    assert row.drift == "Matches"
    bucket.put("m/plain", b"new")
    rechecked(row)
    assert row.drift_changed == [{"path": "plain", "change": "Changed"}]


def test_only_one_comparison_runs_and_it_can_be_cancelled(version: ModelVersion) -> None:
    first = version_recheck(actor=ADA, version_id=version.pk)
    assert version_recheck(actor=ADA, version_id=version.pk).pk == first.pk
    operation_cancel(actor=ADA, operation_id=first.pk)
    operation_step(operation_id=first.pk)
    first.refresh_from_db()
    assert first.state == "Canceled"
    assert version_recheck(actor=ADA, version_id=version.pk).pk != first.pk


def test_it_refuses_what_has_nothing_to_compare() -> None:
    row = factories.version(artifact=None, state="Refused")
    with pytest.raises(Clash):
        version_recheck(actor=ADA, version_id=row.pk)
    row.delete()
    with pytest.raises(Missing):
        version_recheck(actor=ADA, version_id=row.pk)


def test_those_are_due_whose_last_comparison_is_old_and_not_running(settings: LazySettings) -> None:
    settings.SOURCE_RECHECK_SECONDS = 600
    now = timezone.now()
    old, older, fresh, never, running = (
        factories.version(drift_checked_at=at)
        for at in (now - timedelta(hours=1), now - timedelta(hours=2), now, None, now - timedelta(days=1))
    )
    factories.version(artifact=None, state="Refused")
    version_recheck(actor=ADA, version_id=running.pk)
    due = rechecks_due(now=now)
    assert set(due) == {old.pk, older.pk, never.pk} and fresh.pk not in due
    assert due.index(older.pk) < due.index(old.pk)
    assert due[0] == never.pk


def test_it_takes_a_change_of_attributes_for_no_drift(version: ModelVersion, folder: Path) -> None:
    """Nor what an older registration wrote down beside size, modification time and inode."""
    (folder / "a.bin").chmod(0o600)
    os.link(folder / "a.bin", folder.parent / "snapshot")
    rechecked(version)
    version.refresh_from_db()
    assert (version.drift, version.drift_changed) == ("Matches", [])
    artifact = version.artifact
    assert artifact is not None
    manifest = manifest_decode(bytes(artifact.manifest))
    files = tuple(replace(file, revision=f"{file.revision}-1700000000000000000") for file in manifest.files)
    artifact.manifest = manifest_encode(replace(manifest, files=files))
    artifact.save()
    rechecked(version)
    version.refresh_from_db()
    assert version.drift == "Matches"
