"""Which instance a request reaches, through the whole router: same beginning, same place, whatever changes."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import pytest

from tests.dataplane.engines import Call
from tests.dataplane.world import LEAST, PREFIX, SECRET, Wire, World, chat, every, request, run, until, world

SYSTEM = "You are a helpful assistant. " * 60
OTHERS: list[dict[str, Any]] = [LEAST, {"RoutingStrategy": "RANDOM"}, PREFIX]


def talk(number: int, turns: int = 1) -> bytes:
    messages = [{"role": "system", "content": SYSTEM}]
    for turn in range(turns):
        messages.append({"role": "user", "content": f"document {number} " * 80 + f"turn {turn}"})
    return json.dumps({"model": "chat", "messages": messages}).encode()


async def place(here: World, body: bytes, *headers: str, path: str = "/v1/chat/completions") -> int:
    """The engine that one request reached."""
    before = [len(engine.calls) for engine in here.engines]
    assert (await here.ask("POST", path, body, *headers)).status == 200
    return next(number for number, engine in enumerate(here.engines) if len(engine.calls) > before[number])


@run
async def test_the_same_beginning_goes_to_the_same_instance() -> None:
    async with world(*[_plain] * 5, policy=PREFIX) as here:
        hot = await everybody_s(here)
        here.publish(PREFIX, hot=hot)
        places = [await place(here, talk(number)) for number in range(20)]
        assert [await place(here, talk(number, turns=3)) for number in range(20)] == places
        assert len(set(places)) >= 4, "different documents are spread"


async def _plain(call: Call) -> None:
    await call.answer()


async def everybody_s(here: World) -> list[str]:
    """What the control plane would find hot: the boundaries that all requests share, as the router counted them."""
    sketch = here.shared.fleet.endpoints["chat"].variants["default"].sketch
    sketch.take()
    for number in range(8):
        await here.ask("POST", "/v1/chat/completions", talk(number))
    counted = sketch.take()
    return [f"{digest:016x}" for digest, count in counted.counts.items() if count == 8]


@run
async def test_a_system_prompt_of_everybody_melts_nobody_once_it_is_known_as_hot() -> None:
    async with world(*[_plain] * 5, policy=PREFIX) as here:
        assert len({await place(here, talk(number)) for number in range(20)}) == 1, "the trap"
        hot = await everybody_s(here)
        assert len(hot) == 1
        here.publish(PREFIX, hot=hot)
        assert len({await place(here, talk(number)) for number in range(20)}) >= 4


@run
async def test_two_routers_agree_without_a_word() -> None:
    async with world(*[_plain] * 7, policy=PREFIX) as one, world(*[_plain] * 7, policy=PREFIX) as other:
        bodies = [chat(f"question {number} " * 100) for number in range(40)]
        assert [await place(one, body) for body in bodies] == [await place(other, body) for body in bodies]


@run
async def test_tenants_share_no_place_and_a_key_of_a_client_s_own_is_one() -> None:
    async with world(*[_plain] * 7, policy=PREFIX) as here:
        body = chat("x" * 2000)
        tenants = [f"X-Amzn-SageMaker-Prefix-Aware-Id: t{number}" for number in range(12)]
        assert len({await place(here, body, tenant) for tenant in tenants}) >= 4
        keyed = [await place(here, chat(f"{number}" * 2000, prompt_cache_key="talk-7")) for number in range(12)]
        assert len(set(keyed)) == 1
        raw = [b"\xff" * 1024 + b"%d" % number for number in range(12)]
        assert len({await place(here, body, path="/endpoints/chat/invocations") for body in raw}) == 1


@run
async def test_a_header_is_the_key_where_the_policy_says_so() -> None:
    policy = PREFIX | {"RoutingExtensions": {"key_header": "x-chat", "inspect_bodies": False}}
    async with world(*[_plain] * 7, policy=policy) as here:
        same = {await place(here, chat(f"{number}" * 2000), "X-Chat: 7") for number in range(12)}
        spread = {await place(here, chat("x" * 2000), f"X-Chat: {number}") for number in range(30)}
        assert len(same) == 1 and len(spread) >= 4


@run
async def test_above_the_threshold_the_second_home_takes_over() -> None:
    go = asyncio.Event()

    async def waits(call: Call) -> None:
        await go.wait()
        await call.answer()

    policy = PREFIX | {"PrefixAwareRoutingConfig": {"PrefixLength": 1024, "ConcurrencyThreshold": 2}}
    async with world(waits, waits, waits, policy=policy) as here:
        body = chat("x" * 2000)
        wires = [await here.wire() for _ in range(5)]
        for number, wire in enumerate(wires):
            await wire.send(request("POST", "/v1/chat/completions", body))
            await until(lambda number=number: sum(len(one.calls) for one in here.engines) == number + 1, "it arrived")  # type: ignore[misc]
        assert sorted(here.in_flight().values()) == [1, 2, 2]
        outcomes = Counter[str]()
        for (_, _, outcome, _), count in here.shared.counters.decisions.items():
            outcomes[outcome] += count
        assert outcomes == {"Primary": 2, "Spill": 3}
        go.set()
        assert {(await wire.reply()).status for wire in wires} == {200}
        assert here.in_flight() == {}


async def _streams(call: Call) -> None:
    await call.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    for _ in range(5):
        await call.send(b"5\r\nevent\r\n")
        await asyncio.sleep(0.002)
    await call.send(b"0\r\n\r\n")


@run
async def test_a_hundred_changes_of_strategy_under_two_hundred_requests_a_second_lose_none() -> None:
    """Sent when they are due, whether or not those before were answered (but no more than 64 of them, on a machine that
    stands still for a moment). After every fourth there is a change."""
    rate, changes, for_each = 200.0, 100, 4
    async with world(_streams, _plain, _streams, _plain) as here:
        loop, free, room, busy = asyncio.get_running_loop(), list[Wire](), asyncio.Semaphore(64), 0

        async def one(number: int) -> bytes:
            wire = free.pop() if free else await here.wire()
            reply = await wire.ask("POST", "/v1/chat/completions", chat(f"{number % 9}" * 1500))
            assert reply.status == 200 and reply.whole
            free.append(wire)
            room.release()
            return reply.body

        asked, began = list[asyncio.Task[bytes]](), loop.time()
        for number in range(changes * for_each):
            await asyncio.sleep(max(0.0, began + number / rate - loop.time()))
            await room.acquire()
            asked.append(asyncio.ensure_future(one(number)))
            if number % for_each == for_each - 1:
                busy += bool(here.in_flight())
                here.publish(OTHERS[number // for_each % 3])
        answers = Counter(await asyncio.gather(*asked))
        assert answers.keys() == {b"{}", b"event" * 5} and answers.total() == changes * for_each
        assert sum(len(engine.calls) for engine in here.engines) == changes * for_each, "none was asked for twice"
        assert busy and here.shared.fleet.config.version == changes + 1
        assert here.in_flight() == {} and not here.shared.counters.failures


@run
async def test_instances_come_and_go_under_load_without_losing_a_request() -> None:
    """Out of the configuration first, as the control plane does it; what they have they finish."""
    async with world(_streams, _streams, _streams) as here:
        addresses = [{"id": f"pod-{n}", "address": f"127.0.0.1:{one.port}"} for n, one in enumerate(here.engines)]
        ended = False

        async def client() -> int:
            asked, wire = 0, await here.wire()
            while not ended:
                reply = await wire.ask("POST", "/v1/completions", b"{}")
                assert reply.status == 200 and reply.whole
                asked += 1
            return asked

        async def changes() -> None:
            nonlocal ended
            for number in range(30):
                here.publish(LEAST, instances=addresses[number % 3 :] or addresses)
                await asyncio.sleep(0.02)
                drained = [one | {"draining": number % 2 == 0 and one["id"] == "pod-2"} for one in addresses]
                here.publish(LEAST, instances=drained)
                await asyncio.sleep(0.02)
            ended = True

        *asked, _ = await every([*(client() for _ in range(6)), changes()])
        assert sum(asked) > 30 and here.in_flight() == {}


@run
async def test_who_leaves_is_disconnected_once_it_is_idle() -> None:
    async with world(_plain, _plain) as here:
        await every([here.ask("GET", "/v1/models") for _ in range(20)])
        assert all(engine.open for engine in here.engines)
        here.publish(instances=[{"id": "pod-0", "address": f"127.0.0.1:{here.engines[0].port}"}])
        await until(lambda: here.engines[1].open == 0, "nothing is kept open to it")


@run
async def test_a_stop_lets_everybody_finish_and_takes_nobody_new() -> None:
    go = asyncio.Event()

    async def waits(call: Call) -> None:
        await go.wait()
        await call.answer()

    async with world(waits) as here:
        busy, idle = await here.wire(), await here.wire()
        await busy.send(request("POST", "/v1/completions", b"{}"))
        await until(lambda: here.engines[0].calls and len(here.shared.clients) == 2, "it is under way")
        stopping = asyncio.ensure_future(here.router.stop(grace_seconds=30))
        assert await idle.closed()
        with pytest.raises(OSError):
            await here.wire()
        go.set()
        reply = await busy.reply()
        assert reply.status == 200 and await busy.closed()
        await stopping


@run
async def test_variants_get_their_share_and_can_be_named() -> None:
    async with world(_plain, _plain) as here:
        here.version += 1
        variants = [
            {"name": name, "weight": weight, "policy": LEAST, "instances": [
                {"id": name, "address": f"127.0.0.1:{engine.port}"}]}
            for name, weight, engine in zip(("old", "new"), (0, 1), here.engines, strict=True)
        ]  # fmt: skip
        here.publish_endpoints([{"name": "chat", "secret": SECRET, "variants": variants}])
        for _ in range(20):
            await here.ask("POST", "/v1/completions", b"{}")
        assert [len(engine.calls) for engine in here.engines] == [0, 20]
        await here.ask("POST", "/v1/completions", b"{}", "X-Amzn-SageMaker-Target-Variant: old")
        assert len(here.engines[0].calls) == 1


@run
async def test_an_openai_client_names_an_endpoint_by_its_model() -> None:
    async with world(_plain, _plain) as here:
        here.version += 1
        here.publish_endpoints([
            {"name": name, "secret": SECRET, "models": models, "variants": [
                {"name": "default", "instances": [{"id": name, "address": f"127.0.0.1:{engine.port}"}]}]}
            for name, models, engine in zip(("one", "two"), (["llama"], ["qwen"]), here.engines, strict=True)
        ])  # fmt: skip
        for model, number in (("one", 0), ("llama", 0), ("two", 1), ("qwen", 1)):
            assert await place(here, chat("x", model=model)) == number
        for unknown in (chat("x", model="other"), b""):
            reply = await here.ask("POST", "/v1/chat/completions", unknown)
            assert reply.status == 404 and "one, two" in json.loads(reply.body)["error"]["next_step"]
        for wrong in (chat("x", model=7), b"{"):
            reply = await here.ask("POST", "/v1/chat/completions", wrong)
            assert (reply.status, json.loads(reply.body)["error"]["code"]) == (400, "routing:request:bad-body")


BAD = [
    b"",
    b"{",
    b"[]",
    b'{"version": 9}',
    b'{"version": 9, "endpoints": [{}]}',
    b'{"version": 9, "endpoints": [{"name": "a", "secret": "0011", "variants": []}]}',
    b'{"version": 9, "endpoints": [{"name": "a", "secret": "%b", "variants": [{"name": "v", "policy": '
    b'{"RoutingStrategy": "NONE"}, "instances": []}]}]}' % SECRET.encode(),
    b'{"version": 9, "endpoints": [{"name": "a", "secret": "%b", "variants": [{"name": "v", "instances": '
    b'[{"id": "x", "address": "nowhere"}]}]}]}' % SECRET.encode(),
]


@pytest.mark.parametrize("document", BAD, ids=range(len(BAD)))
def test_a_bad_configuration_changes_nothing(document: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def told() -> None:
        async with world() as here:
            here.config.write_bytes(document)
            here.router.refresh()
            assert (await here.ask("GET", "/v1/models")).status == 200 and here.shared.fleet.config.version == 1
            here.publish()
            assert here.shared.fleet.config.version == 2

    run(told)()
    assert "stays at version 1" in caplog.text and SECRET not in caplog.text


@run
async def test_an_older_configuration_does_not_come_back() -> None:
    async with world(policy=PREFIX) as here:
        here.version = 5
        here.publish(LEAST)
        here.version = 3
        here.publish(PREFIX)
        assert here.shared.fleet.config.version == 6
        assert (await here.ask("GET", "/v1/models")).status == 200
