"""Connections, models and versions over REST, resolved from a real folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.conf import LazySettings

from caches.models import Model, ModelVersion, SourceConnection
from controlplane.audit.models import AuditEvent
from controlplane.operations.steps import operation_step
from tests import factories
from tests.api.conftest import Api


@pytest.fixture
def folder(tmp_path: Path, settings: LazySettings) -> Path:
    settings.SOURCE_ROOTS = [str(tmp_path)]
    place = tmp_path / "llama"
    place.mkdir()
    (place / "config.json").write_text("{}")
    (place / "model.bin").write_bytes(b"w" * 5000)
    return place


@pytest.fixture
def disk(admin_api: Api, folder: Path) -> dict[str, Any]:
    body = {"name": "disk", "type": "Filesystem", "allowed": [str(folder.parent)]}
    made = admin_api.post("source-connections", body)
    assert made.status_code == 201, made.content
    shown: dict[str, Any] = made.json()
    return shown


def version_of(folder: Path, **source: Any) -> dict[str, Any]:
    return {"version": "v1", "source": {"connection": "disk", "uri": folder.as_uri(), **source}}


def finish(operation: dict[str, Any]) -> None:
    for _ in range(10):
        if operation_step(operation_id=operation["id"]):
            return
    raise AssertionError("the operation did not end")


def test_it_makes_changes_and_removes_a_connection(admin_api: Api, disk: dict[str, Any], folder: Path) -> None:
    assert (disk["state"], disk["observed_at"], disk["namespaces"]) == ("Unchecked", None, [])
    etag = admin_api.get("source-connections/disk")["ETag"]

    limits = {"max_downloads": 3, "bytes_per_second": 4096, "namespaces": ["team-a"]}
    changed = admin_api.patch("source-connections/disk", limits, headers={"If-Match": etag})
    assert (changed.status_code, {name: changed.json()[name] for name in limits}) == (200, limits)
    assert (
        admin_api.patch("source-connections/disk", {"max_downloads": 4}, headers={"If-Match": etag}).status_code == 412
    )
    assert admin_api.patch("source-connections/disk", {"name": "other"}).status_code == 400
    outside = admin_api.patch("source-connections/disk", {"allowed": ["/etc"]})
    assert outside.status_code == 400 and outside.json()["errors"]
    assert admin_api.delete("source-connections/disk").status_code == 204
    assert not SourceConnection.objects.exists()
    trail = AuditEvent.objects.filter(actor="ada/ci").order_by("id").values_list("action", flat=True)
    assert list(trail) == ["connection.create", "connection.update", "connection.delete"]


def test_it_lets_only_administrators_say_what_may_be_read(operator_api: Api, folder: Path) -> None:
    body = {"name": "mine", "type": "Filesystem", "allowed": [str(folder)]}

    assert operator_api.post("source-connections", body).status_code == 403


def test_it_registers_a_version_and_shows_what_it_is(
    operator_api: Api, viewer_api: Api, disk: dict[str, Any], folder: Path
) -> None:
    started = operator_api.post("models/llama/versions", version_of(folder))
    assert (started.status_code, started.json()["kind"]) == (202, "ModelRegister")
    assert viewer_api.get("models/llama/versions/v1").json()["state"] == "Resolving"
    assert viewer_api.get("models/llama/versions/v1/manifest").json()["code"] == "version:user:no-manifest"
    finish(started.json())

    shown = viewer_api.get("models/llama/versions/v1").json()
    assert (shown["state"], shown["files_count"], shown["size_bytes"]) == ("Available", 2, 5002)
    assert shown["anchored"] is False and shown["digest"].startswith("sha256:")
    assert shown["source"]["connection"] == "disk" and shown["source"]["uri"] == folder.as_uri()
    assert shown["refusal"] is None and shown["image"] is None
    manifest = viewer_api.get("models/llama/versions/v1/manifest").json()
    assert [file["path"] for file in manifest["files"]] == ["config.json", "model.bin"]
    assert manifest["files"][1]["checksum"]["algorithm"] == "Stat"
    assert manifest["files"][1]["checksum"]["anchor"] is False
    assert viewer_api.get("models/llama").json()["versions_count"] == 1
    assert viewer_api.get("models/llama/versions?state=Available").json()["items"][0]["version"] == "v1"
    assert viewer_api.get("models/other/versions").status_code == 404


def test_it_registers_the_same_content_once(operator_api: Api, disk: dict[str, Any], folder: Path) -> None:
    finish(operator_api.post("models/llama/versions?wait=0", version_of(folder)).json())

    again = operator_api.post("models/llama/versions?wait=1", version_of(folder))
    assert (again.status_code, again.json()["state"]) == (200, "Succeeded")
    (folder / "model.bin").write_bytes(b"other")
    other = operator_api.post("models/llama/versions", version_of(folder))
    assert other.status_code == 409
    assert ModelVersion.objects.count() == 1


def test_it_shows_drift_after_a_recheck(operator_api: Api, disk: dict[str, Any], folder: Path) -> None:
    finish(operator_api.post("models/llama/versions", version_of(folder)).json())
    (folder / "model.bin").write_bytes(b"other")

    finish(operator_api.post("models/llama/versions/v1/recheck").json())

    drift = operator_api.get("models/llama/versions/v1").json()["drift"]
    assert (drift["state"], drift["changed"]) == ("Drifted", [{"path": "model.bin", "change": "Changed"}])
    assert drift["checked_at"]


def test_it_refuses_a_registration_with_the_reason(operator_api: Api, disk: dict[str, Any], folder: Path) -> None:
    for body, field in (
        (version_of(folder) | {"version": "a/b"}, "version"),
        (version_of(folder, connection="none"), "source.connection"),
        (version_of(folder, allow_pattern=["*"]), "source.allow_pattern"),
    ):
        answer = operator_api.post("models/llama/versions", body)
        assert (answer.status_code, answer.json()["errors"][0]["field"]) == (400, field)
    outside = operator_api.post("models/llama/versions", version_of(Path("/etc")))
    assert outside.status_code in (400, 403, 422)
    assert not Model.objects.exists()


def test_it_registers_a_model_by_its_first_version_and_deletes_it_whole(
    operator_api: Api, disk: dict[str, Any], folder: Path
) -> None:
    finish(operator_api.post("models", {"name": "llama", **version_of(folder)}).json())
    factories.pin(of=ModelVersion.objects.get())

    assert operator_api.delete("models/llama").json()["code"] == "version:user:pinned"
    assert operator_api.delete("models/llama/versions/v1").status_code == 409
    ModelVersion.objects.get().pins.all().delete()
    assert operator_api.delete("models/llama").status_code == 204
    assert not Model.objects.exists()


def test_it_explains_node_by_node_why_a_version_is_not_warm(viewer_api: Api) -> None:
    version = factories.version(model="llama", version="v1")
    pool = factories.pool()
    warm, cold = factories.node(of=pool), factories.node(of=pool, ready=False)
    factories.entry(on=warm, of=version.artifact)
    assert viewer_api.get("models/llama/versions/v1/why-not-warm").json()["items"] == []
    factories.pin(of=version, pools=(pool,))

    items = {one["node"]: one for one in viewer_api.get("models/llama/versions/v1/why-not-warm").json()["items"]}

    assert items[warm.name]["warm"] is True
    assert items[cold.name]["warm"] is False
    assert all(check["check"] and check["detail"] for one in items.values() for check in one["checks"])
