"""Connections: what may be one, editing without losing anybody's edit, and asking the store."""

from __future__ import annotations

import json
import socket
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import LazySettings

from caches.models import PoolLoop, SourceConnection
from caches.services import connections
from caches.services.connections import (
    connection_check,
    connection_create,
    connection_delete,
    connection_source,
    connection_spec,
    connection_update,
)
from caches.sources import open_source
from caches.sources.secrets import write_secret
from controlplane.audit.models import AuditEvent, Via
from controlplane.audit.services import Actor
from controlplane.clusters.documents import SourceType
from controlplane.embedded.seaweed import S3
from controlplane.errors import Clash, Invalid, Missing, Permanent, Stale
from tests import factories
from tests.sources.conftest import make_bucket

ADA = Actor("ada", Via.API, "request-1")
pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def places(tmp_path: Path, settings: LazySettings) -> None:
    settings.SOURCE_ROOTS = [str(tmp_path / "sources")]
    settings.SECRETS_DIR = tmp_path / "secrets"
    (tmp_path / "sources" / "inner").mkdir(parents=True)


def s3(**fields: Any) -> SourceConnection:
    return connection_create(actor=ADA, **{"name": "lab", "type": "S3", "allowed": ["models"], **fields})


def test_it_makes_a_connection_and_the_trail_of_it() -> None:
    made = s3(endpoint="http://127.0.0.1:9000/", secret_name="lab-keys", region="eu-1")
    assert (made.state, made.endpoint) == ("Unchecked", "http://127.0.0.1:9000")
    spec = connection_spec(made)
    assert (spec.name, spec.type, spec.allowed, spec.secret_name) == ("lab", SourceType.S3, ("models",), "lab-keys")
    event = AuditEvent.objects.get()
    assert (event.action, event.actor, event.request_id, event.before) == (
        "connection.create",
        "ada",
        "request-1",
        None,
    )
    assert (event.after or {})["endpoint"] == made.endpoint
    with pytest.raises(Clash) as caught:
        s3()
    assert caught.value.code == "connection:user:exists"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"name": "Lab"}, "name"),
        ({"name": "-"}, "name"),
        ({"type": "FTP"}, "type"),
        ({"addressing": "sideways"}, "addressing"),
        ({"region": "eu 1"}, "region"),
        ({"secret_name": "../../etc/passwd"}, "secret_name"),
        ({"ca_bundle": "not pem"}, "ca_bundle"),
        ({"max_downloads": 0}, "max_downloads"),
        ({"bytes_per_second": 10}, "bytes_per_second"),
        ({"allowed": []}, "allowed"),
        ({"allowed": ["models", "Not-A-Bucket"]}, "allowed"),
        ({"endpoint": "http://169.254.169.254"}, "endpoint"),
        ({"endpoint": "gopher://127.0.0.1"}, "endpoint"),
        ({"type": "Filesystem", "allowed": ["/etc"]}, "allowed"),
        ({"type": "Filesystem", "allowed": ["relative"]}, "allowed"),
    ],
)
def test_it_names_every_field_that_cannot_be(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid) as caught:
        s3(**fields)
    assert field in {error.field for error in caught.value.errors} and caught.value.next_step
    assert not SourceConnection.objects.exists() and not AuditEvent.objects.exists()


def test_it_refuses_roots_outside_the_configured_ones_also_later(tmp_path: Path, settings: LazySettings) -> None:
    root = tmp_path / "sources" / "inner"
    (root / "f").write_text("x")
    (tmp_path / "sources" / "out").symlink_to(tmp_path)
    for wrong in (tmp_path, tmp_path / "sources" / "out", tmp_path / "sources-too"):
        with pytest.raises(Invalid):
            connection_create(actor=ADA, name="disk", type="Filesystem", allowed=[str(wrong)])
    made = connection_create(actor=ADA, name="disk", type="Filesystem", allowed=[str(root)])
    with connection_source(made) as source:
        source.check(root.as_uri())
    settings.SOURCE_ROOTS = [str(tmp_path / "elsewhere")]
    with pytest.raises(Invalid), connection_source(made):
        pass


def test_private_addresses_are_as_configured(settings: LazySettings) -> None:
    settings.SOURCE_PRIVATE_ADDRESSES = False
    with pytest.raises(Invalid) as caught:
        s3(endpoint="http://127.0.0.1:9000")
    assert caught.value.code == "source:user:address-refused"


def test_it_changes_what_may_be_changed_and_loses_no_edit() -> None:
    made = s3()
    pool = factories.pool()
    factories.pin(of=factories.version(connection=made), pools=(pool,))
    SourceConnection.objects.filter(pk=made.pk).update(state="Reachable")
    changed = connection_update(
        actor=ADA, connection_id=made.pk, changes={"allowed": ["models", "more-models"]}, if_updated_at=made.updated_at
    )
    assert (changed.allowed, changed.state) == (["models", "more-models"], "Unchecked")
    assert PoolLoop.objects.get(pool=pool).wanted_round > 0  # its nodes must hear of it
    event = AuditEvent.objects.get(action="connection.update")
    assert ((event.before or {})["allowed"], (event.after or {})["allowed"]) == (["models"], ["models", "more-models"])
    with pytest.raises(Stale):
        connection_update(
            actor=ADA, connection_id=made.pk, changes={"region": "x"}, if_updated_at=made.updated_at - timedelta(1)
        )
    wrong: list[dict[str, Any]] = [
        {"name": "other"},
        {"type": "Filesystem"},
        {"allowed": []},
        {"endpoint": "http://[fe80::1]"},
    ]
    for changes in wrong:
        with pytest.raises(Invalid):
            connection_update(actor=ADA, connection_id=made.pk, changes=changes)
    same = connection_update(actor=ADA, connection_id=made.pk, changes={"allowed": changed.allowed})
    assert same.updated_at == changed.updated_at
    assert AuditEvent.objects.filter(action="connection.update").count() == 1


def test_it_deletes_only_what_no_version_uses() -> None:
    made = s3()
    version = factories.version(connection=made)
    with pytest.raises(Clash) as caught:
        connection_delete(actor=ADA, connection_id=made.pk)
    assert caught.value.code == "connection:user:in-use"
    version.delete()
    connection_delete(actor=ADA, connection_id=made.pk)
    event = AuditEvent.objects.get(action="connection.delete")
    assert (event.object_id, event.object_name, event.after) == (str(made.pk), "lab", None)
    for verb in (connection_delete, lambda **given: connection_update(changes={}, **given)):
        with pytest.raises(Missing):
            verb(actor=ADA, connection_id=made.pk)
    with pytest.raises(Missing):
        connection_check(connection_id=made.pk)


def test_it_says_what_the_store_says(s3_server: S3) -> None:
    keys = {"access_key_id": s3_server.access_key, "secret_access_key": s3_server.secret_key}
    bucket = make_bucket(s3_server.endpoint, keys)
    made = s3(endpoint=s3_server.endpoint, secret_name="lab-keys", allowed=[bucket.name])
    assert connection_check(connection_id=made.pk).state == "AccessDenied"  # the secret is missing
    write_secret("lab-keys", keys | {"secret_access_key": "hunter2"})
    checked = connection_check(connection_id=made.pk)
    assert checked.state == "AccessDenied" and "hunter2" not in checked.message
    write_secret("lab-keys", keys)
    checked = connection_check(connection_id=made.pk)
    assert (checked.state, checked.message) == ("Reachable", "") and checked.observed_at is not None
    SourceConnection.objects.filter(pk=made.pk).update(allowed=[bucket.name, "no-such-bucket"])
    checked = connection_check(connection_id=made.pk)
    assert checked.state == "Unreachable" and "no-such-bucket" in checked.message
    assert s3_server.secret_key not in json.dumps(list(AuditEvent.objects.values("before", "after")))


def test_it_names_the_address_of_a_store_that_does_not_answer() -> None:
    with closing(socket.socket()) as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        endpoint = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        made = s3(endpoint=endpoint, allowed=["models"])
        checked = connection_check(connection_id=made.pk)
    assert checked.state == "Unreachable"
    assert checked.message.endswith(f"see whether its address, {endpoint}, is right.")


def test_it_checks_folders(tmp_path: Path) -> None:
    made = connection_create(actor=ADA, name="disk", type="Filesystem", allowed=[str(tmp_path / "sources" / "inner")])
    assert connection_check(connection_id=made.pk).state == "Reachable"
    (tmp_path / "sources" / "inner").rmdir()
    assert connection_check(connection_id=made.pk).state == "Unreachable"


def test_a_check_never_overwrites_an_edit_made_meanwhile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    root = str(tmp_path / "sources")
    made = connection_create(actor=ADA, name="disk", type="Filesystem", allowed=[root])

    def edited_meanwhile(*args: Any, **kwargs: Any) -> Any:
        connection_update(actor=ADA, connection_id=made.pk, changes={"allowed": [f"{root}/inner"]})
        return open_source(*args, **kwargs)

    monkeypatch.setattr(connections, "open_source", edited_meanwhile)
    checked = connection_check(connection_id=made.pk)
    assert (checked.allowed, checked.state) == ([f"{root}/inner"], "Unchecked")


def test_a_secret_that_others_may_read_is_not_used(tmp_path: Path) -> None:
    write_secret("open", {"access_key_id": "a", "secret_access_key": "b"}).chmod(0o644)
    made = s3(secret_name="open")
    with pytest.raises(Permanent) as caught, connection_source(made):
        pass
    assert "0600" in caught.value.detail
