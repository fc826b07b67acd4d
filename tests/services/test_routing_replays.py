"""What was recorded is read back bounded, explained by its id, replayed, and forgotten when it is no longer wanted."""

from __future__ import annotations

import json
from typing import Any

import pytest
import redis

from controlplane.audit.models import AuditEvent
from controlplane.errors import Invalid, Missing, Transient
from controlplane.operations.models import Operation, OperationState
from controlplane.operations.services import operation_cancel
from controlplane.operations.steps import operation_step
from controlplane.serving.models import Instance, Variant
from routing.domain.recordings import key_of_stream
from routing.models import RoutedEndpoint
from routing.services import recordings
from routing.services.explaining import decisions_list, recorded_explain
from routing.services.policies import policy_set
from routing.services.publishing import configuration_publish
from routing.services.recordings import recording_read
from routing.services.replays import Asked, replay_get, replay_prepare, replay_start, replay_step
from tests import factories
from tests.services.routing_world import (
    RECORDED,
    RECORDED_PREFIX,
    chats,
    kept,
    ran,
    recording_variant,
    told,
    use_redis,
    with_routed,
)
from tests.services.test_routing_policies import ADA, PREFIX

pytestmark = pytest.mark.django_db


@pytest.fixture
def url(settings: Any, valkey_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    return use_redis(settings, monkeypatch, valkey_url)


@pytest.fixture
def variant(url: str) -> Variant:
    return with_routed(recording_variant())


def test_it_reads_the_asked_minutes_oldest_first_and_no_more_than_asked(url: str, variant: Variant) -> None:
    some = [kept(ago, f"text {ago}") for ago in (1000, 50, 40, 30)]
    told(url, variant, some, passed=5, at_once=2)
    found = recording_read(variant=variant, minutes=5)
    assert [one.at for one in found.requests] == [pytest.approx(one.at, abs=0.001) for one in some[1:]]
    assert found.passed == 5
    assert [one.at for one in recording_read(variant=variant, minutes=5, most=2).requests] == [
        pytest.approx(one.at, abs=0.001) for one in some[2:]
    ], "the newest"
    assert recording_read(variant=factories.variant(), minutes=5).requests == ()


def test_many_messages_are_read_page_by_page_to_the_bound(
    url: str, variant: Variant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recordings, "PAGE", 3)
    told(url, variant, [kept(100 - number, "x" * 3000) for number in range(20)], at_once=2)
    assert len(recording_read(variant=variant, minutes=5).requests) == 20
    monkeypatch.setattr(recordings, "MOST_BOUNDARIES", 30)
    assert len(recording_read(variant=variant, minutes=5).requests) == 10


def test_what_others_leave_there_is_no_recording(url: str, variant: Variant) -> None:
    key = key_of_stream(variant.endpoint.routed.name, "default")
    with redis.Redis.from_url(url) as connection:
        for fields in ({"m": "no json"}, {"other": "x"}, {"m": "[]"}, {"m": b"\xff"}):
            connection.xadd(key, fields)
        assert recording_read(variant=variant, minutes=5).requests == ()
        connection.delete(key)
        connection.set(key, "mine")
    with pytest.raises(Transient, match="cannot be read"):
        recording_read(variant=variant, minutes=5)


def test_without_redis_it_says_so(variant: Variant, settings: Any) -> None:
    settings.REDIS_URL = "redis://127.0.0.1:9/0"
    with pytest.raises(Transient, match="Redis does not answer"):
        replay_prepare(variant=variant, asked=Asked(15))


def test_a_replay_puts_what_happened_beside_what_would_have(url: str, variant: Variant) -> None:
    told(url, variant, chats(300, cached=90), passed=100)
    shown = ran(variant, Asked(15, PREFIX))
    assert shown["requests"] == 300 and shown["passed"] == 100 and shown["instances"] == 3
    assert shown["tried"]["hit_rate"] >= shown["happened"]["hit_rate"]
    names = {one["name"] for one in shown["tried"]["shares"]}
    assert names == {f"{variant.endpoint.name}-{number}" for number in range(3)}
    assert shown["measured_hit_rate"] == pytest.approx(0.9) and shown["policy"]["RoutingStrategy"] == "PREFIX_AWARE"
    assert any("300 of 400 requests" in one for one in shown["assumptions"])
    assert shown["since"] < shown["until"] and "system" not in json.dumps(shown)
    assert shown["describes"] is True and len(shown["model"]["cache_blocks_that_fit"]) > 1
    assert shown["widest"]["tried"]["hit_rate"] >= shown["tried"]["hit_rate"]


def test_where_the_model_does_not_describe_the_traffic_nothing_is_compared(url: str, variant: Variant) -> None:
    told(url, variant, chats(300, cached=10))
    shown = ran(variant, Asked(15, PREFIX))
    assert shown["describes"] is False and shown["farthest"] == 0.05 and shown["widest"] is None
    assert abs(shown["happened"]["hit_rate"] - shown["measured_hit_rate"]) > 0.05
    assert shown["tried"]["hit_rate"] is None and set(shown["tried"]["ttft"].values()) == {None}
    assert sum(one["share"] for one in shown["tried"]["shares"]) == pytest.approx(1)


def test_other_numbers_of_instances_and_the_policy_in_force(url: str, variant: Variant) -> None:
    told(url, variant, chats(60))
    shown = ran(variant, Asked(15, None, instances=5, routers=2))
    assert shown["policy"]["RoutingStrategy"] == "RANDOM" and shown["routers"] == 2
    assert [one["name"] for one in shown["tried"]["shares"]][3:] == ["new-1", "new-2"]
    Instance.objects.all().delete()
    configuration_publish()
    with pytest.raises(Invalid, match="say how many"):
        replay_prepare(variant=variant, asked=Asked(15))
    shown = ran(variant, Asked(15, None, instances=2))
    assert len(shown["tried"]["shares"]) == 2
    assert all(one["name"].startswith("gone (pod-") for one in shown["happened"]["shares"])


@pytest.mark.parametrize(
    "asked",
    [Asked(0), Asked(61), Asked(15, instances=257), Asked(15, instances=-1), Asked(15, routers=65),
     Asked(15, {"RoutingStrategy": "FASTEST"})],
)  # fmt: skip
def test_it_refuses_what_cannot_be_tried(variant: Variant, asked: Asked) -> None:
    with pytest.raises(Invalid):
        replay_prepare(variant=variant, asked=asked)


def test_too_little_is_said_with_the_next_step(url: str, variant: Variant) -> None:
    with pytest.raises(Missing, match="No requests were recorded") as refused:
        replay_prepare(variant=variant, asked=Asked(15))
    assert "wait for traffic" in refused.value.next_step
    policy_set(actor=ADA, variant_id=variant.pk, document={"RoutingStrategy": "RANDOM"})
    with pytest.raises(Missing) as refused:
        replay_prepare(variant=variant, asked=Asked(15))
    assert "Turn on the recording" in refused.value.next_step


def test_a_long_one_is_an_operation_that_can_be_repeated_and_cancelled(url: str, variant: Variant) -> None:
    told(url, variant, chats(40))
    operation = replay_start(actor=ADA, variant=variant, asked=Asked(15, PREFIX))
    assert operation_step(operation_id=operation.pk)
    operation.refresh_from_db()
    assert operation.state == OperationState.SUCCEEDED
    assert operation.result is not None and operation.result["requests"] == 40
    assert replay_step(operation.pk), "a repeat changes nothing"
    assert replay_get(variant=variant, operation_id=operation.pk).result == operation.result
    with pytest.raises(Missing):
        replay_get(variant=factories.variant(), operation_id=operation.pk)

    second = replay_start(actor=ADA, variant=variant, asked=Asked(15))
    operation_cancel(actor=ADA, operation_id=second.pk)
    assert operation_step(operation_id=second.pk)
    assert Operation.objects.get(pk=second.pk).state == OperationState.CANCELED


def test_one_that_cannot_be_done_fails_with_a_reason(url: str, variant: Variant) -> None:
    operation = replay_start(actor=ADA, variant=variant, asked=Asked(15))
    assert operation_step(operation_id=operation.pk)
    operation.refresh_from_db()
    assert operation.state == OperationState.FAILED and operation.error is not None
    assert operation.error["code"] == "routing:recording:empty"


def test_a_decision_is_explained_by_its_id_without_any_text(url: str, variant: Variant) -> None:
    policy_set(actor=ADA, variant_id=variant.pk, document=RECORDED_PREFIX)
    configuration_publish()
    told(url, variant, [kept(90, "a" * 3000), kept(60, "a" * 3000, own=77), kept(30, "", outcome="NoKey")])
    items, passed = decisions_list(variant=variant)
    assert passed == 0 and [one.depth for one in items] == [0, 3000, 3000] and items[0].key == ""
    assert items[0].name == f"{variant.endpoint.name}-0"
    first = recorded_explain(variant=variant, decision_id=items[2].id)
    assert [one.depth for one in first.boundaries] == [1024, 2048, 3000] and first.boundaries[0].chosen
    assert first.outcome == "Primary" and first.happened is not None and first.happened.outcome == "Random"
    assert len(first.key) == 8 and sorted(one.uid for one in first.candidates) == ["pod-0", "pod-1", "pod-2"]
    named = recorded_explain(variant=variant, decision_id=items[1].id)
    assert named.overridden and not any(one.chosen for one in named.boundaries)
    assert recorded_explain(variant=variant, decision_id=items[0].id).outcome == "NoKey"
    for unknown in ("1-00000000", "x", "", "9" * 40, items[0].id + "f"):
        with pytest.raises(Missing):
            recorded_explain(variant=variant, decision_id=unknown)


def test_switching_the_recording_on_and_off_is_audited_and_off_forgets(
    url: str, variant: Variant, django_capture_on_commit_callbacks: Any
) -> None:
    assert "digests of beginnings" in AuditEvent.objects.get(action="routing.policy").message
    told(url, variant, chats(3))
    with django_capture_on_commit_callbacks(execute=True):
        policy_set(actor=ADA, variant_id=variant.pk, document=RECORDED_PREFIX)
    assert len(recording_read(variant=variant, minutes=15).requests) == 3
    last = AuditEvent.objects.filter(action="routing.policy").order_by("-at")[0]
    assert "digests of beginnings" not in last.message and "to place it" in last.message, "only what is new is said"
    with django_capture_on_commit_callbacks(execute=True):
        policy_set(actor=ADA, variant_id=variant.pk, document=PREFIX)
    key = key_of_stream(variant.endpoint.routed.name, "default")
    with redis.Redis.from_url(url) as connection:
        assert not connection.exists(key)
        told(url, variant, chats(3))  # by a router that has not heard of it yet
        assert recording_read(variant=variant, minutes=15).requests == () and connection.exists(key)
        kept_on = recording_variant()
        kept_on.endpoint.routed = RoutedEndpoint.objects.get(endpoint=kept_on.endpoint)
        told(url, kept_on, chats(2))
        recordings.recordings_purge()
        assert not connection.exists(key) and len(recording_read(variant=kept_on, minutes=15).requests) == 2
    last = AuditEvent.objects.filter(action="routing.policy", object_id=str(variant.endpoint_id)).order_by("-at")[0]
    switched = [(one or {})["RoutingExtensions"]["record_keys"] for one in (last.before, last.after)]
    assert switched == [True, False]
    assert RECORDED["RoutingStrategy"] == "RANDOM"
