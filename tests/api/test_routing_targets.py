"""Who serves, over REST: endpoints of addresses, and the shares of variants."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from controlplane.accounts.models import Scope, User
from controlplane.clusters.models import Cluster
from controlplane.serving.models import Endpoint
from tests import factories
from tests.api.conftest import Api, api_for

STATIC: dict[str, Any] = {
    "name": "chat", "model": "llama", "health_path": "/live",
    "addresses": [{"name": "a", "url": "https://engine"}, {"name": "b", "url": "http://10.0.0.7:8000"}],
}  # fmt: skip
CHANGED = {"addresses": [{"name": "a", "url": "http://10.0.0.8:8000"}]}


@pytest.fixture
def api(operator: User) -> Api:
    return api_for(operator, Scope.READ, Scope.ROUTING_WRITE)


@pytest.fixture
def cluster(db: None) -> str:
    return str(factories.cluster(name="lab").name)


def test_it_is_made_read_changed_and_taken_away(api: Api, cluster: str) -> None:
    made = api.call("POST", "static-endpoints", {"cluster": cluster, **STATIC})
    assert made.status_code == 201 and made["ETag"] and made["Location"].endswith(made.json()["id"])
    shown, place = made.json(), f"static-endpoints/{made.json()['id']}"
    assert [one["url"] for one in shown["addresses"]] == ["https://engine:443", "http://10.0.0.7:8000"]
    assert api.get(place).json() == shown

    listed = api.get("endpoints").json()["items"]
    assert [(one["name"], one["kind"], one["replicas"]) for one in listed] == [("chat", "StaticEndpoint", 2)]
    instances = api.get("instances").json()["items"]
    assert {(one["name"], one["address"], one["ready"]) for one in instances} == {
        ("a", "engine:443", None), ("b", "10.0.0.7:8000", None),
    }, "no router has said yet"  # fmt: skip

    assert api.call("PUT", place, CHANGED, headers={"If-Match": '"0"'}).status_code == 412
    changed = api.call("PUT", place, CHANGED, headers={"If-Match": made["ETag"]})
    assert changed.status_code == 200 and changed["ETag"] != made["ETag"]
    assert changed.json()["health_path"] == "/health" and changed.json()["model"] == ""
    assert api.call("DELETE", place).status_code == 204
    assert api.get(place).status_code == 404


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        ({**STATIC, "cluster": "none"}, {"cluster"}),
        ({**STATIC, "cluster": "lab", "addresses": [{"name": "a", "url": "http://u:p@x"}]}, {"addresses.0.url"}),
        ({**STATIC, "cluster": "lab", "addresses": [{"name": "a"}]}, {"addresses.0.url"}),
        ({**STATIC, "cluster": "lab", "adresses": []}, {"adresses"}),
        ({"cluster": "lab", "name": "Chat", "addresses": []}, {"name"}),
        ({}, {"cluster", "name", "addresses"}),
    ],
)
def test_what_is_wrong_is_named_by_its_field(api: Api, cluster: str, body: dict[str, Any], fields: set[str]) -> None:
    answer = api.call("POST", "static-endpoints", body)
    assert answer.status_code in (400, 422)
    assert {one["field"] for one in answer.json()["errors"]} == fields
    assert not Endpoint.objects.exists()


def test_one_that_its_cluster_has_is_no_static_one(api: Api, cluster: str) -> None:
    row = factories.endpoint(name="other")
    assert api.get(f"static-endpoints/{row.pk}").status_code == 404


def test_shares_are_read_and_shifted(api: Api, cluster: str) -> None:
    chat = factories.endpoint(name="chat")
    factories.variant(of=chat)
    other = factories.endpoint(of=chat.cluster, name="other")
    place = f"endpoints/{chat.pk}/variants"
    first = api.get(place)
    assert first.json() == {
        "variants": [
            {"name": "default", "weight": 1.0, "wanted_weight": 1.0, "share": 1.0, "endpoint_id": None, "endpoint": "",
             "ready": 0, "instances": 0, "waits_for": ""}
        ],
        "shifting": False,
    }  # fmt: skip
    body = {"variants": [{"name": "default", "weight": 1}, {"name": "b", "weight": 1, "endpoint_id": str(other.pk)}]}
    shifted = api.call("PUT", place, body, headers={"If-Match": first["ETag"]})
    assert shifted.status_code == 200 and shifted.json()["shifting"] is True
    waiting = shifted.json()["variants"][0]
    assert (waiting["name"], waiting["endpoint"]) == ("b", "default/other") and "other is ready" in waiting["waits_for"]
    assert api.call("PUT", place, body, headers={"If-Match": first["ETag"]}).status_code == 412
    assert api.call("PUT", place, {"variants": []}).status_code == 400
    assert api.get(f"{place}/b/routing-policy").status_code == 200, "it has a policy of its own"


def test_who_may_only_look_changes_nothing(viewer: User, cluster: str) -> None:
    chat = factories.endpoint(name="chat")
    factories.variant(of=chat)
    looking = api_for(viewer, Scope.READ)
    assert looking.get(f"endpoints/{chat.pk}/variants").status_code == 200
    body = {"variants": [{"name": "default", "weight": 2}]}
    assert looking.call("PUT", f"endpoints/{chat.pk}/variants", body).status_code == 403
    assert looking.call("POST", "static-endpoints", {"cluster": cluster, **STATIC}).status_code == 403


def test_what_a_silent_cluster_said_last_is_no_answer(api: Api, cluster: str) -> None:
    chat = factories.endpoint(of=Cluster.objects.get(name=cluster), name="chat", status={"state": "DeploymentComplete"})
    instance = factories.instance(of=chat)
    shown = api.get(f"instances/{instance.pk}").json()
    assert (shown["ready"], shown["state"], shown["unknown_since"], shown["last_known"]) == (True, "Ready", None, None)
    assert api.get(f"endpoints/{chat.pk}").json()["state"] == "DeploymentComplete"

    Cluster.objects.update(observed_at=timezone.now() - timedelta(hours=1))
    shown = api.get(f"instances/{instance.pk}").json()
    assert (shown["ready"], shown["state"], shown["last_known"]) == (None, "Unknown", "Ready")
    whole = api.get(f"endpoints/{chat.pk}").json()
    assert (whole["state"], whole["last_known"]) == ("Unknown", "DeploymentComplete")
    assert whole["unknown_since"] == shown["unknown_since"] == whole["instances"][0]["unknown_since"] is not None
    assert (whole["instances"][0]["ready"], whole["instances"][0]["state"]) == (None, "Unknown")
    [listed] = api.get("endpoints").json()["items"]
    assert listed["state"] == "Unknown" and "nothing is heard" in listed["state_detail"]


def test_a_name_that_is_taken_is_a_clash_with_a_next_step(api: Api, cluster: str) -> None:
    factories.endpoint(of=Cluster.objects.get(name=cluster), name="chat")
    refused = api.call("POST", "static-endpoints", {"cluster": cluster, **STATIC})
    assert refused.status_code == 409 and refused.json()["code"] == "routing:static:name-taken"
    assert "another name" in refused.json()["next_step"] and refused.json()["errors"][0]["field"] == "name"
