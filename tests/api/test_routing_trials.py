"""Advice, decisions and replays over REST: whole, refused with a reason, and without a word of any request."""

from __future__ import annotations

from typing import Any

import pytest

from controlplane.accounts.models import Scope, User
from controlplane.audit.models import AuditEvent
from controlplane.operations.models import Operation
from controlplane.operations.steps import operation_step
from controlplane.serving.models import Variant
from routing.api import replays
from routing.models import RoutedEndpoint
from tests import factories
from tests.api.conftest import Api, api_for
from tests.services.routing_world import RECORDED_PREFIX, chats, recording_variant, told, use_redis
from tests.services.test_routing_policies import PREFIX


@pytest.fixture
def variant(db: None, settings: Any, valkey_url: str, monkeypatch: pytest.MonkeyPatch) -> Variant:
    use_redis(settings, monkeypatch, valkey_url)
    made = recording_variant()
    made.endpoint.routed = RoutedEndpoint.objects.get(endpoint=made.endpoint)
    return made


@pytest.fixture
def place(variant: Variant) -> str:
    return f"endpoints/{variant.endpoint_id}/variants/default"


@pytest.fixture
def api(operator: User) -> Api:
    return api_for(operator, Scope.READ, Scope.ROUTING_WRITE)


def test_a_small_replay_is_answered_at_once(api: Api, place: str, variant: Variant, valkey_url: str) -> None:
    told(valkey_url, variant, chats(80))
    answer = api.post(f"{place}/replays", {"minutes": 15, "policy": PREFIX, "instances": 4})
    shown = answer.json()
    assert answer.status_code == 200 and (shown["state"], shown["operation_id"]) == ("Succeeded", None)
    result = shown["result"]
    assert (
        result["requests"] == 80 and result["policy"]["PrefixAwareRoutingConfig"] == PREFIX["PrefixAwareRoutingConfig"]
    )
    assert len(result["tried"]["shares"]) == 4 and len(result["assumptions"]) >= 2
    assert set(result["happened"]["ttft"]) == {"p50", "p95", "p99"} and "variant_id" not in result
    assert not Operation.objects.exists()
    assert api.post(f"{place}/replays", {"minutes": 15}).json()["result"]["policy"]["RoutingStrategy"] == "RANDOM"


def test_a_large_one_is_an_operation_to_be_followed(
    api: Api, place: str, variant: Variant, valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replays, "AT_ONCE_SECONDS", 0.0)
    told(valkey_url, variant, chats(30))
    answer = api.post(f"{place}/replays", {"minutes": 15, "policy": PREFIX}, headers={"Idempotency-Key": "r-1"})
    shown = answer.json()
    assert (answer.status_code, shown["state"], shown["result"]) == (202, "Pending", None)
    assert answer["Location"].endswith(f"/api/v1/operations/{shown['operation_id']}") and answer["Retry-After"]
    again = api.post(f"{place}/replays", {"minutes": 15, "policy": PREFIX}, headers={"Idempotency-Key": "r-1"})
    assert again.json() == shown and Operation.objects.count() == 1
    where = f"{place}/replays/{shown['operation_id']}"
    assert api.get(where).status_code == 202
    assert operation_step(operation_id=shown["operation_id"])
    ended = api.get(f"{where}?wait=1")
    assert ended.status_code == 200 and ended.json()["result"]["requests"] == 30
    elsewhere = recording_variant()
    other = f"endpoints/{elsewhere.endpoint_id}/variants/default/replays/{shown['operation_id']}"
    assert (api.get(other).status_code, api.get(other).json()["code"]) == (404, "routing:replay:not-found")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "minutes"),
        ({"minutes": 0}, "minutes"),
        ({"minutes": 61}, "minutes"),
        ({"minutes": "soon"}, "minutes"),
        ({"instances": 0}, "instances"),
        ({"routers": 65}, "routers"),
        ({"policy": {"RoutingStrategy": "FASTEST"}}, "policy.RoutingStrategy"),
        ({"policy": {"RoutingStrategy": "PREFIX_AWARE"}}, "PrefixAwareRoutingConfig"),
        ({"policy": {"Surprise": 1}}, "policy.Surprise"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_it_refuses_what_cannot_be_replayed(api: Api, place: str, body: dict[str, Any], field: str) -> None:
    answer = api.post(f"{place}/replays", {"minutes": 15, **body} if body else body)
    assert answer.status_code == 400 and field in {one["field"] for one in answer.json()["errors"]}
    assert not Operation.objects.exists()


def test_nothing_recorded_is_said_with_the_next_step(api: Api, place: str, settings: Any) -> None:
    answer = api.post(f"{place}/replays", {"minutes": 15})
    assert (answer.status_code, answer.json()["code"]) == (404, "routing:recording:empty")
    settings.REDIS_URL = "redis://127.0.0.1:9/0"
    for path in ("replays", "decisions"):
        answer = api.post(f"{place}/replays", {"minutes": 15}) if path == "replays" else api.get(f"{place}/decisions")
        assert (answer.status_code, answer.json()["code"]) == (503, "routing:recording:unreachable"), path


def test_decisions_are_listed_and_explained_by_their_id(
    api: Api, variant: Variant, place: str, valkey_url: str
) -> None:
    told(valkey_url, variant, chats(5), passed=9)
    shown = api.get(f"{place}/decisions").json()
    assert shown["recording"] is True and shown["passed"] == 9 and len(shown["items"]) == 5
    first = shown["items"][0]
    assert first["name"].startswith("chat-") and first["depth"] == 6444 and len(first["key"]) == 8
    answer = api.post(f"{place}/explain", {"decision": first["id"]})
    explained = answer.json()
    assert answer.status_code == 200 and explained["happened"]["uid"] == first["uid"]
    assert explained["outcome"] == "Random" and explained["candidates"][0]["name"].startswith("chat-")
    for body, status in (({"decision": "1-2"}, 404), ({}, 400), ({"decision": first["id"], "body": ""}, 400)):
        assert api.post(f"{place}/explain", body).status_code == status


@pytest.mark.parametrize(
    "sent",
    [
        {"body": "{}", "headers": {"\ud800": "x"}},
        {"body": "{}", "headers": {"x\r\ny": "x"}},
        {"body": "{}", "headers": {"": "x", "é": "x"}},
        {"body": "{}", "headers": {"X-Amzn-SageMaker-Target-Variant": "other"}},
        {"body": "{}", "headers": {"x": "\ud800"}},
        {"body": '{"messages": [{"content": "\ud800"}]}'},
        {"body": "{}", "tenant": "\ud800"},
        {"body": "{}", "path": "/endpoints/other/v1/completions"},
        {"body": "{}", "headers": []},
        {"decision": "\ud800"},
        {"body": 7},
    ],
)
def test_whatever_is_sent_to_be_explained_has_an_answer(api: Api, place: str, sent: dict[str, Any]) -> None:
    answer = api.post(f"{place}/explain", sent)
    assert answer.status_code in (200, 400, 404), answer.content


def test_advice_has_its_figures_and_its_period(api: Api, place: str) -> None:
    shown = api.get(f"{place}/routing-advice?minutes=60").json()
    [one] = shown["items"]
    assert (one["kind"], one["severity"], one["figures"]["requests"]) == ("TooLittleTraffic", "info", 0)
    assert shown["since"] < shown["until"] and one["replay"] == {}
    assert api.get(f"{place}/routing-advice?minutes=7").status_code == 400


def test_whoever_may_only_look_replays_nothing_and_sees_no_other_cluster(viewer: User, place: str) -> None:
    looking = api_for(viewer, Scope.READ)
    assert looking.get(f"{place}/routing-advice").status_code == looking.get(f"{place}/decisions").status_code == 200
    for path in ("replays", "explain"):
        assert looking.post(f"{place}/{path}", {}).status_code == 403
    far = api_for(factories.user(role="Operator", target="elsewhere"), Scope.READ, Scope.ROUTING_WRITE)
    assert far.get(f"{place}/routing-advice").status_code == far.post(f"{place}/replays", {}).status_code == 404


def test_the_recording_is_switched_with_the_policy_and_audited(api: Api, place: str) -> None:
    answer = api.call("PUT", f"{place}/routing-policy", RECORDED_PREFIX)
    assert answer.json()["policy"]["RoutingExtensions"]["record_keys"] is True
    assert any("kept for an hour" in note for note in answer.json()["notes"])
    row = AuditEvent.objects.filter(action="routing.policy").order_by("-at")[0]
    assert row.via == "Api" and (row.after or {})["RoutingExtensions"]["record_keys"] is True
