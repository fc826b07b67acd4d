"""What a router counts and tells: numbers, once, and not a word of what was asked."""

from __future__ import annotations

import asyncio
import json
import ssl
from typing import Any

import pytest
import redis.asyncio as redis

from routing.dataplane import exchange, telling
from routing.dataplane.config import InstanceConfig
from routing.dataplane.router import Shared
from routing.dataplane.telling import TELL_SECONDS, Ear, Teller
from routing.dataplane.upstream import Upstream, connected
from routing.domain.dialects_usage import TAIL_BYTES, TokenUse
from routing.domain.told import read_told
from tests.dataplane.engines import Call
from tests.dataplane.test_strict import Clock
from tests.dataplane.world import PREFIX, WAIT_SECONDS, World, chat, run, until, world

JSON, STREAM = [(b"Content-Type", b"application/json; charset=utf-8")], [(b"content-type", b"text/event-stream")]
USE = {"usage": {"prompt_tokens": 100, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 75}}}
SECRET_WORDS = "the eagle lands at midnight"


def use_of(headers: list[tuple[bytes, bytes]], *parts: bytes, status: int = 200) -> TokenUse | None:
    ear = Ear.of(status, headers)
    if ear is None:
        return None
    for part in parts:
        ear.hear(part)
    return ear.use()


@pytest.mark.parametrize(
    ("headers", "parts", "cached"),
    [
        (JSON, [json.dumps(USE).encode()], 75),
        (JSON, [json.dumps(USE).encode()[:30], json.dumps(USE).encode()[30:]], 75),
        (JSON, [json.dumps({**USE, "text": "x" * 3 * TAIL_BYTES}).encode()], None),
        (JSON, [b"x" * TAIL_BYTES * 3, json.dumps(USE).encode()], None),
        (STREAM, [b"data: {}\n\n", b"data: " + json.dumps(USE).encode() + b"\n\n", b"data: [DONE]\n\n"], 75),
        (STREAM, [b'data: {"x":1}\n\n' * 9000, b"data: " + json.dumps(USE).encode() + b"\n\n"], 75),
        ([*JSON, (b"content-encoding", b"gzip")], [json.dumps(USE).encode()], None),
        ([(b"content-type", b"text/plain")], [json.dumps(USE).encode()], None),
        ([], [json.dumps(USE).encode()], None),
        (JSON, [b"{"], None),
        (JSON, [], None),
    ],
)
def test_it_hears_what_came_from_the_cache(
    headers: list[tuple[bytes, bytes]], parts: list[bytes], cached: int | None
) -> None:
    found = use_of(headers, *parts)
    assert (found.cached_tokens if found else None) == cached


def test_an_error_says_nothing_of_a_cache() -> None:
    assert use_of(JSON, json.dumps(USE).encode(), status=500) is None


def test_it_holds_no_more_than_an_end_of_what_it_hears() -> None:
    for headers in (JSON, STREAM):
        ear = Ear.of(200, headers)
        assert ear is not None
        for _ in range(1000):
            ear.hear(b"x" * 1000)
            assert sum(map(len, ear._parts)) <= 2 * TAIL_BYTES


async def tells(call: Call) -> None:
    await call.answer(json.dumps(USE).encode(), b"200 OK", b"content-type: application/json")


def teller(here: World) -> Teller:
    return Teller(here.shared.fleet, host="h", address="10.0.0.9:80", wall=lambda: 1000.0)


def document(found: bytes | None) -> dict[str, Any]:
    assert found is not None
    made: dict[str, Any] = json.loads(found)
    return made


@run
async def test_it_counts_each_request_with_its_outcome_instance_times_and_tokens() -> None:
    async with world(tells, tells, policy=PREFIX) as here:
        wire = await here.wire()
        for _ in range(3):
            await wire.ask("POST", "/v1/chat/completions", chat(SECRET_WORDS * 100))
        told = read_told(document(teller(here).message(0)))
        [one] = told.variants
        figures = one.figures
        assert (one.endpoint, one.variant, figures.requests, figures.told) == ("chat", "default", 3, 3)
        assert figures.hit_rate == 0.75 and figures.outcomes == {"Primary": 3} and len(figures.instances) == 1
        assert figures.answers == {"2xx": 3} and figures.ttft["Primary"].count == 3
        assert figures.overhead.count == 3, "of the first, too, which waited for a connection"
        assert figures.most_in_flight == 1 and one.counted.requests == 3 and len(one.counted.counts) >= 2


@run
async def test_what_connecting_takes_is_not_added_by_routing() -> None:
    clock = Clock()

    async def slowly(config: InstanceConfig, context: ssl.SSLContext | None) -> Upstream:
        clock.now += 1.5
        return await connected(config, context)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(exchange, "connected", slowly)
        async with world(tells, shared=Shared(now=clock)) as here:
            await here.ask("POST", "/v1/chat/completions", chat(SECRET_WORDS))
            [one] = read_told(document(teller(here).message(0))).variants
        assert one.figures.overhead.count == 1 and (one.figures.overhead.quantile(1.0) or 0) < 0.1


@run
async def test_time_at_an_instance_that_was_not_reached_is_not_added_by_routing() -> None:
    clock, places = Clock(), list[int]()

    async def slowly(config: InstanceConfig, context: ssl.SSLContext | None) -> Upstream:
        places.append(config.port)
        if len(places) == 1:
            clock.now += 5
            raise ConnectionRefusedError
        return await connected(config, context)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(exchange, "connected", slowly)
        async with world(tells, tells, policy=PREFIX, shared=Shared(now=clock)) as here:
            reply = await here.ask("POST", "/v1/chat/completions", chat(SECRET_WORDS))
            [one] = read_told(document(teller(here).message(0))).variants
        assert reply.status == 200 and len(places) == 2 and one.figures.failures == {"Connect": 1}
        assert one.figures.overhead.count == 0


@run
async def test_no_word_of_a_request_is_told() -> None:
    async with world(tells, policy=PREFIX) as here:
        for number in range(3):
            body = chat(SECRET_WORDS * 60, prompt_cache_key="key-of-mine" if number else "", user="mallory")
            await here.ask("POST", "/v1/chat/completions", body, "X-Amzn-SageMaker-Prefix-Aware-Id: tenant-9")
        said = (teller(here).message(0) or b"").decode()
        assert '"requests": 3' in said
        for word in (*SECRET_WORDS.split(), "key-of-mine", "tenant-9", "mallory", "llama"):
            assert f" {word} " not in said and f'"{word}"' not in said, word


@run
async def test_it_sends_a_message_until_it_arrived_and_counts_on_meanwhile() -> None:
    async with world() as here:
        await here.ask("POST", "/v1/completions", b"{}")
        one = teller(here)
        first = one.message(0)
        await here.ask("POST", "/v1/completions", b"{}")
        assert one.message(1) == one.message(100) == first
        one.arrived()
        assert one.message(1) is None, "not due yet"
        second = document(one.message(TELL_SECONDS))
        assert second["number"] == document(first)["number"] + 1
        assert [v["figures"]["requests"] for v in second["variants"]] == [1]


@run
async def test_a_quiet_router_says_that_it_is_there() -> None:
    async with world() as here:
        told = read_told(document(teller(here).message(0)))
        assert told.variants == () and told.config_version == here.version and told.address == "10.0.0.9:80"


@run
async def test_counts_outlive_a_new_configuration() -> None:
    async with world() as here:
        await here.ask("POST", "/v1/completions", b"{}")
        here.publish(PREFIX)
        await here.ask("POST", "/v1/completions", b'{"prompt": "x"}')
        [one] = read_told(document(teller(here).message(0))).variants
        assert one.figures.requests == 2


@run
async def test_a_request_that_outlives_a_configuration_and_a_message_is_told() -> None:
    go = asyncio.Event()

    async def late(call: Call) -> None:
        await go.wait()
        await tells(call)

    async with world(late) as here:
        wire, one = await here.wire(), teller(here)
        body = chat("x")
        await wire.send(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: r\r\ncontent-length: %d\r\n\r\n" % len(body) + body
        )
        await until(lambda: here.in_flight(), "it is under way")
        here.publish(PREFIX)
        one.message(0)
        one.arrived()
        go.set()
        assert (await wire.reply()).status == 200
        [told] = read_told(document(one.message(TELL_SECONDS))).variants
        assert told.figures.told == 1 and told.figures.ttft["LeastBusy"].count == 1 and not told.figures.requests


@run
async def test_who_leaves_and_who_is_refused_is_counted() -> None:
    async def never(call: Call) -> None:
        await asyncio.sleep(WAIT_SECONDS)

    async with world(never) as here:
        wire = await here.wire()
        body = chat("x")
        await wire.send(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: r\r\ncontent-length: %d\r\n\r\n" % len(body) + body
        )
        await until(lambda: here.in_flight(), "it is under way")
        message = teller(here).message(0)
        assert read_told(document(message)).in_flight == {"pod-0": 1}
        wire.leave()
        await until(lambda: not here.in_flight(), "it is gone")
        here.publish(instances=[{"id": "far", "address": "127.0.0.1:9", "draining": True}])
        assert (await here.ask("POST", "/v1/chat/completions", chat("x"))).status == 503
        [one] = read_told(document(teller(here).message(0))).variants
        assert one.figures.disconnected == 1 and one.figures.refusals == {"routing:instances:none": 1}


def test_what_it_tells_arrives_in_redis(valkey_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telling, "STREAM_KEY", "test:telling")

    async def test() -> None:
        async with world() as here:
            connection = redis.Redis.from_url(valkey_url)
            await connection.delete("test:telling")
            one = teller(here)
            await one.tell(connection)
            await one.tell(connection)
            found = await connection.xrange("test:telling")
            assert found
            [(_, fields)] = found
            assert read_told(json.loads(dict(fields or {})[b"m"])).router == one.name
            await connection.delete("test:telling")
            await connection.aclose()

    asyncio.run(asyncio.wait_for(test(), WAIT_SECONDS))
