"""The queue when everything moves: its limits, its policy, its instances, its clients, and the router itself."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from routing.dataplane.fleet import Lease, Variant
from tests.dataplane.engines import Call
from tests.dataplane.test_waiting import NONE, asking, everybody, publish, queued
from tests.dataplane.world import PREFIX, World, chat, request, run, until, world

PATH = "/v1/chat/completions"
ONE = {
    "RoutingStrategy": "PREFIX_AWARE",
    "PrefixAwareRoutingConfig": {"PrefixLength": 1024, "ConcurrencyThreshold": 1},
    "RoutingExtensions": {"queue_when_saturated": True},
}


def variant_of(here: World) -> Variant:
    return here.shared.fleet.endpoints["chat"].variants["default"]


def full(here: World) -> list[Lease]:
    """Every instance at its threshold, without a request."""
    return [variant_of(here).lease(name) for name in variant_of(here).instances]


def texts(here: World) -> list[str]:
    return [json.loads(call.body)["messages"][0]["content"] for engine in here.engines for call in engine.calls]


@run
async def test_room_belongs_to_those_that_wait_and_not_to_whoever_comes_in_that_moment() -> None:
    async with world() as here:
        publish(here, everybody(here), policy=ONE)
        [lease] = full(here)
        [first] = await asking(here, 1, 1)
        late = await here.wire()
        await until(lambda: len(here.shared.clients) == 2, "both are connected")
        [client] = [one for one in here.shared.clients if one._exchange is None]
        lease.release()
        client.data_received(request("POST", PATH, chat("late")))
        assert queued(here) == 1 and here.in_flight() == {"pod-0": 1}
        assert [(await wire.reply()).status for wire in (first, late)] == [200, 200]
        assert texts(here) == ["talk 0", "late"] and queued(here) == 0


@run
async def test_who_comes_when_the_queue_is_full_but_there_is_room_again_is_not_refused() -> None:
    async with world() as here:
        publish(here, NONE)
        wires = await asking(here, 3, 3)
        late = await here.wire()
        await until(lambda: len(here.shared.clients) == 4, "all are connected")
        [client] = [one for one in here.shared.clients if one._exchange is None]
        publish(here, everybody(here))
        client.data_received(request("POST", PATH, chat("late")))
        assert [(await wire.reply()).status for wire in (*wires, late)] == [200] * 4


@run
async def test_a_request_that_is_decided_again_and_again_counts_once_among_the_beginnings() -> None:
    """Else whoever waits at the front for long would look like everybody, and its beginning would become hot."""
    async with world() as here:
        publish(here, everybody(here), policy=ONE)
        leases = full(here)
        await asking(here, 1, 1)
        waiting = variant_of(here).waiting
        for _ in range(50):
            waiting.look()
        assert queued(here) == 1
        counted = variant_of(here).sketch.take()
        assert counted.requests == 1 and set(counted.counts.values()) == {1}
        for lease in leases:
            lease.release()
        await until(lambda: queued(here) == 0, "it goes")


@run
async def test_who_waits_is_placed_under_the_policy_of_now() -> None:
    """The same request, asked for later without having waited, goes to the same place: routers agree on it."""
    async with world(*[_plain] * 5) as here:
        publish(here, NONE, policy={"RoutingStrategy": "LEAST_OUTSTANDING_REQUESTS"})
        wires = await asking(here, 3, 3)
        publish(here, everybody(here), policy=PREFIX)
        for wire in wires:
            assert (await wire.reply()).status == 200
        figures = variant_of(here).figures
        assert figures.outcomes == {"Primary": 3}
        before = [len(engine.calls) for engine in here.engines]
        for number in range(3):
            await here.ask("POST", PATH, chat(f"talk {number}"))
        after = [len(engine.calls) for engine in here.engines]
        assert after == [2 * count for count in before]


async def _plain(call: Call) -> None:
    await call.answer()


@run
async def test_an_instance_that_appears_and_goes_again_loses_nobody_who_waits() -> None:
    async with world() as here:
        publish(here, NONE)
        wires = await asking(here, 3, 3)
        # Both before the loop looks: what counts is what is there when it does.
        publish(here, everybody(here))
        publish(here, NONE)
        await asyncio.sleep(0)
        assert queued(here) == 3 and not here.engines[0].calls
        publish(here, [{**one, "draining": True} for one in everybody(here)])
        await asyncio.sleep(0)
        assert queued(here) == 3, "who drains takes nobody"
        publish(here, [{**one, "weight": 0} for one in everybody(here)])
        await asyncio.sleep(0)
        assert queued(here) == 3, "nor who has no weight"
        publish(here, everybody(here))
        assert [(await wire.reply()).status for wire in wires] == [200] * 3


@run
async def test_a_queue_that_is_taken_away_or_made_smaller() -> None:
    async with world() as here:
        publish(here, NONE)
        wires = await asking(here, 3, 3)
        publish(here, NONE, queue={"requests": 1, "seconds": 300.0})
        await asyncio.sleep(0)
        assert queued(here) == 3, "who waits already may"
        assert (await here.ask("POST", PATH, chat("x"))).status == 429
        publish(here, NONE, queue={"requests": 0})
        replies = [await wire.reply() for wire in wires]
        assert [reply.status for reply in replies] == [503] * 3 and queued(here) == 0
        assert {json.loads(reply.body)["error"]["code"] for reply in replies} == {"routing:instances:none"}


@pytest.mark.parametrize("how", ["another variant", "another endpoint", "nothing"])
def test_a_variant_that_goes_tells_all_that_wait_whatever_is_there_instead(how: str) -> None:
    @run
    async def test() -> None:
        async with world() as here:
            publish(here, NONE)
            wires = await asking(here, 3, 3)
            waiting = variant_of(here).waiting
            here.version += 1
            variant = {"name": "other" if how == "another variant" else "default", "instances": everybody(here)}
            name = "talk" if how == "another endpoint" else "chat"
            there = [] if how == "nothing" else [{"name": name, "secret": "00" * 16, "variants": [variant]}]
            here.publish_endpoints(there)
            assert [(await wire.reply()).status for wire in wires] == [503] * 3
            assert len(waiting) == 0 and not here.engines[0].calls

    test()


@run
async def test_head_waits_and_gets_no_body_with_either_answer() -> None:
    async with world() as here:
        publish(here, NONE, queue={"requests": 2, "seconds": 300.0})
        wires = [await here.wire() for _ in range(2)]
        for number, wire in enumerate(wires):
            await wire.send(request("HEAD", "/endpoints/chat/health"))
            await until(lambda number=number: queued(here) == number + 1, "it waits")  # type: ignore[misc]
        full = await here.wire()
        reply = await full.ask("HEAD", "/endpoints/chat/health")
        assert reply.status == 429 and reply.headers["retry-after"] == "30" and int(reply.headers["content-length"]) > 0
        wires[0].leave()
        await until(lambda: queued(here) == 1, "one left")
        publish(here, everybody(here))
        assert (await wires[1].reply(head=True)).status == 200
        for wire in (wires[1], full):
            assert (await wire.ask("GET", "/endpoints/chat/health")).body == b"{}", "the connection goes on"
        assert here.engines[0].calls[0].line == b"HEAD /health HTTP/1.1"


@run
async def test_who_asks_before_it_sends_is_told_to_and_waits_then() -> None:
    async with world() as here:
        publish(here, NONE)
        wire, body = await here.wire(), chat("x")
        head = [f"POST {PATH} HTTP/1.1", "Host: r", f"Content-Length: {len(body)}", "Expect: 100-continue"]
        await wire.send("\r\n".join(head).encode() + b"\r\n\r\n")
        assert (await wire.reply()).status == 100 and queued(here) == 0, "nothing is decided before all is here"
        await wire.send(body)
        await until(lambda: queued(here) == 1, "it waits")
        publish(here, everybody(here))
        assert (await wire.reply()).status == 200
        [call] = here.engines[0].calls
        assert call.body == body and call.header("expect") == []


@run
async def test_requests_sent_ahead_wait_behind_the_first_and_take_one_place() -> None:
    async with world() as here:
        publish(here, NONE)
        wire = await here.wire()
        await wire.send(b"".join(request("POST", PATH, chat(f"talk {number}")) for number in range(40)))
        await until(lambda: queued(here) == 1, "it waits")
        assert (await here.ask("GET", "/nowhere")).status == 404, "others are answered"
        publish(here, everybody(here))
        assert [(await wire.reply()).status for _ in range(40)] == [200] * 40
        assert texts(here) == [f"talk {number}" for number in range(40)]


@run
async def test_who_sent_ahead_and_leaves_takes_all_of_it_along() -> None:
    async with world() as here:
        publish(here, NONE)
        wire = await here.wire()
        await wire.send(request("POST", PATH, chat("one")) * 5)
        await until(lambda: queued(here) == 1, "it waits")
        wire.leave()
        await until(lambda: queued(here) == 0 and not here.shared.clients, "it is gone")
        publish(here, everybody(here))
        assert (await here.ask("POST", PATH, chat("after"))).status == 200 and texts(here) == ["after"]
        assert variant_of(here).figures.disconnected == 1 and variant_of(here).figures.requests == 1


@run
async def test_a_router_that_is_stopped_tells_those_that_still_wait() -> None:
    async with world() as here:
        publish(here, NONE)
        wires = await asking(here, 3, 3)
        await here.router.stop(grace_seconds=0)
        replies = [await wire.reply() for wire in wires]
        assert [reply.status for reply in replies] == [503] * 3
        assert all([await wire.closed() for wire in wires])


@run
async def test_places_of_those_that_were_refused_timed_out_or_left_are_free_again() -> None:
    async with world() as here:
        publish(here, NONE)
        for _ in range(5):
            wires = await asking(here, 3, 3)
            assert (await here.ask("POST", PATH, chat("x"))).status == 429
            wires[0].leave()
            await until(lambda: queued(here) == 2, "one left")
            variant_of(here).waiting.expire(here.shared.now() + 301)
            assert [(await wire.reply()).status for wire in wires[1:]] == [503, 503] and queued(here) == 0
            assert (await wires[1].ask("GET", "/nowhere")).status == 404, "its connection goes on"
        figures = variant_of(here).figures
        assert (figures.queued, figures.most_queued, figures.disconnected, figures.waited.count) == (15, 3, 5, 0)
        assert figures.refusals == {"routing:queue:full": 5, "routing:instances:none": 10}


@run
async def test_the_one_whose_turn_it_is_may_fail_without_those_behind_it() -> None:
    async with world() as here:
        publish(here, NONE)
        wires = await asking(here, 2, 2)
        publish(here, [{"id": "dead", "address": "127.0.0.1:9"}])
        assert [(await wire.reply()).status for wire in wires] == [502, 502]
        assert here.in_flight() == {} and queued(here) == 0


def test_figures_of_the_queue_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from routing.dataplane.telling import Teller
    from routing.domain.told import read_told

    @run
    async def test() -> None:
        async with world() as here:
            publish(here, NONE)
            await asking(here, 2, 2)
            made: dict[str, Any] = json.loads(Teller(here.shared.fleet).message(0) or b"")
            [one] = read_told(made).variants
            assert (one.figures.queued, one.figures.most_queued, one.figures.requests) == (2, 2, 0)

    test()
