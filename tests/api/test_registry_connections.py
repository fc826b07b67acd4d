"""Connections of type Registry: made, checked with their credentials, and of no use for weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from caches.models import ModelVersion, SourceConnection
from caches.services.connections import connection_check, connection_registry
from caches.sources.secrets import write_secret
from controlplane.errors import Invalid
from tests import factories
from tests.api.conftest import Api
from tests.standins.registry import RegistryStandIn, registry_stand_in


@pytest.fixture
def standing() -> Iterator[RegistryStandIn]:
    with registry_stand_in("bearer") as made:
        made.image((b"layer", ""), tag="v1")
        yield made


def connected(admin_api: Api, standing: RegistryStandIn, **fields: Any) -> Any:
    body = {"name": "images", "type": "Registry", "endpoint": f"http://{standing.host}", "allowed": ["team"]}
    return admin_api.post("source-connections", body | fields)


def test_it_is_checked_with_its_credentials(admin_api: Api, standing: RegistryStandIn) -> None:
    assert connected(admin_api, standing, secret_name="pull").status_code == 201
    row = SourceConnection.objects.get()
    assert connection_check(connection_id=row.pk).state == "AccessDenied"  # the secret is not there yet
    write_secret("pull", {"username": standing.user, "password": "wrong"})
    assert connection_check(connection_id=row.pk).state == "AccessDenied"
    write_secret("pull", {"username": standing.user, "password": standing.password})
    checked = connection_check(connection_id=row.pk)
    assert (checked.state, checked.message) == ("Reachable", "")
    client = connection_registry(row)
    assert client.resolve("team/m:v1").compressed_bytes > 5
    client.close()


def test_it_holds_no_weights(admin_api: Api, operator_api: Api, standing: RegistryStandIn) -> None:
    connected(admin_api, standing)
    body = {"version": "v1", "source": {"connection": "images", "uri": "s3://team/m"}}
    answer = operator_api.post("models/m/versions", body)
    assert (answer.status_code, answer.json()["code"]) == (422, "source:user:holds-images")
    assert not ModelVersion.objects.exists()


def test_a_store_is_no_registry(db: None) -> None:
    with pytest.raises(Invalid) as caught:
        connection_registry(factories.connection())
    assert caught.value.code == "connection:user:no-registry"
    connection_registry(None).close()


@pytest.mark.parametrize(
    ("fields", "field"), [({"endpoint": ""}, "endpoint"), ({"allowed": ["host.example/x"]}, "allowed")]
)
def test_it_says_what_is_wrong(admin_api: Api, standing: RegistryStandIn, fields: dict[str, Any], field: str) -> None:
    answer = connected(admin_api, standing, **fields)
    assert answer.status_code == 400 and {error["field"] for error in answer.json()["errors"]} == {field}
