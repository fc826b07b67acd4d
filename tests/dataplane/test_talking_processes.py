"""Three router processes and a real Valkey: each decides by what all have on their way, until one is killed."""

from __future__ import annotations

import asyncio
import json
import signal
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import redis

from routing.domain.expositions import read_samples
from tests.dataplane.engines import Call, Engine
from tests.dataplane.test_process import process, told
from tests.dataplane.world import SECRET, Wire, chat, request, until

PATH = "/v1/chat/completions"
ONE_EACH = {
    "RoutingStrategy": "PREFIX_AWARE",
    "PrefixAwareRoutingConfig": {"PrefixLength": 1024, "ConcurrencyThreshold": 1},
    "RoutingExtensions": {"avoid_waits": False},
}


def asked_of(engine: Engine, what: bytes) -> int:
    """Beside what routers ask for themselves."""
    return sum(what in call.body for call in engine.calls)


async def known(page: int) -> float:
    """How many processes know of each other, as one says."""
    wire = Wire(*await asyncio.open_connection("127.0.0.1", page))
    text = (await wire.ask("GET", "/metrics")).body.decode()
    wire.leave()
    return next(one.value for one in read_samples(text) if one.name == "hearth_routing_routers_known")


async def knows(page: int, wanted: int) -> None:
    while await known(page) != wanted:
        await asyncio.sleep(0.02)


def test_one_hears_what_another_has_and_forgets_it_when_that_is_killed(
    valkey_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = valkey_url.rpartition("/")[0] + "/5"  # where nobody publishes
    monkeypatch.setenv("REDIS_URL", url)
    with redis.Redis.from_url(url) as connection:
        connection.flushdb()

    async def holds(call: Call) -> None:
        if b"hold" in call.body:
            await asyncio.Event().wait()
        await call.answer()

    async def test() -> None:
        engines = [await Engine(holds).start() for _ in range(2)]
        instances = [{"id": f"pod-{n}", "address": f"127.0.0.1:{one.port}"} for n, one in enumerate(engines)]
        variant = {"name": "default", "policy": ONE_EACH, "instances": instances}
        endpoint = {"name": "chat", "secret": SECRET, "variants": [variant]}
        config = tmp_path / "router.json"
        config.write_text(json.dumps({"version": 1, "routers": 3, "endpoints": [endpoint]}))
        async with AsyncExitStack() as stack:
            made, ports, pages = [], [], []
            for _ in range(3):
                one, port = await stack.enter_async_context(process(config, "--follow", "--metrics-port", "0"))
                assert one.stdout is not None
                made.append(one)
                ports.append(port)
                pages.append(int((await one.stdout.readline()).rpartition(b" ")[2]))
            for page in pages:
                await knows(page, 3)
            busy = Wire(*await asyncio.open_connection("127.0.0.1", ports[0]))
            await busy.send(request("POST", PATH, chat("hold", prompt_cache_key="the same")))
            await until(lambda: any(asked_of(one, b"hold") for one in engines), "somebody has it")
            held, free = sorted(engines, key=lambda one: not asked_of(one, b"hold"))
            wire = Wire(*await asyncio.open_connection("127.0.0.1", ports[1]))

            async def asked(times: int) -> tuple[int, int]:
                """How many of so many that go through another process each engine got."""
                before = asked_of(held, b"quick"), asked_of(free, b"quick")
                for _ in range(times):
                    assert (await wire.ask("POST", PATH, chat("quick", prompt_cache_key="the same"))).status == 200
                return asked_of(held, b"quick") - before[0], asked_of(free, b"quick") - before[1]

            while await asked(40) != (0, 40):
                pass  # it has not heard yet, or had no word for long: then it goes where its key belongs
            made[0].send_signal(signal.SIGKILL)
            await knows(pages[1], 2)
            await knows(pages[2], 2)
            while await asked(12) != (12, 0):
                pass  # what the dead one had is forgotten
            for each in (wire, busy):
                each.leave()
        for engine in engines:
            await engine.stop()

    told(test())
