"""Every reason why a source connection cannot be, field by field, and what administrators change and delete."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import LazySettings
from django.utils import timezone

from caches.models import PoolLoop, SourceConnection
from caches.services import connections
from caches.services.connection_rules import connection_problems
from caches.services.connections import (
    connection_check,
    connection_create,
    connection_delete,
    connection_update,
    connections_due,
)
from controlplane.audit.models import AuditEvent, Via
from controlplane.audit.services import Actor
from controlplane.errors import Clash, Invalid, Stale, Transient
from tests import factories
from tests.sources.test_s3_misbehaving import certificates

pytestmark = pytest.mark.django_db
ADA = Actor("ada", Via.API)


@pytest.fixture(autouse=True)
def root(tmp_path: Path, settings: LazySettings) -> Path:
    settings.SOURCE_ROOTS = [str(tmp_path / "in")]
    settings.SECRETS_DIR = tmp_path / "secrets"
    (tmp_path / "in" / "models").mkdir(parents=True)
    return tmp_path / "in"


def found(**fields: Any) -> dict[str, str]:
    row = SourceConnection(**{"name": "lab", "type": "S3", "allowed": ["models"], **fields})
    return {problem.field: problem.code.split(":")[-1] for problem in connection_problems(row)}


@pytest.mark.parametrize(
    ("fields", "problems"),
    [
        ({}, {}),
        ({"name": ""}, {"name": "name"}),
        ({"name": "a" * 63}, {}),
        ({"name": "a" * 64}, {"name": "name"}),
        ({"name": "lab\n"}, {"name": "name"}),
        ({"name": "lab-"}, {"name": "name"}),
        ({"name": "größe"}, {"name": "name"}),
        ({"type": ""}, {"type": "type"}),
        ({"addressing": ""}, {"addressing": "addressing"}),
        ({"region": "x" * 64}, {}),
        ({"region": "x" * 65}, {"region": "region"}),
        ({"region": "eu-1\r\nX: y"}, {"region": "region"}),
        ({"secret_name": "a.b-c1"}, {}),
        ({"secret_name": "a/b"}, {"secret_name": "secret-name"}),
        ({"secret_name": "a" * 101}, {"secret_name": "secret-name"}),
        ({"namespaces": ["team-a", "0"]}, {}),
        ({"namespaces": ["n" * 63] * 1000}, {}),
        ({"namespaces": ["n"] * 1001}, {"namespaces": "namespaces"}),
        ({"namespaces": ["team_a"]}, {"namespaces": "namespaces"}),
        ({"namespaces": ["*"]}, {"namespaces": "namespaces"}),
        ({"namespaces": [""]}, {"namespaces": "namespaces"}),
        ({"namespaces": [7]}, {"namespaces": "namespaces"}),
        ({"max_downloads": 1}, {}),
        ({"max_downloads": 100_000}, {}),
        ({"max_downloads": -1}, {"max_downloads": "max-downloads"}),
        ({"max_downloads": 100_001}, {"max_downloads": "max-downloads"}),
        ({"bytes_per_second": 1024}, {}),
        ({"bytes_per_second": 1023}, {"bytes_per_second": "rate"}),
        ({"bytes_per_second": 10**15}, {}),
        ({"bytes_per_second": 10**15 + 1}, {"bytes_per_second": "rate"}),
        ({"bytes_per_second": 2**63}, {"bytes_per_second": "rate"}),
        ({"ca_bundle": "größe"}, {"ca_bundle": "ca-bundle"}),
        ({"ca_bundle": "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"}, {"ca_bundle": "ca-bundle"}),
        ({"allowed": "models"}, {"allowed": "bad-uri"}),
        ({"allowed": [1]}, {"allowed": "allowed"}),
        ({"allowed": [""]}, {"allowed": "bad-uri"}),
        ({"allowed": ["mo"]}, {"allowed": "bad-uri"}),
        ({"allowed": ["models/llama"]}, {"allowed": "bad-uri"}),
        ({"endpoint": "http://100.100.100.200"}, {"endpoint": "address-refused"}),
        ({"endpoint": "https://127.0.0.1:9000/path"}, {"endpoint": "address-refused"}),
        ({"endpoint": "https://no-such-host.invalid"}, {}),  # may resolve tomorrow
        ({"endpoint": "https://no-such-host.invalid/" + "x" * 500}, {"endpoint": "address-refused"}),
        ({"type": "Filesystem", "allowed": ["{root}/models"]}, {}),
        ({"type": "Filesystem", "allowed": ["{root}"]}, {}),
        ({"type": "Filesystem", "allowed": ["{root}/../out"]}, {"allowed": "bad-uri"}),
        ({"type": "Filesystem", "allowed": ["{root}/a\0b"]}, {"allowed": "bad-uri"}),
        ({"type": "Filesystem", "allowed": ["/"]}, {"allowed": "not-allowed"}),
        ({"type": "Filesystem", "allowed": ["{root}"], "endpoint": "http://x"}, {"endpoint": "filesystem"}),
        ({"type": "Filesystem", "allowed": ["{root}"], "secret_name": "keys"}, {"secret_name": "filesystem"}),
    ],
)
def test_each_field_is_refused_by_its_own_name(fields: dict[str, Any], problems: dict[str, str], root: Path) -> None:
    allowed = fields.get("allowed")
    if isinstance(allowed, list):
        fields = fields | {"allowed": [p.format(root=root) if isinstance(p, str) else p for p in allowed]}
    assert found(**fields) == problems


def test_an_endpoint_that_no_row_can_hold_is_refused_before_it_is_stored() -> None:
    row = SourceConnection(name="lab", type="S3", allowed=["models"], endpoint="https://" + "a." * 300 + "invalid")
    assert "endpoint-length" in {problem.code.split(":")[-1] for problem in connection_problems(row)}


def test_a_real_authority_is_taken_and_the_trail_tells_only_its_length() -> None:
    authority = certificates()[0]
    made = connection_create(actor=ADA, name="lab", type="S3", allowed=["models"], ca_bundle=authority)
    after = AuditEvent.objects.get().after or {}
    assert after["ca_bundle"] == f"{len(authority)} characters" and authority not in str(after)
    connection_update(actor=ADA, connection_id=made.pk, changes={"ca_bundle": ""})
    assert (AuditEvent.objects.get(action="connection.update").after or {})["ca_bundle"] == ""


def test_everything_wrong_is_said_at_once() -> None:
    with pytest.raises(Invalid) as refused:
        connection_create(actor=ADA, name="X", type="S3", allowed=[], region="?", max_downloads=0)
    assert {e.field for e in refused.value.errors} == {"name", "allowed", "region", "max_downloads"}
    assert refused.value.code == "connection:user:invalid"


@pytest.mark.parametrize("field", ["name", "type", "state", "observed_at", "id"])
def test_what_is_fixed_stays(field: str) -> None:
    made = connection_create(actor=ADA, name="lab", type="S3", allowed=["models"])
    with pytest.raises(Invalid) as refused:
        connection_update(actor=ADA, connection_id=made.pk, changes={field: "x", "region": "eu-1"})
    assert [error.field for error in refused.value.errors] == [field]
    assert SourceConnection.objects.get().region == ""


def test_a_refused_change_asks_nobody_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    made = connection_create(actor=ADA, name="lab", type="S3", allowed=["models"])
    pool = factories.pool()
    factories.pin(of=factories.version(connection=made), pools=(pool,))
    sent: list[str] = []
    monkeypatch.setattr(connections, "publish_on_commit", lambda task, *ids: sent.append(task))
    before = SourceConnection.objects.values().get()
    with pytest.raises(Invalid):
        connection_update(actor=ADA, connection_id=made.pk, changes={"region": "eu-1", "allowed": []})
    assert SourceConnection.objects.values().get() == before
    assert sent == [] and not PoolLoop.objects.exists()
    connection_update(actor=ADA, connection_id=made.pk, changes={"endpoint": "/"})  # the same, written otherwise
    assert sent == []


def test_only_pools_with_a_live_pin_hear_of_a_change() -> None:
    made = connection_create(actor=ADA, name="lab", type="S3", allowed=["models"])
    live, gone, other = factories.pool(), factories.pool(), factories.pool()
    factories.pin(of=factories.version(connection=made), pools=(live,))
    factories.pin(of=factories.version(connection=made), pools=(gone,), removed_at=timezone.now())
    factories.pin(pools=(other,))
    connection_update(actor=ADA, connection_id=made.pk, changes={"max_downloads": 2})
    assert list(PoolLoop.objects.values_list("pool", flat=True)) == [live.pk]


def test_a_deletion_of_what_somebody_edited_meanwhile_is_refused() -> None:
    made = connection_create(actor=ADA, name="lab", type="S3", allowed=["models"])
    read_at = made.updated_at
    connection_update(actor=ADA, connection_id=made.pk, changes={"region": "eu-1"})
    with pytest.raises(Stale):
        connection_delete(actor=ADA, connection_id=made.pk, if_updated_at=read_at)
    connection_delete(actor=ADA, connection_id=made.pk, if_updated_at=SourceConnection.objects.get().updated_at)
    assert not SourceConnection.objects.exists()


def test_a_name_taken_in_the_same_moment_is_a_clash(monkeypatch: pytest.MonkeyPatch) -> None:
    real = connection_problems

    def meanwhile(row: SourceConnection) -> Any:
        monkeypatch.setattr(connections, "connection_problems", real)
        connection_create(actor=ADA, name="lab", type="S3", allowed=["models"])
        return real(row)

    monkeypatch.setattr(connections, "connection_problems", meanwhile)
    with pytest.raises(Clash) as refused:
        connection_create(actor=ADA, name="lab", type="S3", allowed=["models"])
    assert refused.value.code == "connection:user:exists"
    assert SourceConnection.objects.count() == AuditEvent.objects.count() == 1


def test_those_are_due_that_nobody_asked_lately() -> None:
    now = timezone.now()
    ages = {"never": None, "old": timedelta(minutes=10), "fresh": timedelta(minutes=9)}
    rows = {name: factories.connection(observed_at=None if age is None else now - age) for name, age in ages.items()}
    assert connections_due(now=now) == sorted(rows[name].pk for name in ("never", "old"))


def test_a_check_says_which_of_several_places_is_wrong(root: Path) -> None:
    made = connection_create(actor=ADA, name="disk", type="Filesystem", allowed=[str(root), str(root / "models")])
    assert connection_check(connection_id=made.pk).state == "Reachable"
    (root / "models").rmdir()
    checked = connection_check(connection_id=made.pk)
    assert checked.state == "Unreachable" and "models" in checked.message and len(checked.message) <= 1000
    assert connection_check(connection_id=made.pk).updated_at == made.updated_at  # a check is no edit


def test_a_store_that_does_not_answer_is_unreachable_and_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made = connection_create(actor=ADA, name="lab", type="S3", allowed=["models"])

    def away(*args: Any, **given: Any) -> Any:
        raise Transient("source:source:unavailable", "x" * 2000, reason="SourceUnavailable", next_step="Wait.")

    monkeypatch.setattr(connections, "open_source", away)
    checked = connection_check(connection_id=made.pk)
    assert (checked.state, len(checked.message)) == ("Unreachable", 1000)
    assert checked.observed_at is not None
    assert connections_due(now=checked.observed_at + timedelta(minutes=11)) == [made.pk]
