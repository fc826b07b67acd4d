"""Recordings as they come: clocks that are wrong, text that nobody sent, instances that nobody knows, and a policy that
changes in the middle. Whatever stands in Redis, a page is shown and a replay ends."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import redis
from django.utils import timezone

from controlplane.errors import Missing
from controlplane.operations.models import Operation, OperationState
from controlplane.operations.steps import operation_step
from controlplane.serving.models import Variant
from routing.domain.figures import Figures
from routing.domain.recordings import Kept, Recording, key_of_stream, line_of
from routing.models import RoutingPolicy, RoutingWindow
from routing.services import recordings
from routing.services.advising import variant_advise
from routing.services.explaining import decisions_list, recorded_explain
from routing.services.policies import policy_set
from routing.services.recordings import recording_read
from routing.services.replays import Asked, replay_prepare, replay_start
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
    return with_routed(recording_variant(RECORDED_PREFIX))


def raw(url: str, variant: Variant, *lines: Any, passed: Any = 0) -> None:
    """A message of a router of another kind."""
    with redis.Redis.from_url(url) as connection:
        key = key_of_stream(variant.endpoint.routed.name, variant.name)
        connection.xadd(key, {"m": json.dumps({"requests": list(lines), "passed": passed})})
        connection.expire(key, 600)


@pytest.mark.parametrize("ahead", [600.0, 1e9, 2.6e11, 1.0e12])
def test_a_clock_that_is_far_ahead_breaks_no_page_and_no_replay(url: str, variant: Variant, ahead: float) -> None:
    """A run goes through all of its time: a recording of a thousand years would never end."""
    told(url, variant, [kept(30, "x" * 3000), kept(20, "y" * 3000), kept(-ahead, "z" * 3000)], passed=2)
    items, passed = decisions_list(variant=variant)
    assert len(items) == 2 and passed == 3
    shown = ran(variant, Asked(15))
    assert shown["requests"] == 2 and shown["passed"] == 3


def test_a_clock_that_is_a_little_ahead_is_shown_as_now(url: str, variant: Variant) -> None:
    told(url, variant, [kept(30, "x" * 3000), kept(-40, "y" * 3000)])
    items, _ = decisions_list(variant=variant)
    assert len(items) == 2 and all(one.at <= timezone.now() for one in items)
    assert recorded_explain(variant=variant, decision_id=items[0].id).happened is not None
    shown = ran(variant, Asked(15))
    assert shown["requests"] == 2 and shown["since"] <= shown["until"]


def test_lines_that_are_none_are_passed_over_and_the_others_are_read(url: str, variant: Variant) -> None:
    good = line_of(kept(30, "x" * 2000))
    raw(
        url, variant, good, None, [], "x", {"at": 1}, good[:-1], [float(10**30), *good[1:]], [*good[:5], "é", *good[6:]]
    )
    raw(url, variant, line_of(kept(20, "x")), passed="many")
    found = recording_read(variant=variant, minutes=5)
    assert [one.depth for one in found.requests] == [2000, 1] and found.passed == 0


@pytest.mark.parametrize("instance", ["", "nobody-knows", "new-1", "x" * 64, "<b>", "a:b"])
def test_instances_that_nobody_knows_have_a_share_all_the_same(url: str, variant: Variant, instance: str) -> None:
    told(url, variant, [kept(30 - number, f"{number:<2000}", instance=instance) for number in range(4)])
    shown = ran(variant, Asked(15, PREFIX))
    [share] = shown["happened"]["shares"]
    assert share["uid"] == instance and share["share"] == 1 and share["name"]
    assert len(decisions_list(variant=variant)[0]) == 4


def test_outcomes_of_a_newer_router_count_as_requests_without_a_key(url: str, variant: Variant) -> None:
    told(url, variant, [kept(30 - number, "x" * 2000, outcome="Teleported") for number in range(3)])
    shown = ran(variant, Asked(15))
    assert shown["requests"] == 3 and shown["happened"]["spill"] is None
    assert {one.outcome for one in decisions_list(variant=variant)[0]} == {"Teleported"}


def test_engines_that_say_more_than_there_is_are_never_above_all_of_it(url: str, variant: Variant) -> None:
    told(url, variant, [kept(40 - n, f"{n:<2000}", prompt_tokens=10, cached_tokens=1000) for n in range(30)])
    shown = ran(variant, Asked(15))
    assert shown["measured_hit_rate"] == 1.0


def test_equal_requests_of_one_moment_are_explained_alike(url: str, variant: Variant) -> None:
    one = kept(30, "x" * 3000)
    told(url, variant, [one, one, replace(one, own=9)])
    ids = [each.id for each in decisions_list(variant=variant)[0]]
    assert len(ids) == 3 and len(set(ids)) == 2
    assert {recorded_explain(variant=variant, decision_id=each).overridden for each in ids} == {True, False}


@pytest.mark.parametrize("decision_id", ["²-00000000", "-", "1-", f"{10**15}-x", "\x00", "1 - 2", "٣-00000000"])
def test_an_id_that_is_none_is_not_found(url: str, variant: Variant, decision_id: str) -> None:
    told(url, variant, chats(3))
    with pytest.raises(Missing):
        recorded_explain(variant=variant, decision_id=decision_id)


def test_one_request_is_too_little_and_two_are_enough(url: str, variant: Variant) -> None:
    told(url, variant, [kept(30, "x")])
    with pytest.raises(Missing, match="One request was recorded"):
        replay_prepare(variant=variant, asked=Asked(15))
    told(url, variant, [kept(20, "x")])
    assert ran(variant, Asked(15))["requests"] == 2


def test_the_recording_stops_between_the_start_and_the_step_of_a_replay(url: str, variant: Variant) -> None:
    told(url, variant, chats(10))
    operation = replay_start(actor=ADA, variant=variant, asked=Asked(15))
    policy_set(actor=ADA, variant_id=variant.pk, document=PREFIX)
    assert operation_step(operation_id=operation.pk)
    ended = Operation.objects.get(pk=operation.pk)
    assert ended.state == OperationState.FAILED and ended.error is not None
    assert ended.error["code"] == "routing:recording:empty" and "Turn on the recording" in ended.error["next_step"]


def test_the_variant_goes_between_the_start_and_the_step_of_a_replay(url: str, variant: Variant) -> None:
    told(url, variant, chats(10))
    operation = replay_start(actor=ADA, variant=variant, asked=Asked(15))
    Variant.objects.filter(pk=variant.pk).delete()
    assert operation_step(operation_id=operation.pk)
    ended = Operation.objects.get(pk=operation.pk)
    assert ended.state == OperationState.FAILED and ended.error is not None
    assert ended.error["code"] == "routing:variant:not-found"


def test_two_variants_of_one_endpoint_are_recorded_apart(url: str, variant: Variant) -> None:
    other = factories.variant(of=variant.endpoint, name="other")
    policy_set(actor=ADA, variant_id=other.pk, document=RECORDED)
    other.endpoint.routed = variant.endpoint.routed
    told(url, variant, chats(4))
    told(url, other, chats(2))
    counts = [len(recording_read(variant=one, minutes=15).requests) for one in (variant, other)]
    assert counts == [4, 2]
    recordings.recording_forget(variant=other)
    counts = [len(recording_read(variant=one, minutes=15).requests) for one in (variant, other)]
    assert counts == [4, 0]


def test_forgetting_what_was_never_published_or_cannot_be_reached_harms_nothing(
    url: str, variant: Variant, settings: Any
) -> None:
    recordings.recording_forget(variant=factories.variant())
    settings.REDIS_URL = "redis://127.0.0.1:9/0"
    recordings.recording_forget(variant=variant)
    policy_set(actor=ADA, variant_id=variant.pk, document=PREFIX)
    recordings.recordings_purge()


def test_advice_looks_at_a_sample_and_at_nothing_where_nothing_is_recorded(
    url: str, variant: Variant, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def reads(**given: Any) -> Recording:
        asked.append(given["most"])
        return recording_read(**given)

    monkeypatch.setattr("routing.services.advising.recording_read", reads)
    told(url, variant, chats(20))
    [one] = variant_advise(variant=variant, minutes=10080, now=timezone.now())
    assert one.kind == "TooLittleTraffic" and asked == [500]
    policy_set(actor=ADA, variant_id=variant.pk, document=PREFIX)
    variant_advise(variant=variant, minutes=15, now=timezone.now())
    assert asked == [500]


def answered(variant: Variant, ago: float, requests: int, cached: int) -> None:
    """A window of answers with ``cached`` % from a cache, on three instances."""
    made = Figures(requests=requests, told=requests, prompt_tokens=100 * requests, cached_tokens=cached * requests)
    made.instances.update({f"pod-{number}": requests // 3 for number in range(3)})
    made.outcomes.update({"Random": requests})
    at = timezone.now() - timedelta(seconds=ago)
    RoutingWindow.objects.create(variant=variant, seconds=10, at=at, figures=made.to_json())


def test_advice_does_not_give_a_policy_the_hits_of_the_one_before(url: str, variant: Variant) -> None:
    """Nine tenths came from caches under PREFIX_AWARE, a fifth does under RANDOM, and on the whole most did."""
    second = policy_set(actor=ADA, variant_id=variant.pk, document=RECORDED)
    for row, ago in ((second, 120), (RoutingPolicy.objects.get(variant=variant, version=1), 600)):
        RoutingPolicy.objects.filter(pk=row.pk).update(created_at=timezone.now() - timedelta(seconds=ago))
    told(url, variant, chats(60))
    answered(variant, 400, 900, 90)
    answered(variant, 60, 90, 20)
    [few] = variant_advise(variant=variant, minutes=15, now=timezone.now())
    assert few.kind == "TooLittleTraffic" and few.figures["requests"] == 90
    answered(variant, 50, 90, 20)
    [lost] = variant_advise(variant=variant, minutes=15, now=timezone.now())
    assert lost.kind == "OverlapIsLost" and lost.figures["hit_rate"] == 0.2


def test_no_digest_is_shown_whole_anywhere(url: str, variant: Variant) -> None:
    some: list[Kept] = [kept(30, "secret words " * 300, own=2**63 + 5), kept(20, "secret words " * 300)]
    told(url, variant, some)
    items, _ = decisions_list(variant=variant)
    explained = [recorded_explain(variant=variant, decision_id=one.id) for one in items]
    shown = repr(items) + repr(explained) + json.dumps(ran(variant, Asked(15)))
    for one in some:
        for digest in (*(each.digest for each in one.boundaries), one.own):
            assert not digest or f"{digest:016x}" not in shown
    assert time.time() >= some[1].at
