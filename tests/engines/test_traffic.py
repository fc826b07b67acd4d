"""The demo's traffic: through a router it shows what a strategy is worth, and it waits for who is not there."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from contextlib import suppress
from typing import Any

import pytest

from controlplane.embedded.ports import free_port
from routing.dataplane.exposing import Exposing
from routing.domain.engine_model import EngineShape
from routing.engines import traffic as module
from routing.engines.keeping_time import KeepingTime
from routing.engines.standin import StandIn
from routing.engines.traffic import Tally, ask, beginnings, sent, traffic
from tests.dataplane.world import LEAST, PREFIX, World, run, until, world

IDS = ("one", "other")  # each gets four of the eight groups: keys fall where they fall
SMALL = EngineShape(cache_blocks=100, block_tokens=16, prefill_rate=1e6, decode_rate=1e6)


async def hits(policy: dict[str, Any]) -> float:
    """The part of prompt tokens that came from caches, over 120 requests to two engines that hold four groups each."""
    engines = [StandIn(KeepingTime(SMALL, limit=8, compress=1.0)) for _ in range(2)]
    ports = [await engine.start("127.0.0.1", 0) for engine in engines]
    async with world(policy=policy) as here:
        here.publish(policy, instances=[{"id": IDS[n], "address": f"127.0.0.1:{port}"} for n, port in enumerate(ports)])
        task = asyncio.ensure_future(traffic(f"http://127.0.0.1:{here.port}", "chat", 0.0, say=lambda _: None, seed=7))
        counted = [engine.engine.counted for engine in engines]
        await until(lambda: sum(one.finished for one in counted) >= 120, "it asks")
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        for engine in engines:
            await engine.stop()
        return sum(one.hits for one in counted) / sum(one.queries for one in counted)


@run
async def test_it_shows_what_a_strategy_is_worth() -> None:
    spread, together = await hits(LEAST), await hits(PREFIX)
    assert together > 0.85 and together > spread + 0.1


@run
async def test_it_waits_for_who_is_not_there_and_goes_on() -> None:
    with pytest.MonkeyPatch.context() as patch:
        tried = 0

        async def counted(*arguments: Any) -> tuple[int, bytes]:
            nonlocal tried
            tried += 1
            if tried < 4:
                raise ConnectionRefusedError
            return await ask(*arguments)

        patch.setattr(module, "WAIT_SECONDS", 0.01)
        patch.setattr(module, "ask", counted)
        said: list[str] = []
        engine = StandIn(KeepingTime(SMALL, limit=8, compress=1.0))
        port = await engine.start("127.0.0.1", 0)
        task = asyncio.ensure_future(traffic(f"http://127.0.0.1:{port}", "chat", 0.0, say=said.append))
        await until(lambda: engine.engine.counted.finished > 2, "it asks again")
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await engine.stop()
        assert said[0].startswith("traffic: 1 of 200; 3 unanswered")


def tell(here: World, instances: list[dict[str, str]]) -> None:
    here.version += 1
    variant = {"name": "default", "policy": LEAST, "instances": instances, "queue": {"requests": 9, "seconds": 30.0}}
    here.publish_endpoints([{"name": "chat", "secret": "00" * 16, "variants": [variant]}])


@run
async def test_it_asks_nothing_before_the_router_knows_an_instance() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "WAIT_SECONDS", 0.01)
        looked = 0

        async def counted(*arguments: Any) -> tuple[int, bytes]:
            nonlocal looked
            looked += 1
            return await sent(*arguments)

        patch.setattr(module, "sent", counted)
        engine = StandIn(KeepingTime(SMALL, limit=8, compress=1.0))
        port = await engine.start("127.0.0.1", 0)
        async with world() as here:
            tell(here, [])
            place = free_port()
            options = Namespace(
                to=f"http://127.0.0.1:{here.port}", model="chat", every=0.0, metrics=f"http://127.0.0.1:{place}/metrics"
            )
            task = asyncio.ensure_future(module._traffic(options))
            await until(lambda: looked > 3, "nobody says metrics yet")
            exposing = Exposing(here.shared)
            await exposing.start("127.0.0.1", place)
            before = looked
            await until(lambda: looked > before + 3, "it knows no instance yet")
            assert here.shared.fleet.endpoints["chat"].variants["default"].figures.queued == 0
            tell(here, [{"id": "one", "address": f"127.0.0.1:{port}"}])
            await until(lambda: engine.engine.counted.finished > 2, "it asks")
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            figures = here.shared.fleet.endpoints["chat"].variants["default"].figures
            assert figures.requests > 2 and (figures.queued, dict(figures.failures)) == (0, {})
            assert not here.shared.counters.refusals
            await exposing.stop()
        await engine.stop()


def test_beginnings_are_long_enough_and_no_two_begin_alike() -> None:
    made = beginnings()
    assert made == beginnings() and {len(one) for one in made} == {1400}
    assert len({one[:3] for one in made}) == len(made)


def test_a_tally_of_nothing_divides_by_nothing() -> None:
    assert str(Tally()) == "nothing; 0 unanswered; 0% of prompt tokens from a cache"
