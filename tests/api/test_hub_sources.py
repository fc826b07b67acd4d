"""Versions from a hub over REST and in the browser: a branch becomes a commit, the gated is refused with a way out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import LazySettings
from django.test import Client

from caches.models import ModelVersion, SourceConnection
from caches.sources.secrets import write_secret
from controlplane.accounts.models import User
from controlplane.operations.steps import operation_step
from tests.api.conftest import Api
from tests.standins.hub import Hub, hub
from tests.standins.serving import Said

FILES = {"config.json": b"{}", "model.safetensors": bytes(20_000)}


@pytest.fixture
def standing(tmp_path: Path, settings: LazySettings) -> Iterator[Hub]:
    settings.SECRETS_DIR = tmp_path / "secrets"
    with hub() as made:
        made.tokens.add("hf_granted")
        yield made


def connected(admin_api: Api, standing: Hub, **fields: Any) -> None:
    body = {"name": "hub", "type": "HuggingFace", "endpoint": standing.endpoint, "allowed": ["org"], **fields}
    made = admin_api.post("source-connections", body)
    assert made.status_code == 201, made.content


def version(uri: str) -> dict[str, Any]:
    return {"version": "v1", "source": {"connection": "hub", "uri": uri}}


def test_it_registers_a_branch_as_its_commit(operator_api: Api, admin_api: Api, standing: Hub) -> None:
    repository = standing.repository("org/m")
    commit = repository.commit(FILES)
    connected(admin_api, standing)
    started = operator_api.post("models/m/versions", version("hf://hub/org/m@main"))
    assert started.status_code == 202, started.content
    repository.commit({"other.bin": b"x"})  # the worker comes later
    operation_step(operation_id=started.json()["id"])
    shown = operator_api.get("models/m/versions/v1").json()
    assert shown["source"]["uri"] == f"hf://org/m@{commit}" and shown["source"]["revision"] == commit
    assert (shown["state"], shown["anchored"], shown["files_count"]) == ("Available", True, 2)
    manifest = operator_api.get("models/m/versions/v1/manifest").json()
    assert [file["checksum"]["algorithm"] for file in manifest["files"]] == ["Git-SHA-1", "SHA-256"]
    assert all(file["checksum"]["anchor"] for file in manifest["files"])


def test_it_refuses_what_is_gated_before_anything_exists(operator_api: Api, admin_api: Api, standing: Hub) -> None:
    standing.repository("org/m", gated="masked").commit(FILES)
    connected(admin_api, standing, secret_name="hub-token")
    write_secret("hub-token", {"token": "hf_not-granted"})
    refused = operator_api.post("models/m/versions", version("hf://org/m"))
    assert (refused.status_code, refused.json()["code"]) == (403, "source:user:gated")
    assert "conditions" in refused.json()["next_step"] and b"hf_not-granted" not in refused.content
    assert not ModelVersion.objects.exists()
    write_secret("hub-token", {"token": "hf_granted"})
    assert operator_api.post("models/m/versions", version("hf://org/m")).status_code == 202


def test_it_asks_to_come_back_when_the_hub_does(operator_api: Api, admin_api: Api, standing: Hub) -> None:
    connected(admin_api, standing)
    standing.fault = lambda asked: Said(429, b"", {"Retry-After": "90"})
    answer = operator_api.post("models/m/versions", version("hf://org/m"))
    assert (answer.status_code, answer.json()["code"]) == (503, "source:source:throttled")
    assert 60 < int(answer["Retry-After"]) <= 91


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"allowed": ["a/b/c"]}, "allowed"),
        ({"allowed": ["s3://bucket"]}, "allowed"),
        ({"endpoint": "http://169.254.169.254"}, "endpoint"),
        ({"endpoint": "http://127.0.0.1/hub"}, "endpoint"),
        ({"type": "Hub"}, "type"),
    ],
)
def test_it_says_what_is_wrong_with_a_hub(admin_api: Api, standing: Hub, fields: dict[str, Any], field: str) -> None:
    body = {"name": "hub", "type": "HuggingFace", "endpoint": standing.endpoint, "allowed": ["org"], **fields}
    answer = admin_api.post("source-connections", body)
    assert answer.status_code == 400 and {error["field"] for error in answer.json()["errors"]} == {field}


def test_the_browser_takes_the_same_address(admin_api: Api, standing: Hub, operator: User, client: Client) -> None:
    commit = standing.repository("org/m").commit(FILES)
    connected(admin_api, standing)
    client.force_login(operator)
    body = {"model": "m", "version": "v1", "connection": str(SourceConnection.objects.get().pk), "uri": "hf://org/m"}
    assert client.post("/register", body).status_code == 302
    assert ModelVersion.objects.get().uri == f"hf://org/m@{commit}"
