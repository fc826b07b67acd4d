"""What a router tells is believed as a whole or not at all: no engine's words, and nobody who left, may spoil it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from routing.dataplane.config import read_config
from routing.dataplane.fleet import Fleet, Instance, Variant
from routing.dataplane.recording import Recorder
from routing.dataplane.telling import Teller
from routing.domain.health import Failure
from routing.domain.recordings import MESSAGE_BYTES, read_message
from routing.domain.told import Told, read_told
from tests.dataplane.engines import Call, Script
from tests.dataplane.world import LEAST, SECRET, chat, run, world

MOST = 2**53 - 1
JSON = b"content-type: application/json"
RECORDED: dict[str, Any] = {**LEAST, "RoutingExtensions": {"record_keys": True}}


def told(fleet: Fleet) -> Told:
    """One message as the control plane reads it; it refuses what does not fit."""
    message = Teller(fleet, host="h").message(1e9)
    assert message is not None
    return read_told(json.loads(message))


def using(prompt: Any, cached: Any, completion: Any = 1) -> Script:
    usage = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }

    async def answers(call: Call) -> None:
        await call.answer(json.dumps({"usage": usage}).encode(), b"200 OK", JSON)

    return answers


@pytest.mark.parametrize(
    ("prompt", "cached", "counted"),
    [
        (MOST, MOST, (MOST, MOST)),
        (MOST, 0, (MOST, 0)),
        (MOST + 1, 1, (0, 0)),
        (10**400, 1, (0, 0)),
        (10, 11, (0, 0)),
        (-1, -1, (0, 0)),
        (True, True, (0, 0)),
        (1.5, 1, (0, 0)),
        ("7", "7", (0, 0)),
        (None, 7, (0, 0)),
        (7, None, (0, 0)),
        (0, 0, (0, 0)),
        (7, 7, (21, 21)),
    ],
)
def test_absurd_numbers_of_an_engine_are_told_or_are_none(prompt: Any, cached: Any, counted: tuple[int, int]) -> None:
    @run
    async def test() -> None:
        async with world(using(prompt, cached), policy=RECORDED) as here:
            wire = await here.wire()
            for _ in range(3):
                assert (await wire.ask("POST", "/v1/chat/completions", chat("x"))).status == 200
            recorded = here.shared.fleet.endpoints["chat"].variants["default"].recorder.take()
            assert recorded is not None and len(read_message(json.loads(recorded)).requests) == 3
            [one] = told(here.shared.fleet).variants
            assert (one.figures.prompt_tokens, one.figures.cached_tokens) == counted and one.figures.requests == 3

    test()


def published(*places: tuple[str, str], fleet: Fleet | None = None, policy: Any = LEAST, version: int = 1) -> Fleet:
    fleet = fleet or Fleet()
    instances = [{"id": uid, "address": address} for uid, address in places]
    variant = {"name": "default", "policy": policy, "instances": instances}
    endpoint = {"name": "chat", "secret": SECRET, "models": [], "variants": [variant]}
    fleet.apply(read_config(json.dumps({"version": version, "endpoints": [endpoint]}).encode()))
    return fleet


def variant_of(fleet: Fleet) -> Variant:
    return fleet.endpoints["chat"].variants["default"]


def failing(variant: Variant, instance: Instance, now: float = 100.0) -> None:
    for _ in range(2):
        variant.failed(instance, Failure.CONNECT, now)


A, B, MOVED = ("a", "10.0.0.1:80"), ("b", "10.0.0.2:80"), ("a", "10.0.0.3:80")


def test_who_failed_and_left_is_left_out_no_longer() -> None:
    fleet = published(A, B)
    failing(variant_of(fleet), variant_of(fleet).instances["a"])
    assert variant_of(fleet).ejected(100.0) == ["a"]
    published(B, fleet=fleet, version=2)
    assert variant_of(fleet).ejected(100.0) == []


def test_whoever_fails_after_it_left_leaves_nothing_behind() -> None:
    """Requests that were under way when its pod was killed fail after routers heard that it is gone."""
    fleet = published(A, B)
    before = variant_of(fleet)
    published(B, fleet=fleet, version=2)
    failing(before, before.instances["a"])
    assert variant_of(fleet).ejected(100.0) == [] and told(fleet).ejected == ()
    published(B, fleet=fleet, version=3)
    assert not variant_of(fleet)._ejected, "nothing is looked at for every request for one that is gone"


def test_one_that_comes_back_elsewhere_is_not_blamed_for_where_it_was() -> None:
    fleet = published(A, B)
    before = variant_of(fleet)
    failing(before, before.instances["a"])
    published(MOVED, B, fleet=fleet, version=2)
    assert variant_of(fleet).ejected(100.0) == []
    failing(variant_of(fleet), variant_of(fleet).instances["a"])
    published(MOVED, B, fleet=fleet, version=3)
    assert variant_of(fleet).ejected(100.0) == ["a"], "one that stays where it fails is"


def test_a_recorder_without_room_counts_and_has_room_after_it_was_read() -> None:
    class Recorded:
        @staticmethod
        def recorded() -> tuple[int, tuple[()]]:
            return 0, ()

    route: Any = Recorded()
    recorder = Recorder(wall=lambda: 1000.0)
    assert recorder.take() is None
    for _ in range(2):
        for _ in range(1000):
            recorder.keep(route, "Random", "i" * 64, None, None, 2.5)
        message = recorder.take()
        assert message is not None and len(message) < 1.5 * MESSAGE_BYTES
        found = read_message(json.loads(message))
        assert len(found.requests) + found.passed == 1000 and found.requests[0].at == 997.5
        assert recorder.take() is None
