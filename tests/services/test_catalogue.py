"""Registering versions from a real S3 server and from folders."""

from __future__ import annotations

import json
import os
import random
import struct
from pathlib import Path
from typing import Any

import pytest
from django.conf import LazySettings

from caches.domain.manifests import manifest_decode
from caches.models import Artifact, Model, ModelVersion, SourceConnection
from caches.services import listing, resolving
from caches.services.catalogue import version_delete, version_register, version_resolve_step
from caches.services.connections import connection_create
from caches.sources.secrets import write_secret
from controlplane.audit.models import AuditEvent, Via
from controlplane.audit.services import Actor
from controlplane.clusters.documents import Algorithm, Reason
from controlplane.embedded.seaweed import S3
from controlplane.errors import Clash, HearthError, Invalid, Permanent
from controlplane.operations.models import Operation
from controlplane.operations.services import operation_cancel, operation_retry
from controlplane.operations.steps import operation_step
from tests import factories
from tests.sources.conftest import Bucket, make_bucket

ADA = Actor("ada", Via.API, "request-1")
pytestmark = pytest.mark.django_db


@pytest.fixture
def folder(tmp_path: Path, settings: LazySettings) -> Path:
    """A model in a folder that filesystem connections may read."""
    settings.SOURCE_ROOTS = [str(tmp_path)]
    place = tmp_path / "models" / "llama"
    place.mkdir(parents=True)
    (place / "config.json").write_text(json.dumps({"max_position_embeddings": 4096}))
    (place / "model.safetensors").write_bytes(safetensors({"w": [30, 40], "b": [7]}))
    (place / "notes.txt").write_text("not needed")
    return place


@pytest.fixture
def disk(folder: Path) -> SourceConnection:
    return connection_create(actor=ADA, name="disk", type="Filesystem", allowed=[str(folder.parents[1])])


@pytest.fixture
def s3(s3_server: S3, tmp_path: Path, settings: LazySettings) -> tuple[Bucket, SourceConnection]:
    settings.SECRETS_DIR = tmp_path / "secrets"
    keys = {"access_key_id": s3_server.access_key, "secret_access_key": s3_server.secret_key}
    bucket = make_bucket(s3_server.endpoint, keys)
    write_secret("keys", keys)
    connection = connection_create(
        actor=ADA, name="s3", type="S3", endpoint=bucket.endpoint, secret_name="keys", allowed=[bucket.name]
    )
    return bucket, connection


def safetensors(shapes: dict[str, list[int]]) -> bytes:
    header = json.dumps({name: {"dtype": "F16", "shape": shape} for name, shape in shapes.items()}).encode()
    return struct.pack("<Q", len(header)) + header + random.Random(1).randbytes(1000)


def register(connection: SourceConnection, uri: str, version: str = "1", **patterns: Any) -> ModelVersion:
    """Register and run the operation to its end as the worker does."""
    row, operation = version_register(
        actor=ADA, model="llama", version=version, connection=connection, uri=uri, **patterns
    )
    finish(operation)
    row.refresh_from_db()
    return row


def finish(operation: Operation) -> Operation:
    for _ in range(20):
        if operation_step(operation_id=operation.pk):
            break
    operation.refresh_from_db()
    return operation


def test_it_registers_a_folder_from_s3_with_anchors_and_metadata(s3: tuple[Bucket, SourceConnection]) -> None:
    bucket, connection = s3
    bucket.put("m/model.safetensors", safetensors({"w": [30, 40], "b": [7]}), ChecksumAlgorithm="CRC64NVME")
    bucket.put("m/config.json", b'{"text_config": {"n_positions": 2048}}', ChecksumAlgorithm="SHA256")
    row, operation = version_register(
        actor=ADA, model="llama", version="1", connection=connection, uri=f"s3://{bucket.name}/m/"
    )
    assert (row.state, operation.kind, operation.subject_name) == ("Resolving", "ModelRegister", "llama 1")
    finish(operation)
    row.refresh_from_db()
    assert (row.state, row.drift, row.uri) == ("Available", "Matches", f"s3://{bucket.name}/m")
    assert row.metadata == {"parameters": 1207, "context_length": 2048}
    artifact = row.artifact
    assert artifact is not None and artifact.anchored and artifact.files_count == 2
    manifest = manifest_decode(bytes(artifact.manifest))
    assert [f.algorithm for f in manifest.files] == [Algorithm.SHA256, Algorithm.CRC64NVME]
    assert operation.state == "Succeeded"
    assert (operation.result or {})["digest"] == manifest.digest == artifact.digest
    assert not any(key.startswith("_") for key in operation.params)
    trail = AuditEvent.objects.filter(object_id=str(row.pk)).values_list("action", flat=True)
    assert {"version.register", "version.available"} <= set(trail)
    assert "secret" not in json.dumps([operation.params, operation.result])


def test_it_shares_an_artifact_between_stores_only_by_content(
    s3: tuple[Bucket, SourceConnection], s3_server: S3
) -> None:
    bucket, connection = s3
    other = make_bucket(s3_server.endpoint, bucket.secret)
    elsewhere = connection_create(
        actor=ADA, name="other", type="S3", endpoint=other.endpoint, secret_name="keys", allowed=[other.name]
    )
    for place in (bucket, other):
        place.put("anchored/f", b"same", ChecksumAlgorithm="SHA256")
        place.put("plain/f", b"same")
    a = register(connection, f"s3://{bucket.name}/anchored", "a")
    b = register(elsewhere, f"s3://{other.name}/anchored", "b")
    c = register(connection, f"s3://{bucket.name}/plain", "c")
    d = register(elsewhere, f"s3://{other.name}/plain", "d")
    assert a.artifact_id == b.artifact_id
    assert len({a.artifact_id, c.artifact_id, d.artifact_id}) == 3
    assert c.artifact is not None and not c.artifact.anchored


def test_it_registers_a_folder_and_applies_patterns(disk: SourceConnection, folder: Path) -> None:
    (folder / "original").mkdir()
    (folder / "original" / "old.bin").write_bytes(b"x")
    row = register(disk, f"file://{folder}", allow_patterns=["*.safetensors", "*.json", "original/"],
                   ignore_patterns=["original/*.bin"])  # fmt: skip
    assert row.artifact is not None
    files = manifest_decode(bytes(row.artifact.manifest)).files
    assert [file.path for file in files] == ["config.json", "model.safetensors"]
    assert {file.algorithm for file in files} == {Algorithm.STAT}
    assert row.metadata == {"parameters": 1207, "context_length": 4096}


def test_it_resumes_page_by_page_and_survives_a_repeated_step(
    disk: SourceConnection, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(23):
        (folder / f"shard-{number:02}.bin").write_bytes(bytes([number]))
    monkeypatch.setattr(resolving, "PAGE_SIZE", 10)
    _, operation = version_register(actor=ADA, model="llama", version="1", connection=disk, uri=f"file://{folder}")
    assert version_resolve_step(operation_id=operation.pk) is False
    operation.refresh_from_db()
    once = operation.params
    assert version_resolve_step(operation_id=operation.pk) is False
    Operation.objects.filter(pk=operation.pk).update(params=once)  # as if the worker died before it wrote
    finish(operation)
    artifact = Artifact.objects.get()
    assert (operation.state, artifact.files_count) == ("Succeeded", 26)


def test_it_asks_for_smaller_pages_when_the_store_is_slow(
    disk: SourceConnection, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    real = listing.describe_all

    def slow(source: Any, uri: str, files: list[Any], *, seconds: float) -> Any:
        asked.append(len(files))
        return real(source, uri, files, seconds=-1.0 if len(asked) == 1 else seconds)

    monkeypatch.setattr(resolving, "describe_all", slow)
    for number in range(200):
        (folder / f"shard-{number:03}.bin").write_bytes(b"x")
    monkeypatch.setattr(resolving, "PAGE_SIZE", 200)
    assert register(disk, f"file://{folder}").state == "Available"
    assert asked == [200, 50, 50, 50, 50, 3]


@pytest.mark.parametrize(
    ("arrange", "code"),
    [
        (lambda place: (place / "Config.json").write_text("x"), "version:user:case-collision"),
        (lambda place: (place / "a\\b").write_text("x"), "version:user:unsafe-path"),
        (lambda place: (place / ".hearth-marker.json").write_text("x"), "version:user:unsafe-path"),
        (lambda place: (Path(os.fsdecode(os.fsencode(place) + b"/\xff"))).write_text("x"), "version:user:unsafe-path"),
        (lambda place: (place / "z").symlink_to("/etc/passwd"), "source:user:unsafe-file"),
        (lambda place: os.mkfifo(place / "z"), "source:user:unsafe-file"),
    ],
)
def test_it_refuses_files_that_no_node_may_hold(arrange: Any, code: str, disk: SourceConnection, folder: Path) -> None:
    arrange(folder)
    row, operation = version_register(actor=ADA, model="llama", version="1", connection=disk, uri=f"file://{folder}")
    finish(operation)
    row.refresh_from_db()
    assert (row.state, row.code, row.artifact_id) == ("Refused", code, None)
    assert row.message and row.next_step
    assert (operation.state, (operation.error or {})["code"]) == ("Failed", code)
    assert not Artifact.objects.exists()


def test_it_leaves_unsafe_files_out_when_a_pattern_says_so(disk: SourceConnection, folder: Path) -> None:
    (folder / "a-link").symlink_to("/etc/passwd")
    (folder / "b-dangling").symlink_to(folder / "nothing")
    (folder / ".hearth-marker.json").write_text("x")
    (folder / "a-folder").symlink_to(folder.parent)
    row = register(disk, f"file://{folder}", ignore_patterns=["a-*", "b-*", ".hearth*"])
    assert (row.state, row.code) == ("Available", "")


def test_it_refuses_when_the_patterns_leave_nothing(disk: SourceConnection, folder: Path) -> None:
    row = register(disk, f"file://{folder}", allow_patterns=["*.gguf"])
    assert (row.state, row.code) == ("Refused", "version:user:everything-filtered")
    assert "3 files" in row.message


def test_it_refuses_at_once_what_cannot_be_read(disk: SourceConnection, folder: Path) -> None:
    (folder.parent / "empty").mkdir()
    cases: list[tuple[str, str]] = [
        (f"file://{folder.parent}/typo", "source:user:empty-prefix"),
        (f"file://{folder.parent}/empty", "source:user:empty-prefix"),
        (f"file://{folder}/config.json", "source:user:empty-prefix"),
        ("file:///etc", "source:user:not-allowed"),
        (f"file://{folder}/../../../etc", "source:user:bad-uri"),
        ("s3://bucket/m", "source:user:bad-uri"),
    ]
    for uri, code in cases:
        with pytest.raises(Permanent) as caught:
            version_register(actor=ADA, model="llama", version="1", connection=disk, uri=uri)
        assert caught.value.code == code, uri
    assert not ModelVersion.objects.exists() and not Model.objects.exists() and not Operation.objects.exists()


def test_it_says_access_denied_before_any_row_exists(s3: tuple[Bucket, SourceConnection]) -> None:
    bucket, connection = s3
    bucket.put("m/f", b"x")
    for content in ({"access_key_id": "nobody", "secret_access_key": "wrong"}, None):
        if content is None:
            SourceConnection.objects.filter(pk=connection.pk).update(secret_name="missing")
            connection.refresh_from_db()
        else:
            write_secret("keys", content)
        with pytest.raises(Permanent) as caught:
            version_register(actor=ADA, model="llama", version="1", connection=connection, uri=f"s3://{bucket.name}/m")
        assert caught.value.reason == Reason.ACCESS_DENIED
    assert not ModelVersion.objects.exists()


def test_it_refuses_names_that_are_no_address(disk: SourceConnection, folder: Path) -> None:
    for model, version in (("a/b", "1"), ("", "1"), ("m", ""), ("m", "-x"), ("m", "a b"), ("m", "v" * 121)):
        with pytest.raises(Invalid) as caught:
            version_register(actor=ADA, model=model, version=version, connection=disk, uri=f"file://{folder}")
        assert caught.value.errors
    with pytest.raises(Invalid):
        version_register(
            actor=ADA, model="m", version="1", connection=disk, uri=f"file://{folder}", allow_patterns=[""]
        )


def test_it_answers_the_same_content_with_the_version_there_is(disk: SourceConnection, folder: Path) -> None:
    first = register(disk, f"file://{folder}")
    operation = Operation.objects.get()
    again, same = version_register(actor=ADA, model="llama", version="1", connection=disk, uri=f"file://{folder}/")
    assert (again.pk, same.pk) == (first.pk, operation.pk)
    Operation.objects.all().delete()  # as housekeeping does after months
    _, fresh = version_register(actor=ADA, model="llama", version="1", connection=disk, uri=f"file://{folder}")
    assert fresh.state == "Succeeded"


def test_it_refuses_other_content_under_a_taken_name(
    disk: SourceConnection, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = register(disk, f"file://{folder}")
    (folder / "more.bin").write_bytes(b"x")
    with pytest.raises(Clash) as caught:
        version_register(actor=ADA, model="llama", version="1", connection=disk, uri=f"file://{folder}")
    assert caught.value.code == "version:user:content-differs"
    # Too large to be compared at once: the operation says it.
    monkeypatch.setattr("caches.services.catalogue.resolve_small", lambda *_: None)
    row, operation = version_register(actor=ADA, model="llama", version="1", connection=disk, uri=f"file://{folder}")
    assert (finish(operation).error or {})["code"] == "version:user:content-differs"
    row.refresh_from_db()
    assert (row.state, row.artifact_id) == ("Available", first.artifact_id)


def test_it_joins_a_running_registration_and_refuses_another_source_meanwhile(
    disk: SourceConnection, folder: Path
) -> None:
    row, operation = version_register(actor=ADA, model="llama", version="1", connection=disk, uri=f"file://{folder}")
    twin, joined = version_register(actor=ADA, model="llama", version="1", connection=disk, uri=f"file://{folder}")
    assert (twin.pk, joined.pk) == (row.pk, operation.pk)
    with pytest.raises(Clash):
        version_register(
            actor=ADA, model="llama", version="1", connection=disk, uri=f"file://{folder}", allow_patterns=["*.json"]
        )


def test_it_registers_a_refused_version_anew(disk: SourceConnection, folder: Path) -> None:
    refused = register(disk, f"file://{folder}", allow_patterns=["*.gguf"])
    row = register(disk, f"file://{folder}", allow_patterns=["*.json"])
    assert (row.pk, row.state, row.code, row.message) == (refused.pk, "Available", "", "")


def test_it_cancels_and_retries(disk: SourceConnection, folder: Path) -> None:
    row, operation = version_register(actor=ADA, model="llama", version="1", connection=disk, uri=f"file://{folder}")
    operation_cancel(actor=ADA, operation_id=operation.pk)
    assert finish(operation).state == "Canceled"
    row.refresh_from_db()
    assert (row.state, row.code) == ("Refused", "version:user:canceled")
    assert finish(operation_retry(actor=ADA, operation_id=operation.pk)).state == "Succeeded"
    row.refresh_from_db()
    assert row.state == "Available"


def test_it_fails_the_operation_when_the_version_is_deleted_meanwhile(disk: SourceConnection, folder: Path) -> None:
    row, operation = version_register(actor=ADA, model="llama", version="1", connection=disk, uri=f"file://{folder}")
    version_delete(actor=ADA, version_id=row.pk)
    assert (finish(operation).error or {})["code"] == "version:user:not-found"


def test_it_waits_for_a_store_that_is_away(
    disk: SourceConnection, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row, operation = version_register(actor=ADA, model="llama", version="1", connection=disk, uri=f"file://{folder}")

    def away(connection: SourceConnection) -> Any:
        raise listing.TooSlow("source:source:unavailable", "away")

    with monkeypatch.context() as patch:
        patch.setattr(resolving, "connection_source", away)
        assert finish(operation).state == "Running"
        patch.setattr(resolving, "GIVE_UP_AFTER", resolving.GIVE_UP_AFTER * 0)
        assert finish(operation).state == "Failed"
    row.refresh_from_db()
    assert (row.state, row.code) == ("Refused", "source:source:unavailable")


def test_it_deletes_a_version_and_what_nothing_else_has(disk: SourceConnection, folder: Path) -> None:
    first, second = register(disk, f"file://{folder}", "1"), register(disk, f"file://{folder}", "2")
    assert first.artifact_id == second.artifact_id
    pin = factories.pin(of=first)
    with pytest.raises(Clash) as caught:
        version_delete(actor=ADA, version_id=first.pk)
    assert caught.value.code == "version:user:pinned"
    pin.delete()
    version_delete(actor=ADA, version_id=first.pk)
    assert Artifact.objects.count() == Model.objects.count() == 1
    entry = factories.entry(of=second.artifact)
    version_delete(actor=ADA, version_id=second.pk)
    assert Artifact.objects.filter(pk=entry.artifact_id).exists() and not Model.objects.exists()
    gone = AuditEvent.objects.filter(action="version.delete").latest("at")
    assert gone.object_name == "llama 2" and (gone.before or {})["digest"] and gone.after is None
    with pytest.raises(HearthError):
        version_delete(actor=ADA, version_id=second.pk)
