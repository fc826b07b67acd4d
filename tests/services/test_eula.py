"""Terms: nothing is registered before somebody accepted the very text, and who did is on record."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.conf import LazySettings

from caches.models import ModelVersion, SourceConnection
from caches.models.catalogue import EulaAcceptance
from caches.services.catalogue import version_register
from caches.services.connections import connection_create
from caches.sources.secrets import write_secret
from controlplane.audit.models import AuditEvent, Via
from controlplane.audit.services import Actor
from controlplane.errors import Permanent
from controlplane.operations.models import Operation
from controlplane.operations.steps import operation_step
from tests.sources.conftest import moto_endpoint
from tests.standins.jumpstart import KEYS, REGION, TERMS, JumpStart, jumpstart

__all__ = ["moto_endpoint"]  # a fixture
ADA, BOB = Actor("ada", Via.API, "request-1"), Actor("bob", Via.BROWSER, "request-2")
pytestmark = pytest.mark.django_db


@pytest.fixture
def standing(moto_endpoint: str, tmp_path: Path, settings: LazySettings) -> Iterator[JumpStart]:
    settings.SECRETS_DIR = tmp_path / "secrets"
    write_secret("aws", KEYS)
    with jumpstart(moto_endpoint) as made:
        made.gate("acme", "1.2.0", "acme/pack/", {"config.json": b"{}"})
        yield made


@pytest.fixture
def connection(standing: JumpStart) -> SourceConnection:
    return connection_create(
        actor=ADA, name="js", type="JumpStart", endpoint=standing.endpoint, region=REGION, secret_name="aws",
        allowed=["*"], manifest=standing.manifest_uri, hub_endpoint=standing.hub.url,
    )  # fmt: skip


def register(
    connection: SourceConnection, version: str, *, accept: bool, actor: Actor = ADA, uri: str = "jumpstart://acme"
) -> tuple[ModelVersion, Operation]:
    return version_register(
        actor=actor, model="acme", version=version, connection=connection, uri=uri, accept_eula=accept
    )


def refusal(connection: SourceConnection) -> Permanent:
    with pytest.raises(Permanent) as caught:
        register(connection, "v1", accept=False)
    return caught.value


def test_it_refuses_before_anything_exists_and_says_where_the_terms_are(
    connection: SourceConnection, standing: JumpStart
) -> None:
    error = refusal(connection)
    assert (error.code, error.status) == ("source:user:terms-required", 403)
    assert standing.terms_key in error.detail and "accept_eula" in error.next_step
    assert not ModelVersion.objects.exists() and not EulaAcceptance.objects.exists() and not standing.hub.asked


def test_it_records_who_accepted_which_text_and_asks_nobody_else(connection: SourceConnection) -> None:
    row, operation = register(connection, "v1", accept=True, actor=BOB)
    operation_step(operation_id=operation.pk)
    row.refresh_from_db()
    accepted = EulaAcceptance.objects.get()
    assert (accepted.accepted_by, accepted.accepted_via, accepted.text) == ("bob", "Browser", TERMS.decode())
    assert (accepted.subject, accepted.version, accepted.digest) == (
        "acme", "1.2.0", hashlib.sha256(TERMS).hexdigest(),
    )  # fmt: skip
    event = AuditEvent.objects.get(action="eula.accept")
    assert (event.actor, event.after["digest"]) == ("bob", accepted.digest)  # type: ignore[index]
    assert (row.state, row.revision) == ("Available", "1.2.0") and accepted.digest in row.uri
    assert row.metadata["jumpstart"]["model_id"] == "acme"
    register(connection, "v2", accept=False)  # the same text counts for everybody
    register(connection, "v3", accept=True)
    assert EulaAcceptance.objects.count() == AuditEvent.objects.filter(action="eula.accept").count() == 1


def test_another_text_is_another_question(connection: SourceConnection, standing: JumpStart) -> None:
    register(connection, "v1", accept=True)
    standing.put(standing.terms_key, b"You may warm this model on Sundays.")
    assert refusal(connection).code == "source:user:terms-required"
    register(connection, "v2", accept=True, actor=BOB)
    assert EulaAcceptance.objects.count() == 2


def test_an_address_cannot_accept_in_somebody_s_name(connection: SourceConnection) -> None:
    digest = hashlib.sha256(TERMS).hexdigest()
    with pytest.raises(Permanent) as caught:
        register(connection, "v1", accept=False, uri=f"jumpstart://acme?eula={digest}")
    assert caught.value.code == "source:user:terms-required"
    assert not EulaAcceptance.objects.exists()


def test_an_acceptance_outlives_its_connection(connection: SourceConnection) -> None:
    row, _ = register(connection, "v1", accept=True)
    row.delete()
    connection.delete()
    assert EulaAcceptance.objects.get().connection_name == "js"
