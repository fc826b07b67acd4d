"""The demo on real servers, with small weights."""

from __future__ import annotations

import dataclasses
import json
import stat
from io import StringIO
from pathlib import Path

import pytest
from django.conf import LazySettings
from django.core.management import CommandError, call_command

from caches.domain.manifests import manifest_decode
from caches.models import ModelVersion, Pin, SourceConnection
from caches.services.catalogue import version_delete
from caches.services.demo import content as demo_content
from caches.services.demo import setting_up as demo
from caches.services.demo.places import DEMO
from caches.services.pins import pin_remove
from caches.sources.headers import safetensors_header_bytes, safetensors_parameters
from caches.sources.secrets import read_secret
from controlplane.accounts.models import User
from controlplane.audit.models import AuditEvent
from controlplane.clusters.endpoints import ObservedEndpoint
from controlplane.clusters.gateway import Kind
from controlplane.clusters.local.fleet import LocalFleet
from controlplane.clusters.local.gateway import LocalGateway
from controlplane.clusters.local.serving import endpoint_end
from controlplane.clusters.models import Node, NodePool
from controlplane.embedded.seaweed import S3
from controlplane.operations.models import Operation

pytestmark = pytest.mark.django_db


@pytest.fixture
def state(tmp_path: Path, settings: LazySettings, s3_server: S3, monkeypatch: pytest.MonkeyPatch) -> Path:
    settings.STATE_DIR = tmp_path
    settings.SECRETS_DIR = tmp_path / "secrets"
    settings.SOURCE_ROOTS = [str(tmp_path / "sources")]
    small = [dataclasses.replace(m, shard_mib=(1,) * len(m.shard_mib)) for m in demo_content.DEMO_MODELS]
    monkeypatch.setattr(demo, "DEMO_MODELS", small)
    file = tmp_path / "s3.json"
    file.write_text(json.dumps(dataclasses.asdict(s3_server)))
    monkeypatch.setenv("HEARTH_DEMO_S3_FILE", str(file))
    monkeypatch.setenv("HEARTH_DEMO_NODES", "4")
    return tmp_path


def bootstrap() -> str:
    out = StringIO()
    call_command("bootstrap_demo", stdout=out)
    return out.getvalue()


def test_it_makes_everything_once(state: Path, s3_server: S3) -> None:
    said = bootstrap()
    assert s3_server.secret_key not in said
    password = state / "admin-password"
    assert stat.S_IMODE(password.stat().st_mode) == 0o600
    assert User.objects.get().check_password(password.read_text().strip())
    assert NodePool.objects.count() == 2 and Node.objects.filter(pool__isnull=False).count() == 4
    versions = ModelVersion.objects.select_related("artifact", "model")
    assert {v.full_name: v.state for v in versions} == {
        "ember-150m v1": "Available",
        "kindling-60m v1": "Available",
        "spark-20m v1": "Available",
        "spark-20m v2": "Available",
        "flicker-3m v1": "Available",
    }
    for version in versions.exclude(model__name="flicker-3m"):
        assert version.artifact is not None and version.metadata["context_length"] == 8192
        shards = version.artifact.files_count - 5
        assert version.metadata["parameters"] == shards * (1024 * 1024 - 4096) // 2
        assert version.artifact.anchored is (version.connection.name == "demo-s3")
        assert len({file.checksum for file in manifest_decode(bytes(version.artifact.manifest)).files}) == 5 + shards
    assert Pin.objects.count() == 4
    targets = {
        operation.subject_name: operation.targets.count() for operation in Operation.objects.filter(kind="PinWarm")
    }
    assert targets == {"ember-150m v1": 2, "kindling-60m v1": 4, "spark-20m v1": 2, "flicker-3m v1": 2}
    (served,) = LocalGateway(state / "fleet").list(Kind.ENDPOINT).items
    assert isinstance(served, ObservedEndpoint) and served.of.name == "chat"
    assert served.annotations["hearth.dev/digest"] == versions.get(model__name="flicker-3m").artifact.digest  # type: ignore[union-attr]
    assert served.annotations["hearth.dev/record-keys"] == "true", "a replay has something to show from the beginning"
    trail = AuditEvent.objects.get(action="fleet.serve")
    assert (trail.after or {})["record_keys"] is True
    assert set(SourceConnection.objects.values_list("state", flat=True)) == {"Reachable"}
    before = set(Operation.objects.values_list("pk", flat=True))
    said = bootstrap()
    assert not any(word in said for word in ("Registered", "Pinned", "Serves", "admin"))
    assert set(Operation.objects.values_list("pk", flat=True)) == before


def test_it_leaves_deleted_things_deleted_and_follows_a_moved_store(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bootstrap()
    pin = Pin.objects.get(version__model__name="spark-20m")
    pin_remove(actor=DEMO, pin_id=pin.pk)
    version_delete(actor=DEMO, version_id=ModelVersion.objects.get(version="v2").pk)
    SourceConnection.objects.filter(name="demo-s3").update(endpoint="http://127.0.0.1:9")
    endpoint_end(LocalFleet(state / "fleet").store, "chat")
    bootstrap()
    assert LocalGateway(state / "fleet").list(Kind.ENDPOINT).items == ()
    assert not Pin.objects.filter(version__model__name="spark-20m", removed_at__isnull=True).exists()
    assert not ModelVersion.objects.filter(version="v2").exists()
    moved = SourceConnection.objects.get(name="demo-s3")
    assert (moved.endpoint, moved.state) == (json.loads((state / "s3.json").read_text())["endpoint"], "Reachable")


def test_it_goes_on_where_a_kill_stopped_it(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(demo, "_finish", lambda operation: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            bootstrap()
    assert ModelVersion.objects.get().state == "Resolving"
    password = (state / "admin-password").read_text()
    bootstrap()
    assert ModelVersion.objects.filter(state="Available").count() == 5 and Pin.objects.count() == 4
    assert (state / "admin-password").read_text() == password


def test_it_does_without_s3_and_says_what_is_wrong_with_its_file(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEARTH_DEMO_S3_FILE", str(state / "missing"))
    with pytest.raises(CommandError, match="missing"):
        bootstrap()
    monkeypatch.delenv("HEARTH_DEMO_S3_FILE")
    monkeypatch.delenv("HEARTH_S3_ENDPOINT", raising=False)
    bootstrap()
    assert set(ModelVersion.objects.values_list("model__name", flat=True)) == {"spark-20m", "flicker-3m"}


def test_its_weights_are_valid_and_the_same_everywhere() -> None:
    model = dataclasses.replace(demo_content.DEMO_MODELS[0], shard_mib=(9, 1))
    first, second = (demo_content.shard_bytes(model, f"model-{n:05}-of-00002.safetensors") for n in (1, 2))
    assert (len(first), len(second)) == (9 * 1024 * 1024, 1024 * 1024)
    assert first == demo_content.shard_bytes(model, "model-00001-of-00002.safetensors")
    assert first[4096 : 1024 * 1024] != second[4096:]
    need = safetensors_header_bytes(first[:8])
    assert need == 4096 and safetensors_parameters(first[:need]) == (len(first) - need) // 2
    listed = {path: (size, content) for path, size, content in demo_content.demo_files(model)}
    assert all(content is None or len(content) == size for size, content in listed.values())
    assert set(json.loads(listed["model.safetensors.index.json"][1] or b"")["weight_map"].values()) <= set(listed)


def test_secrets_come_from_standard_input_alone(
    tmp_path: Path, settings: LazySettings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings.SECRETS_DIR = tmp_path / "secrets"
    monkeypatch.setattr("sys.stdin", StringIO("# keys\naccess_key_id = AK\nsecret_access_key=s=hunter\n\n"))
    call_command("secret", "set", "lab")
    call_command("secret", "list")
    assert "hunter" not in capsys.readouterr().out
    path = tmp_path / "secrets" / "lab.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert read_secret("lab") == {"access_key_id": "AK", "secret_access_key": "s=hunter"}
    for wrong in ("", "no equals sign: hunter2", "=x", "a-b=x"):
        monkeypatch.setattr("sys.stdin", StringIO(wrong))
        with pytest.raises(CommandError) as caught:
            call_command("secret", "set", "lab")
        assert "hunter2" not in str(caught.value)
    for name in ("../lab", "Lab", ""):
        monkeypatch.setattr("sys.stdin", StringIO("a=b"))
        with pytest.raises(CommandError):
            call_command("secret", "set", name)
    assert read_secret("lab")["access_key_id"] == "AK"
    call_command("secret", "delete", "lab")
    with pytest.raises(CommandError):
        call_command("secret", "delete", "lab")
