"""Clients leave, engines die, nobody is there: no request is lost that need not be, and nothing stays counted."""

from __future__ import annotations

import asyncio
import json

import pytest

from routing.dataplane.exchange import ATTEMPTS
from routing.dataplane.router import Shared
from tests.dataplane.engines import Call, Script
from tests.dataplane.leaving import leave_at_random, mixed
from tests.dataplane.world import LEAST, Reply, chat, request, run, until, world


async def thinks(call: Call) -> None:
    await asyncio.Event().wait()


async def streams(call: Call) -> None:
    await call.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    while True:
        await call.send(b"5\r\nevent\r\n")
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("script", [thinks, streams], ids=lambda one: one.__name__)
def test_the_engine_is_told_at_once_when_the_client_leaves(script: Script) -> None:
    async def told() -> None:
        async with world(script) as here:
            wire = await here.wire()
            await wire.send(request("POST", "/v1/completions", b"{}"))
            await until(lambda: here.engines[0].calls, "the engine has it")
            assert here.in_flight() == {"pod-0": 1}
            wire.leave()
            await here.engines[0].gone.wait()
            await until(lambda: here.in_flight() == {}, "it no longer counts")
            assert here.shared.counters.disconnected == 1

    run(told)()


@run
async def test_nothing_is_in_flight_at_rest_whenever_clients_leave() -> None:
    """A thousand clients, of which most leave somewhere; the bench has ten times as many."""
    async with world(mixed, mixed, mixed) as here:
        assert 100 < await leave_at_random(here, 1000) < 300
        assert here.shared.counters.disconnected > 0


@run
async def test_a_dead_instance_costs_nobody_a_request() -> None:
    async with world(mixed, mixed, mixed, shared=Shared(now=lambda: 1000.0)) as here:
        await here.engines[1].stop(for_now=True)
        for _ in range(100):
            assert (await here.ask("POST", "/v1/completions", b"x")).body == b"x" * 20
        failures = here.shared.counters.failures
        assert failures[("chat", "default", "pod-1", "Connect")] == 2, "then it was left out"
        await here.engines[1].start(here.engines[1].port)


@run
async def test_it_is_taken_back_when_it_is_well_again() -> None:
    async with world() as here:
        port = here.engines[0].port
        await here.engines[0].stop(for_now=True)
        replies = [await here.ask("GET", "/v1/models") for _ in range(4)]
        assert {reply.status for reply in replies} == {502}
        assert json.loads(replies[0].body)["error"]["code"] == "routing:instances:unreachable"
        assert replies[0].headers["retry-after"] == "1"
        await here.engines[0].start(port)
        assert (await here.ask("GET", "/v1/models")).status == 200, "the last one is tried even so"


@run
async def test_a_connection_that_died_of_age_is_no_failure() -> None:
    async def once(call: Call) -> None:
        await call.answer()
        call.writer.transport.abort()  # without having said so

    async with world(once) as here:
        wire = await here.wire()
        for _ in range(10):
            assert (await wire.ask("POST", "/v1/completions", b"{}")).status == 200
        assert not here.shared.counters.failures


BROKEN: dict[str, bytes] = {
    "nothing": b"",
    "half a head": b"HTTP/1.1 200 OK\r\ncontent-le",
    "no HTTP": b"SSH-2.0-OpenSSH\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nxx",
    "another protocol": b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
}


@pytest.mark.parametrize("case", BROKEN)
def test_an_answer_that_never_began_is_asked_for_elsewhere(case: str) -> None:
    async def breaks(call: Call) -> None:
        await call.send(BROKEN[case])
        call.writer.transport.abort() if not BROKEN[case] else call.writer.close()

    async def told() -> None:
        async with world(breaks, mixed) as here:
            for _ in range(60):
                assert (await here.ask("POST", "/v1/completions", b"x")).body == b"x" * 20
            assert here.engines[0].calls and here.in_flight() == {}

    run(told)()


@pytest.mark.parametrize("status", [502, 503, 504])
def test_an_instance_that_cannot_now_is_not_the_last_word(status: int) -> None:
    async def busy(call: Call) -> None:
        await call.answer(b"busy", b"%d Busy" % status, b"retry-after: 7")

    async def told() -> None:
        async with world(busy, mixed) as here:
            assert {(await here.ask("POST", "/v1/completions", b"x")).body for _ in range(6)} == {b"x" * 20}
        async with world(busy, busy) as here:
            reply = await here.ask("POST", "/v1/completions", b"x")
            assert (reply.status, reply.body, reply.headers["retry-after"]) == (status, b"busy", "7")
            assert here.in_flight() == {}

    run(told)()


@run
async def test_it_gives_up_after_a_few() -> None:
    async def busy(call: Call) -> None:
        await call.answer(b"", b"503 Busy")

    async with world(*[busy] * 6) as here:
        await here.ask("POST", "/v1/completions", b"x")
        assert sum(len(engine.calls) for engine in here.engines) == ATTEMPTS


@pytest.mark.parametrize("status", [b"400 Bad", b"401 No", b"404 Not", b"422 Odd", b"429 Slow"])
def test_what_a_client_did_wrong_never_counts_against_an_instance(status: bytes) -> None:
    async def told() -> None:
        async with world(lambda call: call.answer(b"no", status)) as here:
            wire = await here.wire()
            for _ in range(30):
                assert (await wire.ask("POST", "/v1/completions", b"x")).status == int(status[:3])
            assert not here.shared.counters.failures and len(here.engines[0].calls) == 30

    run(told)()


@run
async def test_a_stream_that_breaks_off_looks_broken_off() -> None:
    """Never as if it had ended well, and never begun anew: the client has a part of it."""

    async def breaks(call: Call) -> None:
        await call.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n")
        call.writer.close()

    async def short(call: Call) -> None:
        await call.send(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhello")
        call.writer.close()

    for script in (breaks, short):
        async with world(script, mixed, policy=LEAST) as here:
            replies: list[Reply] = []
            for _ in range(40):
                replies.append(await here.ask("POST", "/v1/completions", b"x"))
            assert any(not reply.whole for reply in replies)
            assert sum(len(engine.calls) for engine in here.engines) == len(replies), "nobody was asked twice"
            assert here.shared.counters.truncated == sum(not reply.whole for reply in replies)
            assert here.in_flight() == {}


@run
async def test_an_answer_that_is_broken_off_was_left_by_nobody() -> None:
    """One outcome for each request, with what it sent ahead."""

    async def cut(call: Call) -> None:
        await call.send(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf")
        call.writer.transport.abort()

    async with world(cut) as here:
        wire = await here.wire()
        await wire.send(request("POST", "/v1/completions", b"{}") * 2)
        assert not (await wire.reply()).whole
        await until(lambda: not here.shared.clients, "it is seen off")
        figures = here.shared.fleet.endpoints["chat"].variants["default"].figures
        assert (here.shared.counters.truncated, here.shared.counters.disconnected) == (1, 0)
        assert (figures.truncated, figures.disconnected) == (1, 0) and here.in_flight() == {}


@run
async def test_more_than_was_asked_for_is_nobody_s_answer() -> None:
    """A second answer behind the first must not meet the next request."""

    async def twice(call: Call) -> None:
        await call.send(
            b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n1HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil"
        )

    async with world(twice) as here:
        wire = await here.wire()
        assert {(await wire.ask("POST", "/v1/completions", b"{}")).body for _ in range(10)} == {b"1"}


@run
async def test_nobody_there_is_said_with_when_to_ask_again() -> None:
    async with world() as here:
        here.publish(instances=[{"id": "a", "address": "127.0.0.1:9", "draining": True}])
        reply = await here.ask("POST", "/v1/completions", chat("x"))
        assert (reply.status, reply.headers["retry-after"]) == (503, "2")
        assert json.loads(reply.body)["error"]["code"] == "routing:instances:none"


ADDRESSES = [
    ("/", 404, "unknown-path"),
    ("/v2/chat", 404, "unknown-path"),
    ("/endpoints/chat", 404, "no-path"),
    ("/endpoints/other/invocations", 404, "unknown-endpoint"),
    ("/endpoints/%63hat/invocations", 200, ""),
    ("/endpoints/chat/invocations", 200, ""),
    ("/endpoints/chat/invocations-response-stream", 200, ""),
    ("/endpoints/chat/v1/models", 200, ""),
    ("/v1/anything/else", 200, ""),
    ("/v1/any..thing/.else/...?x=/../y", 200, ""),
    ("/endpoints/chat/invocations/../../../v1/x", 400, "bad-path"),
    ("/endpoints/../v1/models", 400, "bad-path"),
    ("/v1/models/..", 400, "bad-path"),
    ("/v1/%2E./models", 400, "bad-path"),
    ("/v1/a%2f..%2fb", 400, "bad-path"),
    ("/v1/./models", 400, "bad-path"),
    ("http://router/v1/../models", 400, "bad-path"),
]


@pytest.mark.parametrize(("path", "status", "code"), ADDRESSES)
def test_every_address_is_served_or_explained(path: str, status: int, code: str) -> None:
    async def told() -> None:
        async with world() as here:
            reply = await here.ask("POST", path, b"{}")
            assert reply.status == status
            if code:
                error = json.loads(reply.body)["error"]
                assert error["code"] == f"routing:request:{code}" and error["next_step"]

    run(told)()


@pytest.mark.parametrize(
    ("header", "code"),
    [
        ("X-Amzn-SageMaker-Prefix-Aware-Id: " + "x" * 65, "bad-tenant"),
        ("X-Amzn-SageMaker-Prefix-Aware-Id: \xe9", "bad-tenant"),
        ("X-Amzn-SageMaker-Target-Variant: other", "unknown-variant"),
    ],
)
def test_headers_that_the_router_reads_are_checked(header: str, code: str) -> None:
    async def told() -> None:
        async with world() as here:
            reply = await here.ask("POST", "/endpoints/chat/invocations", b"{}", header)
            assert reply.status == 400 and json.loads(reply.body)["error"]["code"].endswith(code)
            assert not here.engines[0].calls

    run(told)()
