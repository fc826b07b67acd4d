"""Requests wait for an instance, in bounds, and in their order; who stops waiting leaves nothing behind."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from routing.dataplane import queued as queued_requests
from routing.dataplane.exposing import exposition
from routing.dataplane.router import Shared
from tests.dataplane.engines import Call, plain
from tests.dataplane.test_strict import Clock
from tests.dataplane.world import PREFIX, Wire, World, chat, request, run, until, world

QUEUE = {"requests": 3, "seconds": 300.0}
# Nobody is there: the document says so, and not that nobody answers.
NONE: list[dict[str, Any]] = []


def publish(here: World, instances: list[dict[str, Any]], **more: Any) -> None:
    here.version += 1
    variant = {"name": "default", "policy": more.pop("policy", {}), "instances": instances, "queue": QUEUE, **more}
    here.publish_endpoints([{"name": "chat", "secret": "00" * 16, "variants": [variant]}])


def everybody(here: World) -> list[dict[str, Any]]:
    return [{"id": f"pod-{n}", "address": f"127.0.0.1:{engine.port}"} for n, engine in enumerate(here.engines)]


def queued(here: World) -> int:
    return len(here.shared.fleet.endpoints["chat"].variants["default"].waiting)


async def asking(here: World, count: int, wanted: int) -> list[Wire]:
    """``wanted``: of those that are sent and of those that wait already, so many wait in the end at most."""
    wires, before = [], queued(here)
    for number in range(count):
        wires.append(await here.wire())
        await wires[-1].send(request("POST", "/v1/chat/completions", chat(f"talk {number}")))
        await until(lambda n=before + number + 1: queued(here) == min(n, wanted), "it waits")  # type: ignore[misc]
    return wires


@run
async def test_they_wait_while_nobody_is_there_and_are_served_in_their_order() -> None:
    async with world() as here:
        publish(here, NONE)
        wires = await asking(here, 3, 3)
        assert 'hearth_routing_waiting{endpoint="chat",variant="default"} 3\n' in exposition(here.shared)
        publish(here, everybody(here))
        assert [(await wire.reply()).status for wire in wires] == [200] * 3
        texts = [json.loads(call.body)["messages"][0]["content"] for call in here.engines[0].calls]
        assert sorted(texts) == ["talk 0", "talk 1", "talk 2"] and queued(here) == 0 and here.in_flight() == {}
        figures = here.shared.fleet.endpoints["chat"].variants["default"].figures
        assert (figures.queued, figures.most_queued, figures.waited.count, figures.requests) == (3, 3, 3, 3)


@run
async def test_what_it_waits_is_not_added_by_routing() -> None:
    """Neither for an instance nor for room: the queue has its own figure."""
    clock = Clock()
    release = asyncio.Event()

    async def slowly(call: Call) -> None:
        await release.wait()
        await plain(call)

    full = {**PREFIX, "RoutingExtensions": {"queue_when_saturated": True}}
    full["PrefixAwareRoutingConfig"] = {"PrefixLength": 4096, "ConcurrencyThreshold": 1}
    async with world(slowly, shared=Shared(now=clock)) as here:
        publish(here, NONE)
        [first] = await asking(here, 1, 1)
        clock.now += 11
        publish(here, everybody(here), policy=full)
        await until(lambda: here.engines[0].calls, "it was sent")
        [second] = await asking(here, 1, 1)
        clock.now += 24
        release.set()
        assert [(await wire.reply()).status for wire in (first, second)] == [200, 200]
        figures = here.shared.fleet.endpoints["chat"].variants["default"].figures
        assert figures.overhead.count == figures.waited.count == 2
        assert (figures.overhead.quantile(1.0) or 0) < 0.1 and (figures.waited.quantile(1.0) or 0) > 20


@run
async def test_one_too_many_is_told_to_come_back() -> None:
    async with world() as here:
        publish(here, NONE)
        await asking(here, 3, 3)
        reply = await here.ask("POST", "/v1/chat/completions", chat("one more"))
        assert reply.status == 429 and reply.headers["retry-after"] == "30", "never longer, whatever the policy says"
        assert json.loads(reply.body)["error"]["code"] == "routing:queue:full" and queued(here) == 3


@run
async def test_it_is_told_when_there_will_be_room() -> None:
    """Once the one at the front has waited long enough."""
    clock = Clock()
    async with world(shared=Shared(now=clock)) as here:
        publish(here, NONE, queue={"requests": 2, "seconds": 20.0})
        await asking(here, 1, 1)
        clock.now += 12.5
        await asking(here, 1, 2)
        said = []
        for wait in (0.0, 7.0, 0.5):  # the last at the end to the tick: past it a sweep may come and make room
            clock.now += wait
            reply = await here.ask("POST", "/v1/chat/completions", chat("one more"))
            assert reply.status == 429
            said.append(reply.headers["retry-after"])
        assert said == ["8", "1", "1"]


def test_bodies_that_wait_are_bounded_whatever_the_policy_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queued_requests, "QUEUE_BYTES", 2 * len(chat("talk 0")))
    _bounded()


@run
async def _bounded() -> None:
    async with world() as here:
        publish(here, NONE)
        wires = await asking(here, 2, 2)
        assert (await here.ask("POST", "/v1/chat/completions", b"{")).status == 429 and queued(here) == 2
        wires[0].leave()
        await until(lambda: queued(here) == 1, "it left")
        wires += await asking(here, 1, 2)
        publish(here, everybody(here))
        assert [(await wire.reply()).status for wire in wires[1:]] == [200, 200]
        waiting = here.shared.fleet.endpoints["chat"].variants["default"].waiting
        assert waiting.bytes == 0


@run
async def test_who_leaves_the_queue_makes_room_and_is_asked_of_nobody() -> None:
    async with world() as here:
        publish(here, NONE)
        wires = await asking(here, 3, 3)
        wires[1].leave()
        await until(lambda: queued(here) == 2, "it left")
        publish(here, everybody(here))
        assert [(await wires[n].reply()).status for n in (0, 2)] == [200, 200]
        assert len(here.engines[0].calls) == 2


@run
async def test_who_waited_long_enough_is_told_so() -> None:
    async with world() as here:
        publish(here, NONE)
        [wire] = await asking(here, 1, 1)
        waiting = here.shared.fleet.endpoints["chat"].variants["default"].waiting
        waiting.expire(here.shared.now() + 299)
        assert queued(here) == 1
        waiting.expire(here.shared.now() + 301)
        reply = await wire.reply()
        assert (reply.status, json.loads(reply.body)["error"]["code"]) == (503, "routing:instances:none")
        assert reply.headers["retry-after"] == "2" and queued(here) == 0


@run
async def test_an_endpoint_that_goes_ends_the_waiting() -> None:
    async with world() as here:
        publish(here, NONE)
        [wire] = await asking(here, 1, 1)
        here.version += 1
        here.publish_endpoints([])
        assert (await wire.reply()).status == 503


@run
async def test_without_a_queue_nobody_waits() -> None:
    async with world() as here:
        publish(here, NONE, queue={})
        assert (await here.ask("POST", "/v1/chat/completions", chat("x"))).status == 503


@run
async def test_at_the_threshold_they_wait_for_room_only_where_the_policy_says_so() -> None:
    go = asyncio.Event()

    async def late(call: Call) -> None:
        await go.wait()
        await call.answer()

    config = {**PREFIX, "PrefixAwareRoutingConfig": {"PrefixLength": 1024, "ConcurrencyThreshold": 1}}
    waits = {**config, "RoutingExtensions": {"queue_when_saturated": True}}
    async with world(late) as here:
        publish(here, everybody(here), policy=config)
        first, second = await asking(here, 2, 0)
        await until(lambda: here.in_flight() == {"pod-0": 2}, "both are under way")
        publish(here, everybody(here), policy=waits)
        third = await here.wire()
        await third.send(request("POST", "/v1/chat/completions", chat("x")))
        await until(lambda: queued(here) == 1, "it waits for room")
        assert len(here.engines[0].calls) == 2
        go.set()
        assert [(await wire.reply()).status for wire in (first, second, third)] == [200] * 3
        assert here.in_flight() == {} and queued(here) == 0
