"""When a router first had a success from an instance it says so, once for as long as the instance is there."""

from __future__ import annotations

import json
import time
from typing import Any

from routing.dataplane.telling import Teller
from routing.domain.told import read_told
from tests.dataplane.engines import Call
from tests.dataplane.world import LEAST, World, chat, run, world

CHAT = "/v1/chat/completions"


def firsts(teller: Teller, now: float) -> dict[str, float]:
    message = teller.message(now)
    assert message is not None
    teller.arrived()
    return dict(read_told(json.loads(message)).firsts)


def answers(*statuses: bytes) -> Any:
    """One status after the other, then the last for ever."""
    left = list(statuses)

    async def script(call: Call) -> None:
        status = left.pop(0) if len(left) > 1 else left[0]
        await call.answer(b"{}", status, b"content-type: application/json")

    return script


async def ask(here: World) -> int:
    return (await here.ask("POST", CHAT, chat("hello"))).status


@run
async def test_a_first_success_is_told_once_with_its_time() -> None:
    async with world(answers(b"200 OK"), policy=LEAST) as here:
        teller, before = Teller(here.shared.fleet), time.time()
        assert firsts(teller, 0.0) == {}
        for _ in range(3):
            assert await ask(here) == 200
        told = firsts(teller, 10.0)
        assert list(told) == ["pod-0"] and before <= told["pod-0"] <= time.time()
        assert firsts(teller, 20.0) == {}


@run
async def test_an_answer_that_refuses_or_fails_is_no_success() -> None:
    async with world(answers(b"404 Not Found", b"400 Bad Request", b"200 OK"), policy=LEAST) as here:
        teller = Teller(here.shared.fleet)
        assert [await ask(here), await ask(here)] == [404, 400]
        assert firsts(teller, 0.0) == {}
        assert await ask(here) == 200
        assert list(firsts(teller, 10.0)) == ["pod-0"]


@run
async def test_another_configuration_says_nothing_again() -> None:
    async with world(answers(b"200 OK"), policy=LEAST) as here:
        teller = Teller(here.shared.fleet)
        await ask(here)
        assert list(firsts(teller, 0.0)) == ["pod-0"]
        here.publish(LEAST)
        await ask(here)
        assert firsts(teller, 10.0) == {}


@run
async def test_a_message_that_did_not_arrive_keeps_its_word() -> None:
    async with world(answers(b"200 OK"), policy=LEAST) as here:
        teller = Teller(here.shared.fleet)
        await ask(here)
        lost, again = teller.message(0.0), teller.message(10.0)
        assert lost == again and b"pod-0" in (lost or b"").partition(b'"firsts"')[2]
