"""What a router keeps of requests for replays: only where it may, digests only, and in bounded memory."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
import redis.asyncio as redis

from routing.dataplane import telling
from routing.dataplane.fleet import Variant
from routing.dataplane.telling import Teller
from routing.domain.policies import PolicyRefused, read_policy
from routing.domain.recordings import MESSAGE_BYTES, RECORDED_MINUTES, Kept, key_of_stream, read_message
from tests.dataplane.engines import Call
from tests.dataplane.world import LEAST, PREFIX, WAIT_SECONDS, World, chat, run, world

USE = {"usage": {"prompt_tokens": 100, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 75}}}
SECRET_WORDS = "the eagle lands at midnight"
RECORDED: dict[str, Any] = {**LEAST, "RoutingExtensions": {"record_keys": True}}
CHAT = "/v1/chat/completions"


async def tells(call: Call) -> None:
    await call.answer(json.dumps(USE).encode(), b"200 OK", b"content-type: application/json")


async def refuses(call: Call) -> None:
    await call.answer(b"{}", b"400 Bad Request", b"content-type: application/json")


def variant(here: World) -> Variant:
    return here.shared.fleet.endpoints["chat"].variants["default"]


def taken(here: World) -> list[Kept]:
    message = variant(here).recorder.take()
    return list(read_message(json.loads(message)).requests) if message is not None else []


@run
async def test_nothing_is_kept_unless_the_policy_asks_for_it() -> None:
    for policy in (LEAST, PREFIX):
        async with world(tells, policy=policy) as here:
            await here.ask("POST", CHAT, chat(SECRET_WORDS * 200))
            assert variant(here).recorder.take() is None


@run
async def test_every_strategy_keeps_what_prefix_aware_would_have_seen() -> None:
    async with world(tells, policy=RECORDED) as here:
        body = chat(SECRET_WORDS * 200)
        await here.ask("POST", CHAT, body)
        [kept] = taken(here)
        assert (kept.prompt_tokens, kept.cached_tokens, kept.output_tokens) == (100, 75, 5)
        assert kept.outcome == "LeastBusy" and kept.instance == "pod-0" and kept.depth == 27 * 200
        assert kept.ttft is not None and kept.seconds is not None and 0 <= kept.ttft <= kept.seconds < WAIT_SECONDS
        here.publish({**PREFIX, "RoutingExtensions": {"record_keys": True}})
        await here.ask("POST", CHAT, body)
        [again] = taken(here)
        assert again.boundaries == kept.boundaries and again.outcome == "Primary"


@run
async def test_a_key_of_the_clients_own_is_kept_beside_the_text() -> None:
    async with world(tells, policy=RECORDED) as here:
        for key in ("mine", "mine", "yours"):
            await here.ask("POST", CHAT, chat("x" * 3000, prompt_cache_key=key))
        mine, again, yours = taken(here)
        assert mine.own == again.own != yours.own and mine.own and mine.boundaries == yours.boundaries


@run
async def test_no_word_of_a_request_is_kept() -> None:
    async with world(tells, policy=RECORDED) as here:
        body = chat(SECRET_WORDS * 60, prompt_cache_key="key-of-mine", user="mallory")
        await here.ask("POST", CHAT, body, "X-Amzn-SageMaker-Prefix-Aware-Id: tenant-9")
        said = (variant(here).recorder.take() or b"").decode()
        assert said.count("pod-0") == 1
        for word in (*SECRET_WORDS.split(), "key-of-mine", "tenant-9", "mallory", "llama"):
            assert f"{word}" not in said.replace("LeastBusy", ""), word


@run
async def test_what_was_refused_is_no_request_that_was_served() -> None:
    async with world(refuses, policy=RECORDED) as here:
        await here.ask("POST", CHAT, chat("x"))
        assert taken(here) == []


@run
async def test_it_keeps_no_more_than_a_message_may_have_and_counts_the_others() -> None:
    async with world(tells, policy=RECORDED) as here:
        wire = await here.wire()
        for number in range(60):
            await wire.ask("POST", CHAT, chat(f"{number:<40000}"))
        message = variant(here).recorder.take()
        assert message is not None and len(message) < 1.2 * MESSAGE_BYTES
        found = read_message(json.loads(message))
        assert len(found.requests) + found.passed == 60 and found.passed > 20
        await wire.ask("POST", CHAT, chat("x"))
        assert len(taken(here)) == 1, "there is room again"


@run
async def test_odd_bodies_are_kept_without_harm() -> None:
    async with world(tells, policy=RECORDED) as here:
        for body in (b"{}", b"not json", b"", b'{"messages": "\\ud800"}', b'{"messages": [{"content": "\\ud800"}]}'):
            assert (await here.ask("POST", CHAT, body)).status == 200
        await here.ask("POST", "/endpoints/chat/invocations", b"\xff" * 5000)
        assert [one.depth for one in taken(here)] == [0, 0, 0, 0, 1, 5000]


def test_what_is_kept_arrives_in_a_stream_that_ends_by_itself(valkey_url: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(telling, "STREAM_KEY", "test:recording:figures")
    monkeypatch.setattr(telling, "key_of_stream", lambda endpoint, name: f"test:recording:{endpoint}:{name}")
    assert key_of_stream("chat", "default").endswith("chat:default")

    async def test() -> None:
        async with world(tells, policy=RECORDED) as here:
            connection = redis.Redis.from_url(valkey_url)
            key = "test:recording:chat:default"
            await connection.delete("test:recording:figures", key)
            await connection.xadd(key, {"m": "old"}, id="1-1")
            await here.ask("POST", CHAT, chat("x" * 2000))
            await Teller(here.shared.fleet, host="h").tell(connection)
            found: Any = await connection.xrange(key)
            assert len(found) == 1, "what is older than an hour is gone"
            assert len(read_message(json.loads(found[0][1][b"m"])).requests) == 1
            assert 0 < await connection.ttl(key) <= 60 * RECORDED_MINUTES
            here.publish(LEAST)
            variant(here).recorder._passed = 1  # some, of the time before
            await Teller(here.shared.fleet, host="h").tell(connection)
            assert await connection.xlen(key) == 1, "nothing more once the policy does not ask for it"
            await connection.delete("test:recording:figures", key)
            await connection.aclose()

    asyncio.run(asyncio.wait_for(test(), WAIT_SECONDS))


@pytest.mark.parametrize("strategy", ["RANDOM", "PREFIX_AWARE"])
def test_a_policy_that_forbids_to_look_cannot_record(strategy: str) -> None:
    document: dict[str, Any] = {"RoutingStrategy": strategy, "RoutingExtensions": {"record_keys": True}}
    document["RoutingExtensions"] |= {"inspect_bodies": False, "key_header": "x-session-id"}
    if strategy == "PREFIX_AWARE":
        document["PrefixAwareRoutingConfig"] = PREFIX["PrefixAwareRoutingConfig"]
    with pytest.raises(PolicyRefused, match="record_keys"):
        read_policy(document)
