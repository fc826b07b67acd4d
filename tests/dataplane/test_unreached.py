"""Requests whose instances are gone before routers are told: they wait for others, in bounds, and are counted once."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from routing.dataplane.queued import MOST_CUT
from routing.dataplane.router import Shared
from tests.dataplane.engines import Call, Engine
from tests.dataplane.test_strict import Clock, later
from tests.dataplane.test_waiting import everybody, queued
from tests.dataplane.world import LEAST, PREFIX, Reply, Wire, World, chat, request, run, until, world

QUEUE: dict[str, Any] = {"requests": 64, "seconds": 30.0, "unreached": True}


def publish(here: World, *engines: Engine, **queue: Any) -> None:
    instances = [{"id": f"at-{one.port}", "address": f"127.0.0.1:{one.port}"} for one in engines]
    here.version += 1
    variant = {"name": "default", "policy": LEAST, "instances": instances, "queue": QUEUE | queue}
    here.publish_endpoints([{"name": "chat", "secret": "00" * 16, "variants": [variant]}])


async def asking(here: World, count: int = 1) -> list[Wire]:
    wires = [await here.wire() for _ in range(count)]
    for wire in wires:
        await wire.send(request("POST", "/v1/chat/completions", chat("talk")))
    return wires


async def answers(wires: list[Wire]) -> list[Reply]:
    return list(await asyncio.gather(*(wire.reply() for wire in wires)))


def code(reply: Reply) -> str:
    found: str = json.loads(reply.body)["error"]["code"]
    return found


def figures(here: World) -> Any:
    return here.shared.fleet.endpoints["chat"].variants["default"].figures


@run
async def test_who_reached_nobody_waits_for_whoever_comes() -> None:
    async with world() as here:
        publish(here, *here.engines)
        await here.engines[0].stop(for_now=True)
        wires = await asking(here, 5)
        await until(lambda: queued(here) == 5, "they wait")
        here.engines.append(await Engine().start())
        publish(here, here.engines[1])
        assert [reply.status for reply in await answers(wires)] == [200] * 5 and here.in_flight() == {}
        one = figures(here)
        assert (one.requests, one.queued, one.waited.count, dict(one.refusals)) == (5, 5, 5, {}), "each counts once"
        assert len(here.engines[1].calls) == 5 and one.overhead.count == 0


@run
async def test_who_was_sent_to_one_that_ends_waits_too_and_whoever_is_answered_already_does_not() -> None:
    """The last engine of an endpoint ends under load, and another one comes: only answers that began are cut."""
    began = asyncio.Event()

    async def hangs(call: Call) -> None:
        if b"begin" in call.body:
            await call.send(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf")
            began.set()
        await asyncio.Event().wait()

    async with world(hangs) as here:
        publish(here, *here.engines)
        [cut] = [await here.wire()]
        await cut.send(request("POST", "/v1/chat/completions", chat("begin")))
        await began.wait()
        wires = await asking(here, 4)
        await until(lambda: len(here.engines[0].calls) == 5, "the engine has them")
        await here.engines[0].stop(for_now=True)
        await until(lambda: queued(here) == 4, "they wait")
        assert not (await cut.reply()).whole
        publish(here)
        wires += await asking(here, 2)
        await until(lambda: queued(here) == 6, "and so do those that come now")
        here.engines.append(await Engine().start())
        publish(here, here.engines[1])
        assert [reply.status for reply in await answers(wires)] == [200] * 6
        assert figures(here).requests == 7 and here.shared.counters.truncated == 1


@run
async def test_it_is_tried_again_at_the_same_place_after_a_while() -> None:
    """Somebody starts the instance again where it was, and nobody says so."""
    clock = Clock()
    async with world(shared=Shared(now=clock)) as here:
        publish(here, *here.engines)
        await here.engines[0].stop(for_now=True)
        wires = await asking(here, 2)
        await until(lambda: queued(here) == 2, "they wait")
        failures = sum(here.shared.counters.failures.values())
        for _ in range(3):
            here.router._sweep()
        assert sum(here.shared.counters.failures.values()) == failures, "nobody hammers at it"
        await later(here, clock, 2)
        await until(
            lambda: sum(here.shared.counters.failures.values()) > failures and queued(here) == 2, "it was tried"
        )
        await here.engines[0].start(here.engines[0].port)
        await later(here, clock, 20)
        assert [reply.status for reply in await answers(wires)] == [200, 200]


@run
async def test_it_waits_no_longer_than_others_and_says_why_it_could_not() -> None:
    clock = Clock()
    async with world(shared=Shared(now=clock)) as here:
        publish(here, *here.engines)
        await here.engines[0].stop(for_now=True)
        wires = await asking(here)
        await until(lambda: queued(here) == 1, "it waits")
        await later(here, clock, 31)
        [reply] = await answers(wires)
        assert (reply.status, code(reply)) == (502, "routing:instances:unreachable") and queued(here) == 0
        [wire] = await asking(here)
        await until(lambda: queued(here) == 1, "another one waits")
        publish(here)
        await later(here, clock, 31)
        assert code(await wire.reply()) == "routing:instances:none", "there is none any more"


async def dies(call: Call) -> None:
    call.writer.transport.abort()


@run
async def test_a_request_that_brings_instances_down_is_not_brought_to_all_there_will_be() -> None:
    async with world(dies) as here:
        publish(here, *here.engines)
        [wire] = await asking(here)
        for number in range(2, MOST_CUT + 1):
            await until(lambda: queued(here) == 1, "it waits")
            here.engines.append(await Engine(dies).start())
            publish(here, here.engines[-1])
            await until(lambda n=number: len(here.engines[n - 1].calls) == 1, "it came")  # type: ignore[misc]
        assert code(await wire.reply()) == "routing:instances:unreachable"
        assert [len(one.calls) for one in here.engines] == [1] * MOST_CUT


@run
async def test_nor_to_several_that_come_together() -> None:
    async with world(dies) as here:
        publish(here, *here.engines)
        [wire] = await asking(here)
        await until(lambda: queued(here) == 1, "it waits")
        here.engines += [await Engine(dies).start() for _ in range(MOST_CUT)]
        publish(here, *here.engines[1:])
        assert code(await wire.reply()) == "routing:instances:unreachable"
        assert sum(len(one.calls) for one in here.engines) == MOST_CUT and here.in_flight() == {}


@pytest.mark.parametrize("queue", [{"unreached": False}, {"requests": 0}])
def test_without_a_queue_or_anybody_who_comes_it_is_told_at_once(queue: dict[str, Any]) -> None:
    @run
    async def told() -> None:
        async with world() as here:
            publish(here, *here.engines, **queue)
            await here.engines[0].stop(for_now=True)
            [wire] = await asking(here)
            assert code(await wire.reply()) == "routing:instances:unreachable"

    told()


@run
async def test_whoever_is_there_under_another_configuration_is_asked_at_once() -> None:
    """Addresses that a person gave: nobody waits there, but the one that is gone was replaced by another."""

    async def hangs(call: Call) -> None:
        await asyncio.Event().wait()

    async with world(hangs) as here:
        publish(here, *here.engines, unreached=False, requests=0)
        wires = await asking(here, 2)
        await until(lambda: len(here.engines[0].calls) == 2, "the engine has them")
        here.engines.append(await Engine().start())
        publish(here, here.engines[1], unreached=False, requests=0)
        await here.engines[0].stop(for_now=True)
        assert [reply.status for reply in await answers(wires)] == [200, 200]


@run
async def test_who_leaves_while_it_waits_leaves_nothing_behind() -> None:
    async with world() as here:
        publish(here, *here.engines)
        await here.engines[0].stop(for_now=True)
        [wire] = await asking(here)
        await until(lambda: queued(here) == 1, "it waits")
        wire.leave()
        await until(lambda: queued(here) == 0 and here.shared.counters.disconnected == 1, "it left")
        here.publish(PREFIX, instances=everybody(here))
        assert here.in_flight() == {}


@run
async def test_a_queue_that_is_full_takes_no_more_of_them() -> None:
    async with world() as here:
        publish(here, *here.engines, requests=2)
        await here.engines[0].stop(for_now=True)
        wires = await asking(here, 2)
        await until(lambda: queued(here) == 2, "they wait")
        [wire] = await asking(here)
        assert code(await wire.reply()) == "routing:queue:full"
        here.engines.append(await Engine().start())
        publish(here, here.engines[1])
        assert [reply.status for reply in await answers(wires)] == [200, 200]
