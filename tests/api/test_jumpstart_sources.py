"""JumpStart models over REST and in the browser: terms first, then the version's own artifact."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.test import Client

from caches.models import ModelVersion, SourceConnection
from caches.models.catalogue import EulaAcceptance
from caches.sources.secrets import write_secret
from controlplane.accounts.models import User
from controlplane.operations.steps import operation_step
from tests.api.conftest import Api
from tests.sources.conftest import moto_endpoint
from tests.standins.jumpstart import KEYS, REGION, JumpStart, jumpstart

__all__ = ["moto_endpoint"]  # a fixture


@pytest.fixture
def standing(moto_endpoint: str) -> Iterator[JumpStart]:
    with jumpstart(moto_endpoint) as made:
        made.gate("acme", "1.2.0", "acme/pack/", {"config.json": b"{}", "model.safetensors": bytes(5000)})
        yield made


def body(standing: JumpStart, **fields: Any) -> dict[str, Any]:
    return {
        "name": "js", "type": "JumpStart", "endpoint": standing.endpoint, "region": REGION, "secret_name": "aws",
        "allowed": ["*"], "manifest": standing.manifest_uri, "hub_endpoint": standing.hub.url, **fields,
    }  # fmt: skip


def test_terms_are_accepted_by_whoever_registers(operator_api: Api, admin_api: Api, standing: JumpStart) -> None:
    write_secret("aws", KEYS)
    made = admin_api.post("source-connections", body(standing))
    assert made.status_code == 201 and made.json()["manifest"] == standing.manifest_uri
    version: dict[str, Any] = {"version": "v1", "source": {"connection": "js", "uri": "jumpstart://acme@1.*"}}
    refused = operator_api.post("models/acme/versions", version)
    assert (refused.status_code, refused.json()["code"]) == (403, "source:user:terms-required")
    version["source"]["accept_eula"] = True
    started = operator_api.post("models/acme/versions", version)
    assert started.status_code == 202, started.content
    operation_step(operation_id=started.json()["id"])
    shown = operator_api.get("models/acme/versions/v1").json()
    assert (shown["state"], shown["source"]["revision"], shown["files_count"]) == ("Available", "1.2.0", 2)
    assert shown["metadata"]["jumpstart"]["version"] == "1.2.0"
    assert EulaAcceptance.objects.get().accepted_by == "olga/ci"


def test_the_browser_asks_for_the_terms_and_takes_a_tick(admin_api: Api, standing: JumpStart, operator: User) -> None:
    write_secret("aws", KEYS)
    admin_api.post("source-connections", body(standing))
    client = Client()
    client.force_login(operator)
    typed = {"model": "acme", "version": "v1", "uri": "jumpstart://js/acme",
             "connection": str(SourceConnection.objects.get().pk)}  # fmt: skip
    refused = client.post("/register", typed)
    assert refused.status_code == 403 and standing.terms_key in refused.content.decode()
    assert client.post("/register", typed | {"accept_eula": "on"}).status_code == 302
    assert ModelVersion.objects.get().uri.startswith("jumpstart://acme@1.2.0?artifact=s3://")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"region": ""}, "region"),
        ({"manifest": "https://host/manifest.json"}, "manifest"),
        ({"hub_endpoint": "http://169.254.169.254"}, "hub_endpoint"),
        ({"allowed": ["a/b"]}, "allowed"),
        ({"type": "S3", "allowed": ["bucket"], "hub_endpoint": ""}, "manifest"),
    ],
)
def test_it_says_what_is_wrong(admin_api: Api, standing: JumpStart, fields: dict[str, Any], field: str) -> None:
    answer = admin_api.post("source-connections", body(standing, **fields))
    assert answer.status_code == 400 and {error["field"] for error in answer.json()["errors"]} == {field}
