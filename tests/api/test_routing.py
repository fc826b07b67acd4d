"""Policies over REST: read, tried out, set, refused; instances and routers beside them."""

from __future__ import annotations

import hashlib
import json
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from controlplane.accounts.models import Scope, User
from controlplane.audit.models import AuditEvent
from controlplane.rest.models import IdempotencyKey
from controlplane.serving.models import Variant
from routing.domain.figures import Figures
from routing.models import Configuration, RouterProcess, RoutingPolicy, RoutingWindow
from routing.services.publishing import configuration_publish
from tests import factories
from tests.api.conftest import Api, api_for

PREFIX: dict[str, Any] = {
    "RoutingStrategy": "PREFIX_AWARE",
    "PrefixAwareRoutingConfig": {"PrefixLength": 4096, "ConcurrencyThreshold": 16},
}
LEAST = {"RoutingStrategy": "LEAST_OUTSTANDING_REQUESTS"}


@pytest.fixture
def variant(db: None) -> Variant:
    return factories.variant(of=factories.endpoint(name="chat"))


@pytest.fixture
def place(variant: Variant) -> str:
    return f"endpoints/{variant.endpoint_id}/variants/default/routing-policy"


@pytest.fixture
def api(operator: User) -> Api:
    return api_for(operator, Scope.READ, Scope.ROUTING_WRITE)


def test_it_shows_the_default_before_anybody_set_anything(api: Api, place: str) -> None:
    answer = api.get(place)
    shown = answer.json()
    assert (shown["version"], shown["set_by"], shown["updated_at"], shown["published_version"]) == (0, "", None, None)
    assert shown["policy"]["RoutingStrategy"] == "RANDOM" and "PrefixAwareRoutingConfig" not in shown["policy"]
    assert shown["policy"]["RoutingExtensions"]["adaptive_depth"] is True and "ETag" not in answer


def test_it_sets_a_policy_and_shows_it(api: Api, place: str) -> None:
    Configuration.objects.create(version=7, digest="x", document={})
    answer = api.call("PUT", place, PREFIX)
    assert answer.status_code == 200 and answer["ETag"]
    shown = answer.json()
    assert (shown["version"], shown["published_version"]) == (1, 7)
    assert shown["policy"]["PrefixAwareRoutingConfig"] == PREFIX["PrefixAwareRoutingConfig"]
    assert "No text of it is stored" in shown["notes"][0] and shown["set_by"].startswith("olga")
    assert api.get(place).json() == shown
    assert AuditEvent.objects.get(action="routing.policy").via == "Api"


def test_a_trial_says_what_would_change_and_writes_nothing(api: Api, place: str) -> None:
    shown = api.call("PUT", f"{place}?dry_run=true", PREFIX).json()
    assert shown["changes"] is True and shown["before"]["RoutingStrategy"] == "RANDOM"
    assert shown["after"]["PrefixAwareRoutingConfig"]["PrefixLength"] == 4096
    assert api.call("PUT", f"{place}?dry_run=true", {"RoutingStrategy": "RANDOM"}).json()["changes"] is False
    assert not RoutingPolicy.objects.exists()


@pytest.mark.parametrize(
    ("body", "code", "fields"),
    [
        ({}, "request:user:invalid", {"RoutingStrategy"}),
        ([], "request:user:invalid", {"RoutingStrategy"}),
        ("PREFIX_AWARE", "request:user:invalid", {"RoutingStrategy"}),
        ({"RoutingStrategy": None}, "routing:policy:refused", {"RoutingStrategy"}),
        ({"RoutingStrategy": ["RANDOM"]}, "routing:policy:refused", {"RoutingStrategy"}),
        ({"RoutingStrategy": {"a": 1}}, "routing:policy:refused", {"RoutingStrategy"}),
        ({"RoutingStrategy": "PREFIX_AWARE"}, "routing:policy:refused", {"PrefixAwareRoutingConfig"}),
        (
            {**PREFIX, "PrefixAwareRoutingConfig": {"PrefixLength": 65537, "ConcurrencyThreshold": 0}},
            "routing:policy:refused",
            {"PrefixAwareRoutingConfig.PrefixLength", "PrefixAwareRoutingConfig.ConcurrencyThreshold"},
        ),
        (
            {**PREFIX, "PrefixAwareRoutingConfig": {"PrefixLength": 2048.0, "ConcurrencyThreshold": True}},
            "routing:policy:refused",
            {"PrefixAwareRoutingConfig.PrefixLength", "PrefixAwareRoutingConfig.ConcurrencyThreshold"},
        ),
        ({**LEAST, "PrefixAwareRoutingConfig": {}}, "routing:policy:refused", {"PrefixAwareRoutingConfig"}),
        ({**LEAST, "Surprise": 1}, "routing:policy:refused", {"Surprise"}),
        ({"routingStrategy": {}}, "routing:policy:refused", {"routingStrategy"}),
    ],
)
def test_it_refuses_what_the_managed_api_refuses(api: Api, place: str, body: Any, code: str, fields: set[str]) -> None:
    for query in ("", "?dry_run=true"):
        answer = api.call("PUT", place + query, body)
        assert (answer.status_code, answer.json()["code"]) == (400, code)
        assert {one["field"] for one in answer.json()["errors"]} == fields
    assert not RoutingPolicy.objects.exists()


def test_only_the_version_that_was_read_is_changed(api: Api, place: str) -> None:
    late = api.call("PUT", place, LEAST, headers={"If-Match": '"1"'})
    assert (late.status_code, late.json()["code"]) == (412, "request:user:stale"), "there is none to be meant"
    first = api.call("PUT", place, LEAST, headers={"If-Match": "*"})
    second = api.call("PUT", place, PREFIX, headers={"If-Match": first["ETag"]})
    late = api.call("PUT", place, LEAST, headers={"If-Match": first["ETag"]})
    assert (second.status_code, late.status_code) == (200, 412)
    assert api.get(place)["ETag"] == second["ETag"] != first["ETag"]


def test_the_same_key_is_answered_once(api: Api, place: str) -> None:
    headers = {"Idempotency-Key": "k-1"}
    first = api.call("PUT", place, PREFIX, headers=headers)
    api.call("PUT", place, LEAST)
    again = api.call("PUT", place, PREFIX, headers=headers)
    other = api.call("PUT", place, LEAST, headers=headers)
    assert again["Idempotency-Replayed"] == "true" and again.json() == first.json()
    assert api.get(place).json()["version"] == 2, "a repeat does not undo what came after"
    assert (other.status_code, other.json()["code"]) == (422, "idempotency:key:reused")


@pytest.mark.parametrize("name", ["blue", "Default", "x" * 63])
def test_there_is_no_policy_of_a_variant_that_is_not_there(api: Api, place: str, name: str) -> None:
    elsewhere = place.replace("default", name)
    for method, body in (("GET", None), ("PUT", LEAST)):
        answer = api.call(method, elsewhere, body)
        assert (answer.status_code, answer.json()["code"]) == (404, "routing:variant:not-found")


def test_whoever_sees_another_cluster_neither_reads_nor_sets(variant: Variant, place: str) -> None:
    far = api_for(factories.user(role="Operator", target="elsewhere"), Scope.READ, Scope.ROUTING_WRITE)
    assert far.get(place).status_code == far.call("PUT", place, LEAST).status_code == 404
    factories.instance(of=variant.endpoint)
    RoutingPolicy.objects.create(variant=variant, version=1, strategy="RANDOM", document={}, set_by="ada")
    assert far.get("instances").json()["items"] == far.get("routing-policies").json()["items"] == []
    part = factories.pool(of=variant.endpoint.cluster)
    looker = api_for(factories.user(role="Operator", target=part.full_name), Scope.READ, Scope.ROUTING_WRITE)
    assert looker.get(place).status_code == 200
    assert looker.call("PUT", place, LEAST).status_code == 403, "the endpoint is the whole cluster's"


def test_what_is_in_flight_is_summed_over_routers_and_unknown_without_any(api: Api, variant: Variant) -> None:
    one, other = factories.instance(of=variant.endpoint), factories.instance(of=variant.endpoint)

    def counts() -> dict[str, Any]:
        return {item["uid"]: item["in_flight"] for item in api.get("instances").json()["items"]}

    assert counts() == {one.uid: None, other.uid: None}
    now = timezone.now()
    for name, seconds, count in (("r1", 1, 2), ("r2", 2, 3), ("old", 3600, 50)):
        seen = now - timedelta(seconds=seconds)
        figures = {"in_flight": {one.uid: count}}
        RouterProcess.objects.create(name=name, started_at=seen, seen_at=seen, figures=figures)
    assert counts() == {one.uid: 5, other.uid: 0}


def test_routers_say_which_configuration_they_run(api: Api) -> None:
    now = timezone.now()
    Configuration.objects.create(version=9, digest="x", document={})
    for name, version, seconds in (("a", 9, 1), ("b", 8, 1), ("c", 9, 3600)):
        seen = now - timedelta(seconds=seconds)
        RouterProcess.objects.create(name=name, config_version=version, started_at=seen, seen_at=seen)
    shown = {item["name"]: item for item in api.get("routers").json()["items"]}
    assert {name: item["current"] for name, item in shown.items()} == {"a": True, "b": False, "c": None}
    assert shown["a"]["published_version"] == 9 and shown["c"]["in_flight"] is None and shown["a"]["in_flight"] == 0
    assert api.get(f"routers/{shown['b']['id']}").json()["current"] is False


def test_a_decision_is_explained_and_the_request_is_forgotten(api: Api, place: str, variant: Variant) -> None:
    instance = factories.instance(of=variant.endpoint)
    explain = place.replace("routing-policy", "explain")
    body = json.dumps({"messages": [{"role": "user", "content": "the eagle lands " * 100}]})
    early = api.post(explain, {"body": body})
    assert (early.status_code, early.json()["code"]) == (503, "routing:config:not-published")
    api.call("PUT", place, PREFIX)
    configuration_publish()
    answer = api.post(explain, {"body": body}, headers={"Idempotency-Key": "k-9"})
    shown = answer.json()
    assert shown["outcome"] == "Primary" and [one["uid"] for one in shown["candidates"]] == [instance.uid]
    assert [one["depth"] for one in shown["boundaries"]] == [1024, 1600]
    row = IdempotencyKey.objects.get()
    assert b"eagle" not in bytes(row.body) + answer.content
    head = json.dumps(["POST", f"/api/v1/{explain}", []]).encode()
    sent = json.dumps({"body": body}).encode()
    assert row.fingerprint != hashlib.sha256(head + b"\n" + sent).hexdigest(), "nobody may try texts against it"
    assert api.post(explain, {"body": 7, "path": ""}).status_code == 400
    bodies: tuple[object, ...] = (1, {"messages": []}, True, None)
    for wrong in bodies:
        refused = api.post(explain, {"body": wrong})
        assert refused.status_code == 400 and [one["field"] for one in refused.json()["errors"]] == ["body"], wrong


def test_telemetry_is_whole_and_says_what_it_does_not_know(api: Api, place: str, variant: Variant) -> None:
    where = place.replace("routing-policy", "routing-telemetry")
    shown = api.get(where).json()
    assert (shown["requests"], shown["hit_rate"], shown["spill"], shown["points"]) == (0, None, None, [])
    assert shown["ttft"] == {"count": 0, "p50": None, "p95": None, "p99": None, "most": None}
    assert shown["engines"] == [] and "did not say" in shown["produced_by"]
    figures = Figures(requests=4, told=2, prompt_tokens=10, cached_tokens=5)
    figures.first_byte("Primary", 0.5)
    figures.instances["pod-x"] = 4
    at = timezone.now() - timedelta(minutes=1)
    RoutingWindow.objects.create(variant=variant, seconds=10, at=at, figures=figures.to_json())
    shown = api.get(f"{where}?minutes=15").json()
    assert (shown["requests"], shown["told"], shown["hit_rate"]) == (4, 2, 0.5)
    primary = shown["ttft_by_outcome"]["Primary"]
    assert (primary["count"], primary["p95"], primary["p99"]) == (1, None, None), "of one answer there are none"
    assert primary["p50"] == primary["most"] == pytest.approx(0.5, rel=0.01)
    assert [(one["version"], one["policy"], one["requests"]) for one in shown["policies"]] == [(0, "RANDOM", 4)]
    assert [one["uid"] for one in shown["shares"]] == ["pod-x"] and len(shown["points"]) == 1
    answer = api.get(f"{where}?minutes=16")
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (400, "minutes")
