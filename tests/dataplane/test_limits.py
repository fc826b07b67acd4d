"""Nobody waits forever: bodies that an engine cannot digest, engines that say nothing, clients that stop half-way."""

from __future__ import annotations

import asyncio
import json

from routing.dataplane.client import BODY_SECONDS, HEAD_SECONDS
from routing.dataplane.router import Shared
from tests.dataplane.engines import Call
from tests.dataplane.test_strict import Clock, later
from tests.dataplane.world import LEAST, chat, request, run, until, world

LIMITED = {**LEAST, "RoutingExtensions": {"body_bytes": 2000, "first_byte_seconds": 30}}


class Gate:
    """An engine that answers once it may."""

    def __init__(self) -> None:
        self.open = asyncio.Event()

    async def __call__(self, call: Call) -> None:
        await self.open.wait()
        await call.answer(call.body or b"{}")


@run
async def test_a_variant_refuses_bodies_that_its_engine_could_not_digest() -> None:
    async with world(policy=LIMITED) as here:
        wire = await here.wire()
        fits, over = chat("x" * 1900), chat("x" * 2000)
        assert len(fits) <= 2000 < len(over)
        for _ in range(2):  # read, and as a head that is known
            assert (await wire.ask("POST", "/v1/chat/completions", fits)).status == 200
            reply = await wire.ask("POST", "/v1/chat/completions", over)
            assert reply.status == 413 and "2,000" in json.loads(reply.body)["error"]["message"]
        assert (await here.ask("POST", "/endpoints/chat/invocations", b"x" * 2001)).status == 413
        assert len(here.engines[0].calls) == 2
        here.publish(LEAST)
        assert (await wire.ask("POST", "/v1/chat/completions", over)).status == 200, "where nobody set a limit"


@run
async def test_an_instance_that_says_nothing_is_left_and_the_client_told_so() -> None:
    clock, gate = Clock(), Gate()
    async with world(gate, gate, shared=Shared(now=clock), policy=LIMITED) as here:
        wire = await here.wire()
        await wire.send(request("POST", "/v1/completions", b"{}"))
        await until(lambda: any(one.calls for one in here.engines), "an engine has it")
        await later(here, clock, 29)
        assert sum(here.in_flight().values()) == 1
        await later(here, clock, 2)
        reply = await wire.reply()
        error = json.loads(reply.body)["error"]
        assert (reply.status, error["code"]) == (504, "routing:instances:too-slow") and "30 s" in error["message"]
        assert sum(len(one.calls) for one in here.engines) == 1, "nobody else is asked for the same"
        asked = next(one for one in here.engines if one.calls)
        await asked.gone.wait()
        assert here.in_flight() == {} and not here.shared.counters.failures, "slow is not ill"
        gate.open.set()
        assert (await wire.ask("POST", "/v1/completions", b"{}")).status == 200, "and the connection goes on"


@run
async def test_a_stream_that_began_may_take_its_time() -> None:
    clock, go = Clock(), asyncio.Event()

    async def streams(call: Call) -> None:
        await call.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        await go.wait()
        await call.send(b"3\r\nend\r\n0\r\n\r\n")

    async with world(streams, shared=Shared(now=clock), policy=LIMITED) as here:
        wire = await here.wire()
        await wire.send(request("POST", "/v1/completions", b"{}"))
        await wire.reader.readuntil(b"\r\n\r\n")
        await later(here, clock, 3600)
        go.set()
        assert await wire.reader.readuntil(b"0\r\n\r\n") == b"3\r\nend\r\n0\r\n\r\n"


@run
async def test_the_time_in_the_queue_is_not_the_instance_s() -> None:
    clock, gate = Clock(), Gate()
    async with world(gate, shared=Shared(now=clock)) as here:
        queue = {"requests": 8, "seconds": 100}
        here.publish(LIMITED, instances=[{"id": "pod-0", "address": "127.0.0.1:9", "draining": True}], queue=queue)
        wire = await here.wire()
        await wire.send(request("POST", "/v1/completions", b"{}"))
        variant = here.shared.fleet.endpoints["chat"].variants["default"]
        await until(lambda: len(variant.waiting) == 1, "it waits")
        await later(here, clock, 50)
        here.publish(LIMITED, queue=queue)
        await until(lambda: here.engines[0].calls, "the engine has it")
        await later(here, clock, 29)
        gate.open.set()
        assert (await wire.reply()).status == 200


@run
async def test_a_client_that_asks_before_it_sends_is_told_to_once_it_is_its_turn() -> None:
    gate = Gate()
    async with world(gate) as here:
        wire = await here.wire()
        head, _, body = request("POST", "/v1/completions", b"second", "Expect: 100-continue").partition(b"\r\n\r\n")
        await wire.send(request("POST", "/v1/completions", b"first") + head + b"\r\n\r\n")
        await until(lambda: any(client._owes_continue for client in here.shared.clients), "both are there")
        gate.open.set()
        assert (await wire.reply()).body == b"first"
        assert (await wire.reply()).status == 100
        await wire.send(body)
        assert (await wire.reply()).body == b"second"


@run
async def test_who_sends_without_having_been_told_is_not_told_any_more() -> None:
    gate = Gate()
    async with world(gate) as here:
        wire = await here.wire()
        two = request("POST", "/v1/completions", b"second", "Expect: 100-continue")
        await wire.send(request("POST", "/v1/completions", b"first") + two[:-3])
        await until(lambda: any(client._body for client in here.shared.clients), "it began to send")
        gate.open.set()
        assert (await wire.reply()).body == b"first"
        await wire.send(two[-3:])
        reply = await wire.reply()
        assert (reply.status, reply.body) == (200, b"second")


@run
async def test_a_request_that_stalls_behind_another_does_not_cost_the_other_its_answer() -> None:
    for stalled, seconds in ((b"POST /v1/comp", HEAD_SECONDS), (None, BODY_SECONDS)):
        clock, gate = Clock(), Gate()
        async with world(gate, shared=Shared(now=clock)) as here:
            wire = await here.wire()
            part = stalled or request("POST", "/v1/completions", b"second")[:-2]
            await wire.send(request("POST", "/v1/completions", b"first"))
            await until(lambda: here.engines[0].calls, "the engine has it")
            await wire.send(part)
            await until(lambda: any(client._began for client in here.shared.clients), "the second began")
            await later(here, clock, seconds + 1)
            gate.open.set()
            assert (await wire.reply()).body == b"first"
            assert (await wire.reply()).status == 408 and await wire.closed()
            assert len(here.engines[0].calls) == 1
