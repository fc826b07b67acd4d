"""The stand-in engine as its clients see it: OpenAI's API, hits that are counted, time that is kept, and a mark."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from routing.domain.dialects import Dialect, read_metrics
from routing.domain.dialects_usage import use_of_body
from routing.domain.engine_model import EngineModel, EngineShape
from routing.engines.keeping_time import KeepingTime
from routing.engines.standin import StandIn
from tests.dataplane.world import Reply, Wire, request, run, until

FAST = EngineShape(cache_blocks=64, block_tokens=16, prefill_rate=1e6, decode_rate=1e5)
LONG = "a beginning that many requests share, and " * 40


@asynccontextmanager
async def standin(
    shape: EngineShape = FAST, *, limit: int = 64, compress: float = 1.0, context: int = 10_000
) -> AsyncIterator[tuple[StandIn, Wire]]:
    engine = StandIn(KeepingTime(shape, limit=limit, compress=compress), model="tiny", context_tokens=context)
    port = await engine.start("127.0.0.1", 0)
    wire = Wire(*await asyncio.open_connection("127.0.0.1", port))
    try:
        yield engine, wire
    finally:
        wire.leave()
        await engine.stop()


async def beside(engine: StandIn) -> Wire:
    assert engine._server is not None
    return Wire(*await asyncio.open_connection(*engine._server.sockets[0].getsockname()[:2]))


def chat(text: str, **fields: Any) -> bytes:
    return json.dumps({"model": "tiny", "messages": [{"role": "user", "content": text}], **fields}).encode()


async def ask(wire: Wire, body: bytes, path: str = "/v1/chat/completions") -> Any:
    reply = await wire.ask("POST", path, body)
    assert reply.status == 200, reply
    return json.loads(reply.body)


async def metric(wire: Wire, name: str) -> float:
    lines = (await wire.ask("GET", "/metrics")).body.decode().splitlines()
    return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"vllm:{name}{{"))


def cached(answer: Any) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


@run
async def test_a_beginning_that_was_seen_comes_from_the_cache_in_whole_blocks() -> None:
    async with standin() as (_, wire):
        first = await ask(wire, chat(LONG + "one"))
        assert first["object"] == "chat.completion" and first["model"] == "tiny"
        assert first["choices"][0]["finish_reason"] == "length" and cached(first) == 0
        again = await ask(wire, chat(LONG + "two"))
        tokens = again["usage"]["prompt_tokens"]
        assert 0.9 * tokens < cached(again) < tokens and cached(again) % 16 == 0
        other = await ask(wire, chat("something else " + LONG))
        assert cached(other) == 0
        assert await metric(wire, "prefix_cache_hits_total") == cached(again)
        assert await metric(wire, "prefix_cache_queries_total") == sum(
            one["usage"]["prompt_tokens"] for one in (first, again, other)
        )


@run
async def test_its_metrics_and_its_usage_are_read_like_those_of_any_engine() -> None:
    async with standin() as (_, wire):
        await ask(wire, chat(LONG + "one"))
        use = use_of_body((await wire.ask("POST", "/v1/chat/completions", chat(LONG + "two"))).body)
        reading = read_metrics((await wire.ask("GET", "/metrics")).body.decode())
        assert use is not None and use.cached_tokens == reading.hit_tokens
        assert (reading.dialect, reading.stand_in, reading.running, reading.waiting) == (Dialect.VLLM, True, 0, 0)
        assert reading.prefix_caching is True and reading.kv_usage == pytest.approx(28 / 64, abs=0.1)


@run
async def test_what_was_used_longest_ago_leaves_first_and_the_rest_stays() -> None:
    async with standin(EngineShape(cache_blocks=64, block_tokens=16, prefill_rate=1e6, decode_rate=1e5)) as (_, wire):
        texts = [f"{number} " + LONG for number in range(3)]  # 27 blocks each: two fit
        for text in texts:
            await ask(wire, chat(text))
        newest, oldest = [cached(await ask(wire, chat(texts[number]))) for number in (2, 0)]
        assert newest > 400 and oldest in range(16, 320, 16), "of the oldest its end left, and its beginning stayed"
        assert await metric(wire, "kv_cache_usage_perc") == 1


@run
async def test_another_salt_other_tools_or_another_role_share_nothing() -> None:
    async with standin(EngineShape(cache_blocks=640, block_tokens=16, prefill_rate=1e6, decode_rate=1e5)) as (_, wire):
        await ask(wire, chat(LONG))
        assert cached(await ask(wire, chat(LONG, cache_salt="b"))) == 0
        assert cached(await ask(wire, chat(LONG, tools=[{"type": "function"}]))) == 0
        system = json.dumps({"messages": [{"role": "system", "content": LONG}]}).encode()
        assert cached(await ask(wire, system)) == 0
        assert cached(await ask(wire, chat(LONG))) > 0


@run
async def test_a_stream_brings_every_token_once_then_usage_and_an_end() -> None:
    async with standin() as (_, wire):
        body = chat("hello", stream=True, max_tokens=700, stream_options={"include_usage": True})
        reply = await wire.ask("POST", "/v1/chat/completions", body)
        assert reply.headers["content-type"] == "text/event-stream" and reply.whole
        *events, done = [line[6:] for line in reply.body.decode().split("\n\n") if line]
        assert done == "[DONE]"
        *pieces, last = [json.loads(event) for event in events]
        text = "".join(one["choices"][0]["delta"]["content"] for one in pieces)
        assert text.split() == [f"t{number}" for number in range(700)]
        assert [one["choices"][0]["finish_reason"] for one in pieces].count("length") == 1
        assert last["choices"] == [] and last["usage"]["completion_tokens"] == 700
        assert {one["id"] for one in [*pieces, last]} == {pieces[0]["id"]}
        reply = await wire.ask("POST", "/v1/completions", b'{"prompt": "hi", "stream": true}')
        assert b"usage" not in reply.body and reply.body.endswith(b"data: [DONE]\n\n")


@run
async def test_every_answer_its_models_and_its_metrics_say_that_it_is_a_stand_in() -> None:
    async with standin() as (_, wire):
        replies = [await wire.ask("GET", path) for path in ("/v1/models", "/metrics", "/health", "/nowhere")]
        replies.append(await wire.ask("POST", "/v1/chat/completions", chat("hi", stream=True)))
        assert [reply.headers.get("x-hearth-engine") for reply in replies] == ["stand-in"] * 5
        model = json.loads(replies[0].body)["data"][0]
        assert (model["id"], model["owned_by"]) == ("tiny", "hearth-stand-in")
        assert "hearth_standin_info" in replies[1].body.decode()


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/v1/chat/completions", b"{", 400),
        ("POST", "/v1/chat/completions", b"[]", 400),
        ("POST", "/v1/chat/completions", b'{"messages": []}', 400),
        ("POST", "/v1/chat/completions", b'{"messages": ["hi"]}', 400),
        ("POST", "/v1/chat/completions", b"[" * 100_000, 400),
        ("POST", "/v1/chat/completions", chat("hi", max_tokens=0), 400),
        ("POST", "/v1/chat/completions", chat("hi", max_tokens=True), 400),
        ("POST", "/v1/chat/completions", chat("hi", max_tokens="9"), 400),
        ("POST", "/v1/chat/completions", chat("x" * 40_001), 400),
        ("POST", "/v1/chat/completions", chat("x", max_tokens=10_000), 400),
        ("POST", "/v1/completions", b'{"prompt": ["a", "b"]}', 400),
        ("GET", "/v1/completions", b"", 405),
        ("POST", "/v1/embeddings", b"{}", 404),
        ("POST", "/v1/chat/completions", b'{"messages": [{"role": "user", "content": "\\ud800"}]}', 200),
        ("POST", "/v1/chat/completions", b'{"messages": [{"role": "user", "content": [{"type": "text"}]}]}', 200),
        ("POST", "/v1/chat/completions", b'{"messages": [{}]}', 200),
        ("POST", "/v1/completions", b'{"prompt": ""}', 200),
    ],
)
def test_what_is_no_request_is_refused_and_the_connection_goes_on(
    method: str, path: str, body: bytes, status: int
) -> None:
    @run
    async def test() -> None:
        async with standin() as (_, wire):
            reply = await wire.ask(method, path, body)
            assert reply.status == status
            if status >= 400:
                assert json.loads(reply.body)["error"]["message"]
            assert (await wire.ask("GET", "/health")).status == 200

    test()


SLOW = EngineShape(cache_blocks=64, block_tokens=16, prefill_rate=1e6, decode_rate=0.001)


@run
async def test_more_than_the_limit_wait_in_their_order_and_one_that_leaves_makes_room() -> None:
    async with standin(SLOW, limit=1) as (engine, wire):
        inside, others = engine.engine, [await beside(engine) for _ in range(3)]
        for number, other in enumerate(others):
            await other.send(request("POST", "/v1/chat/completions", chat("hi", stream=True)))
            await until(lambda number=number: inside.running + inside.waiting == number + 1, "it arrived")  # type: ignore[misc]
        assert (inside.running, inside.waiting) == (1, 2)
        assert await metric(wire, "num_requests_waiting") == 2
        others[2].leave()  # from the queue
        await until(lambda: (inside.running, inside.waiting) == (1, 1), "who waited and left is not counted")
        others[0].leave()  # from its place
        head = await others[1].reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200") and (inside.running, inside.waiting) == (1, 0)
        assert inside.counted.aborted == 1
        others[1].leave()
        await until(lambda: inside.running == 0, "nothing runs for nobody")


@run
async def test_requests_on_one_connection_are_answered_one_after_the_other() -> None:
    async with standin() as (_, wire):
        await wire.send(b"".join(request("POST", "/v1/completions", b'{"prompt": "%d"}' % n) for n in range(5)))
        replies: list[Reply] = [await wire.reply() for _ in range(5)]
        ids = [int(json.loads(reply.body)["id"].partition("-")[2]) for reply in replies]
        assert ids == sorted(ids) and len(set(ids)) == 5
        await wire.send(request("GET", "/health", b"", "Connection: close"))
        assert (await wire.reply()).headers["connection"] == "close" and await wire.closed()


@run
async def test_the_process_and_the_model_agree_request_by_request() -> None:
    """Decision 17: the same requests, once in virtual time and once for real with the clock compressed."""
    shape = EngineShape(cache_blocks=40, block_tokens=16, prefill_rate=2000.0, decode_rate=400.0)
    draws = random.Random(5)
    texts = [f"group {draws.randrange(9)} " * 60 + f"and {number}" for number in range(40)]
    async with standin(shape, compress=50.0) as (engine, wire):
        answers = [await ask(wire, json.dumps({"prompt": text}).encode(), "/v1/completions") for text in texts]
        taken = engine.engine.counted.ttft_sum
    model, now, expected = EngineModel(shape), 0.0, []
    for text in texts:
        blocks = [hash(text[:end]) for end in range(64, len(text) + 1, 64)]
        expected.append(model.serve(now, blocks, -(-len(text) // 4), 16))
        now = expected[-1].ends_at
    assert [cached(answer) for answer in answers] == [one.hit_tokens for one in expected]
    assert any(one.hit_tokens for one in expected) and not all(one.hit_tokens for one in expected[5:])
    assert taken == pytest.approx(sum(one.ttft_seconds for one in expected))


def test_the_program_says_its_port_serves_and_ends() -> None:
    async def test() -> None:
        command = [sys.executable, "-W", "error", "-m", "routing.engines.standin", "--port", "0", "--model", "m"]
        made = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        assert made.stdout is not None
        try:
            line = (await made.stdout.readline()).decode()
            port = int(line.removeprefix("stand-in engine on port "))
            wire = Wire(*await asyncio.open_connection("127.0.0.1", port))
            assert json.loads((await wire.ask("GET", "/v1/models")).body)["data"][0]["id"] == "m"
            wire.leave()
        finally:
            made.terminate()
            assert await made.wait() == 0

    asyncio.run(asyncio.wait_for(test(), 60))


def test_buckets_of_first_tokens_add_up() -> None:
    from routing.engines.keeping_time import TTFT_BUCKETS, Counted

    counted = Counted()
    for seconds in (0.0, 0.001, 0.0011, 79.0, 80.1):
        counted.first_token(seconds)
    found = dict(zip((*TTFT_BUCKETS, "more"), itertools.accumulate(counted.ttft), strict=True))
    assert (found[0.001], found[0.005], found[40.0], found[80.0], found["more"]) == (2, 3, 3, 4, 5)
