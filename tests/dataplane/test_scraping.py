"""Engines are asked how they are, by one router of all, and nothing that they say or do not say harms routing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import redis.asyncio as redis

from routing.dataplane import scraping
from routing.dataplane.scraping import MOST_BYTES, Scraper
from routing.domain.engine_figures import EngineFigures
from routing.domain.engine_model import EngineShape
from routing.engines.keeping_time import KeepingTime
from routing.engines.standin import StandIn
from tests.dataplane.engines import Call
from tests.dataplane.world import WAIT_SECONDS, World, chat, run, until, world

VLLM = b'vllm:num_requests_running{model_name="m"} 2\nvllm:num_requests_waiting 3\nvllm:kv_cache_usage_perc 0.25\n'


def said(here: World, uid: str = "pod-0") -> EngineFigures:
    return here.shared.fleet.endpoints["chat"].variants["default"].figures.engine(uid)


def says(body: bytes, *headers: bytes, status: bytes = b"200 OK") -> Callable[[Call], Awaitable[None]]:
    async def script(call: Call) -> None:
        assert call.line.startswith(b"GET /metrics HTTP/1.0")
        await call.answer(body, status, *headers)

    return script


@run
async def test_it_reads_what_an_engine_says() -> None:
    async with world(says(VLLM)) as here:
        await Scraper(here.shared.fleet).round()
        one = said(here)
        assert (one.kind, one.stand_in, one.asked, one.silent) == ("vLLM", False, 1, 0)
        assert (one.running.mean, one.waiting.mean, one.usage.mean, one.utilisation) == (2, 3, 0.25, 1)


@run
async def test_histograms_are_not_read_and_what_is_beside_them_is() -> None:
    body = b'vllm:ttft_bucket{le="1"} 7\n' * 1000 + VLLM
    async with world(says(body)) as here:
        await Scraper(here.shared.fleet).round()
        assert said(here).waiting.mean == 3


async def _silent(call: Call) -> None:
    await asyncio.sleep(WAIT_SECONDS)


async def _cut(call: Call) -> None:
    await call.send(b"HTTP/1.1 200 OK\r\ncontent-length: 5000\r\n\r\nvllm:num")
    call.writer.transport.abort()


async def _endless(call: Call) -> None:
    await call.send(b"HTTP/1.1 200 OK\r\n\r\n")
    for _ in range(MOST_BYTES // 65536 + 2):
        await call.send(b"x" * 65536)


async def _too_long(call: Call) -> None:
    await call.send(b"HTTP/1.1 200 OK\r\ncontent-length: 999999999\r\n\r\n" + VLLM)


async def _no_http(call: Call) -> None:
    await call.send(b"\x00" * 70000)


@pytest.mark.parametrize(
    "script",
    [
        says(b"", status=b"404 Not Found"),
        says(VLLM, status=b"500 Internal Server Error"),
        says(VLLM, b"transfer-encoding: chunked"),
        _too_long,
        _silent,
        _cut,
        _endless,
        _no_http,
    ],
)
def test_who_does_not_answer_well_is_silent_and_nothing_worse(
    script: Callable[[Call], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    if script is _silent:
        monkeypatch.setattr(scraping, "ANSWER_SECONDS", 0.1)

    async def test() -> None:
        async with world(script) as here:
            await Scraper(here.shared.fleet).round()
            one = said(here)
            assert (one.asked, one.silent, one.kind, one.waiting.mean) == (1, 1, "", None)

    asyncio.run(asyncio.wait_for(test(), WAIT_SECONDS))


@run
async def test_text_that_nobody_knows_is_an_answer_of_an_unknown_engine() -> None:
    async with world(says(b"up 1\n\xff\xfe 2\n")) as here:
        await Scraper(here.shared.fleet).round()
        assert (said(here).silent, said(here).kind, said(here).running.mean) == (0, "", None)


@run
async def test_an_instance_that_is_not_there_is_silent_and_the_others_are_heard() -> None:
    async with world(says(VLLM)) as here:
        place = f"127.0.0.1:{here.engines[0].port}"
        here.publish(instances=[{"id": "gone", "address": "127.0.0.1:9"}, {"id": "pod-0", "address": place}])
        await Scraper(here.shared.fleet).round()
        assert said(here, "gone").silent == 1 and said(here).silent == 0


@run
async def test_a_real_stand_in_says_that_it_is_one_and_what_came_from_its_cache() -> None:
    engine = StandIn(KeepingTime(EngineShape(block_tokens=16), limit=4, compress=200.0))
    port = await engine.start("127.0.0.1", 0)
    try:
        async with world() as here:
            here.publish(instances=[{"id": "pod-0", "address": f"127.0.0.1:{port}"}])
            scraper = Scraper(here.shared.fleet)
            await scraper.round()
            for _ in range(3):
                assert (await here.ask("POST", "/v1/chat/completions", chat("x" * 4000))).status == 200
            await scraper.round()
            one = said(here)
            assert one.stand_in and one.asked == 2 and one.silent == 0 and one.caching is True
            assert one.hit_rate is not None and one.hit_rate > 0.5 and one.usage.greatest
    finally:
        await engine.stop()


def test_one_router_of_several_asks(valkey_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scraping, "TURN_KEY", "test:scraping:turn")

    async def test() -> None:
        async with world(says(VLLM)) as here:
            connection = redis.Redis.from_url(valkey_url)
            await connection.delete("test:scraping:turn")
            scrapers = [Scraper(here.shared.fleet) for _ in range(3)]
            for scraper in scrapers:
                await scraper.turn(connection)
            await until(lambda: said(here).asked, "it was asked")
            for scraper in scrapers:
                await scraper.turn(connection)
            assert len(here.engines[0].calls) == 1
            assert await connection.pttl("test:scraping:turn") > 0, "whoever dies in its turn gives it back"
            for scraper in scrapers:
                scraper.stop()
            await connection.delete("test:scraping:turn")
            await connection.aclose()

    asyncio.run(asyncio.wait_for(test(), WAIT_SECONDS))


@run
async def test_who_left_is_forgotten() -> None:
    async with world(says(VLLM)) as here:
        scraper: Any = Scraper(here.shared.fleet)
        await scraper.round()
        assert len(scraper._before) == 1
        here.publish(instances=[{"id": "other", "address": f"127.0.0.1:{here.engines[0].port}"}])
        await scraper.round()
        assert [place[2] for place in scraper._before] == ["other"]
