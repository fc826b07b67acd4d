"""Clusters over REST: registered with clear refusals, shown when they do not answer, adopted by one call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from caches.models import ModelVersion
from controlplane.accounts.models import User
from controlplane.audit.models import AuditEvent
from controlplane.clusters.models import Cluster
from tests import factories
from tests.api.conftest import PASSPHRASE, Api, api_for
from tests.services.lost import lose_everything
from tests.services.world import MIB, World, version_of


def register(api: Api, address: object, **fields: Any) -> Any:
    return api.post("clusters", {"name": "prod", "type": "Kubernetes", "address": address, **fields})


def test_a_cluster_that_does_not_answer_is_taken_and_says_so(admin_api: Api, kubeconfig: Path) -> None:
    answer = register(admin_api, f"{kubeconfig}#green")
    assert answer.status_code == 201
    body = answer.json()
    assert (body["name"], body["type"], body["observed_at"], body["nodes_count"]) == ("prod", "Kubernetes", None, 0)
    assert "ConnectionRefused" in body["error"] or "refused" in body["error"]
    assert PASSPHRASE not in answer.content.decode()
    assert answer["Location"].endswith("/api/v1/clusters/prod")
    assert admin_api.get("clusters/prod").json()["error"] == body["error"]
    event = AuditEvent.objects.get(action="cluster.create")
    assert event.after == {"type": "Kubernetes", "address": f"{kubeconfig}#green"}


@pytest.mark.parametrize(
    ("address", "detail"),
    [
        ("{path}#red", "has no context red; it has blue, green"),
        ("{path}.gone", "is no file that Hearth can see"),
        ("{folder}", "is no file that Hearth can see"),
        ("kubeconfig", "absolute path"),
        ("in-cluster", "this one does not"),
        ("{folder}/notes", "is no kubeconfig: it has no contexts"),
        ("{folder}/broken", "is no kubeconfig: it is not YAML"),
        ("{folder}/nobody", "has no current context: name one as"),
        ("/dev/zero", "is no file that Hearth can see"),
    ],
    ids=["context", "gone", "folder", "relative", "pod", "notes", "broken", "no-current", "device"],
)
def test_an_address_that_leads_nowhere_is_refused_with_the_reason(
    admin_api: Api, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch, address: str, detail: str
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    folder = kubeconfig.parent
    (folder / "notes").write_text(f"root: {PASSPHRASE}\n")
    (folder / "broken").write_text(f"[{PASSPHRASE}: {{\n")
    (folder / "nobody").write_text("contexts: []\n")
    answer = register(admin_api, address.format(path=kubeconfig, folder=folder))
    assert answer.status_code == 400
    [problem] = answer.json()["errors"]
    assert problem["field"] == "address" and detail in problem["detail"]
    assert PASSPHRASE not in answer.content.decode(), "what is in a file is nobody's to read here"
    assert not Cluster.objects.exists()


def test_a_name_is_taken_once(admin_api: Api, kubeconfig: Path) -> None:
    assert register(admin_api, str(kubeconfig)).status_code == 201
    answer = register(admin_api, str(kubeconfig))
    assert (answer.status_code, answer.json()["code"]) == (409, "cluster:user:name-taken")
    assert Cluster.objects.count() == 1


def test_a_local_fleet_is_not_made_over_rest(admin_api: Api, tmp_path: Path) -> None:
    assert register(admin_api, str(tmp_path), type="Local").status_code == 400
    assert not Cluster.objects.exists()


@pytest.mark.parametrize("role", ["Viewer", "Operator"])
def test_who_may_not_change_the_fleet_registers_and_adopts_nothing(db: None, kubeconfig: Path, role: str) -> None:
    api = api_for(factories.user(role=role))
    cluster = factories.cluster()
    assert register(api, str(kubeconfig)).status_code == 403
    assert api.post(f"clusters/{cluster.name}/adopt", {}).status_code == 403


def test_an_administrator_of_one_cluster_adopts_nothing_for_all(db: None) -> None:
    """Versions and source connections are shared by every cluster."""
    cluster = factories.cluster()
    local = api_for(factories.user(role="Admin", target=cluster.name))
    assert local.post(f"clusters/{cluster.name}/adopt", {}).status_code == 403


@pytest.fixture
def lost(db: None, tmp_path: Path) -> World:
    """A running fleet with one warm version, and a database that knows nothing of it."""
    world = World(tmp_path / "fleet")
    lab = factories.connection(name="lab", type="S3", allowed=["models"])
    version = version_of(300 * MIB, connection=lab, model="llama", version="v1", uri="s3://models/llama")
    world.warm(version)
    lose_everything()
    world.observe()
    return world


def test_adoption_is_one_call(lost: World, admin_api: Api, admin: User) -> None:
    path = f"clusters/{lost.cluster.name}/adopt"
    dry = admin_api.post(f"{path}?dry_run=true", {})
    assert (dry.status_code, dry.json()["versions"], dry.json()["dry_run"]) == (200, ["llama v1"], True)
    assert not ModelVersion.objects.exists()

    done = admin_api.post(path, {})
    assert done.status_code == 200
    body = done.json()
    assert {key: body[key] for key in ("connections", "versions", "known", "copies", "not_adopted", "orphans")} == {
        "connections": ["lab"], "versions": ["llama v1"], "known": 0, "copies": 2, "not_adopted": [], "orphans": [],
    }  # fmt: skip
    assert [row["state"] for row in admin_api.get("cache-entries").json()["items"]] == ["Ready", "Ready"]
    event = AuditEvent.objects.get(action="cluster.adopt")
    assert event.actor == f"{admin.username}/ci" and event.via == "Api"
    assert admin_api.post(path, {}).json()["known"] == 1


def test_a_silent_cluster_is_adopted_later(admin_api: Api, kubeconfig: Path) -> None:
    register(admin_api, str(kubeconfig))
    answer = admin_api.post("clusters/prod/adopt", {})
    assert (answer.status_code, answer.json()["code"]) == (503, "cluster:cluster:unreachable")
    assert PASSPHRASE not in answer.content.decode()
    assert not AuditEvent.objects.filter(action="cluster.adopt").exists()
