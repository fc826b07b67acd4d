"""Who already lets requests wait for the beginning of their answer gets no more of them, where the policy says so."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.dataplane.engines import Call
from tests.dataplane.world import PREFIX, Wire, World, chat, request, run, until, world

BODY = chat("x" * 2000, stream=True)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
EVENT = b"5\r\nevent\r\n"


def bounded(most: int) -> dict[str, Any]:
    return PREFIX | {"RoutingExtensions": {"unanswered_threshold": most, "avoid_waits": False}}


def unanswered(here: World) -> dict[str, int]:
    return dict(here.shared.fleet.endpoints["chat"].variants["default"].unanswered)


class Told:
    """An engine whose answers go on when they are told to: the head, then the first event, then the end."""

    def __init__(self) -> None:
        self.steps = [asyncio.Event() for _ in range(3)]

    async def script(self, call: Call) -> None:
        for step, part in zip(self.steps, (HEAD, EVENT, b"0\r\n\r\n"), strict=True):
            await step.wait()
            await call.send(part)


async def asked(here: World) -> tuple[Wire, str]:
    """A request on its way, and which instance has it."""
    before = [len(engine.calls) for engine in here.engines]
    wire = await here.wire()
    await wire.send(request("POST", "/v1/chat/completions", BODY))
    await until(lambda: [len(engine.calls) for engine in here.engines] != before, "it arrived")
    [number] = [number for number, engine in enumerate(here.engines) if len(engine.calls) > before[number]]
    return wire, f"pod-{number}"


@run
async def test_only_the_first_byte_of_a_body_makes_room_for_the_next_one() -> None:
    told = Told()
    async with world(*[told.script] * 3, policy=bounded(1)) as here:
        wires, places = zip(*[await asked(here) for _ in range(3)], strict=True)
        assert sorted(places) == ["pod-0", "pod-1", "pod-2"], "each waits for another one"
        told.steps[0].set()
        for wire in wires:
            await wire.reader.readuntil(b"\r\n\r\n")
        assert unanswered(here) == dict.fromkeys(places, 1), "engines send heads before they compute anything"
        told.steps[1].set()
        await until(lambda: unanswered(here) == {}, "all began")
        assert here.in_flight() == dict.fromkeys(places, 1)
        wire, place = await asked(here)
        assert place == places[0], "it is its own again"
        told.steps[2].set()
        for one in (*wires, wire):
            await one.reader.readuntil(b"0\r\n\r\n")
        await until(lambda: here.in_flight() == {} and unanswered(here) == {}, "rest")


@run
async def test_without_a_bound_all_wait_where_their_cache_is() -> None:
    told = Told()
    async with world(*[told.script] * 3, policy=bounded(0)) as here:
        assert len({(await asked(here))[1] for _ in range(3)}) == 1 and unanswered(here) == {}
        # One that is set while they wait counts those that come after it.
        here.publish(bounded(1))
        places = [(await asked(here))[1] for _ in range(2)]
        assert len(set(places)) == 2 and unanswered(here) == dict.fromkeys(places, 1)
        here.publish(bounded(0))
        for step in told.steps:
            step.set()
        await until(lambda: here.in_flight() == {} and unanswered(here) == {}, "rest")


async def refuses(call: Call) -> None:
    await call.answer(b"busy", b"503 Service Unavailable")


async def dies(call: Call) -> None:
    call.writer.transport.abort()


async def empty(call: Call) -> None:
    await call.answer(b"", b"204 No Content")


async def wrong(call: Call) -> None:
    await call.answer(b"no", b"400 Bad Request")


async def plain(call: Call) -> None:
    await call.answer()


@pytest.mark.parametrize("script", [refuses, dies, empty, wrong, plain], ids=lambda one: one.__name__)
def test_nothing_is_left_whatever_came_of_it(script: Any) -> None:
    @run
    async def test() -> None:
        async with world(script, script, policy=bounded(1)) as here:
            for _ in range(3):
                await here.ask("POST", "/v1/chat/completions", BODY)
            assert here.in_flight() == {} and unanswered(here) == {}

    test()


@run
async def test_nothing_is_left_of_who_leaves_before_an_answer() -> None:
    told = Told()
    async with world(*[told.script] * 2, policy=bounded(1)) as here:
        wire, place = await asked(here)
        assert unanswered(here) == {place: 1}
        wire.leave()
        await until(lambda: unanswered(here) == {}, "it left")
