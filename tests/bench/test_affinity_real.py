"""One cell of the affinity bench for real: a router, seven stand-in engines, and every clock compressed alike.

The same requests in virtual time and through sockets; that the two agree is what makes the virtual figures believable.
``make bench ARGS=tests/bench/test_affinity_real.py``; HEARTH_TRACE names a trace, HEARTH_BENCH_REQUESTS how many of it.
The engines are stand-ins: their time is a model's.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from routing.domain.engine_model import EngineShape
from routing.domain.policies import read_policy
from routing.domain.replaying import Recorded, Replay
from routing.engines.keeping_time import KeepingTime
from routing.engines.standin import StandIn
from routing.engines.traffic import ask
from tests.bench.test_affinity import SEVEN, SMALL, made_lines
from tests.bench.traces import BLOCK_CHARACTERS, SECRET, recorded, words
from tests.dataplane.world import world

pytestmark = pytest.mark.bench
COUNT, COMPRESS = int(os.environ.get("HEARTH_BENCH_REQUESTS", "600")), float(os.environ.get("HEARTH_COMPRESS", "20"))
# Past what all requests share: one block of a real trace, four of what is made up here.
PREFIX_LENGTH = 4096 if os.environ.get("HEARTH_TRACE") else 16_384
POLICIES: dict[str, dict[str, Any]] = {
    "RANDOM": {},
    f"PREFIX_AWARE, {PREFIX_LENGTH} exactly, T 32": {
        "RoutingStrategy": "PREFIX_AWARE",
        "PrefixAwareRoutingConfig": {"PrefixLength": PREFIX_LENGTH, "ConcurrencyThreshold": 32},
        "RoutingExtensions": {"adaptive_depth": False},
    },
}


@dataclass(frozen=True, slots=True)
class Real:
    """What came of it, in seconds of the model."""

    hit_rate: float
    shares: Sequence[float]
    mean_ttft: float
    failed: int


def lines() -> list[str]:
    if path := os.environ.get("HEARTH_TRACE"):
        with Path(path).open() as trace:
            return [line for line, _ in zip(trace, range(COUNT), strict=False)]
    return made_lines(lambda draws, number: [0, draws.randrange(1, 60), -number], count=COUNT)


def prompt(line: str) -> tuple[float, bytes]:
    """When it is sent, in seconds of the model, and its body."""
    one = json.loads(line)
    text = "".join(words(block) for block in one["hash_ids"])[: one["input_length"] * (BLOCK_CHARACTERS // 512)]
    body = {"model": "llama", "prompt": text, "max_tokens": max(1, one["output_length"]), "stream": True}
    return one["timestamp"] / 1000, json.dumps(body).encode()


async def real(policy: dict[str, Any], requests: Sequence[tuple[float, bytes]], shape: EngineShape) -> Real:
    engines = [StandIn(KeepingTime(shape, limit=10_000, compress=COMPRESS), context_tokens=10**9) for _ in SEVEN]
    ports = [await engine.start("127.0.0.1", 0) for engine in engines]
    async with AsyncExitStack() as stack:
        here = await stack.enter_async_context(world())
        instances = [
            {"id": one.id, "address": f"127.0.0.1:{port}"} for one, port in zip(SEVEN, ports, strict=True)
        ]  # fmt: skip
        variant = {"name": "default", "policy": policy, "instances": instances}
        here.version += 1
        here.publish_endpoints(
            [{"name": "chat", "secret": SECRET.hex(), "models": ["llama"], "variants": [variant]}]
        )  # fmt: skip
        zero, loop = asyncio.get_running_loop().time(), asyncio.get_running_loop()

        async def one(at: float, body: bytes) -> int:
            await asyncio.sleep(max(0.0, zero + at / COMPRESS - loop.time()))
            status, _ = await ask("127.0.0.1", here.port, "/v1/completions", body)
            return status

        statuses = await asyncio.gather(*(one(at, body) for at, body in requests))
        for engine in engines:
            await engine.stop()
    counted = [engine.engine.counted for engine in engines]
    total = sum(one.finished for one in counted)
    return Real(
        sum(one.hits for one in counted) / sum(one.queries for one in counted),
        [one.finished / total for one in counted],
        sum(one.ttft_sum for one in counted) / total,
        sum(status != 200 for status in statuses),
    )


def test_for_real_and_in_virtual_time(capsys: pytest.CaptureFixture[str]) -> None:
    said = [f"{COUNT} requests, seven stand-in engines, clocks {COMPRESS:g} times as fast; seconds of the model"]
    said.append(f"{'strategy':34} {'':8} {'hit':>6} {'share':>13} {'mean TTFT':>9} {'failed':>6}")
    chosen = lines()
    requests, replayed = [prompt(line) for line in chosen], list(recorded(chosen, prefix_length=PREFIX_LENGTH))
    for name, policy in POLICIES.items():
        virtual = Replay(read_policy(policy), SEVEN, shape=SMALL).run(_as_sent(replayed))
        found = asyncio.run(real(policy, requests, SMALL))
        for kind, hit, shares, ttft, failed in (
            ("virtual", virtual.hit_rate, list(virtual.shares.values()), fmean(virtual.ttft), "-"),
            ("real", found.hit_rate, found.shares, found.mean_ttft, str(found.failed)),
        ):
            share = f"{min(shares):5.1%}-{max(shares):5.1%}"
            said.append(f"{name:34} {kind:8} {hit:6.1%} {share:>13} {ttft:9.2f} {failed:>6}")
        assert found.failed == 0
    with capsys.disabled():
        print("\n" + "\n".join(said))


def _as_sent(requests: Sequence[Recorded]) -> list[Recorded]:
    """An engine can only know full blocks."""
    return [
        Recorded(one.at, one.boundaries, one.blocks[: one.tokens // SMALL.block_tokens], one.tokens, one.output_tokens)
        for one in requests
    ]  # fmt: skip


def test_requests_are_spread_over_time() -> None:
    """The generator is what it says: as many requests, in order."""
    moments = [at for at, _ in map(prompt, lines())]
    assert moments == sorted(moments) and len(moments) <= COUNT and statistics.mean(moments) > 0
