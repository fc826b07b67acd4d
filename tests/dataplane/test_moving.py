"""Requests go on while shares shift between versions, while instances are killed, are all gone and come back, and where
nobody is there but the router and its file."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

from tests.dataplane.engines import Call, Engine, Script
from tests.dataplane.test_following import document, following_router, told
from tests.dataplane.world import LEAST, SECRET, Wire, World, chat, run, until, world


def streaming(name: bytes) -> Script:
    async def streams(call: Call) -> None:
        await call.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        for _ in range(4):
            await call.send(b"%x\r\n%b\r\n" % (len(name), name))
            await asyncio.sleep(0.001)
        await call.send(b"0\r\n\r\n")

    return streams


class Load:
    """Clients that ask one after the other until they are told to stop; ``bodies`` of whole answers."""

    def __init__(self, here: World, clients: int = 6) -> None:
        self._here, self._clients, self._ended = here, clients, False
        self.bodies: list[bytes] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Load:
        self._tasks = [asyncio.ensure_future(self._ask()) for _ in range(self._clients)]
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._ended = True
        if kind is not None:
            for task in self._tasks:
                task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=kind is not None)

    async def some(self, count: int = 20) -> list[bytes]:
        """The next answers: those that were asked for before are passed over."""
        since = len(self.bodies) + self._clients
        await until(lambda: len(self.bodies) >= since + count or any(task.done() for task in self._tasks), "answers")
        for task in self._tasks:
            if task.done():
                task.result()
        return self.bodies[since:]

    async def _ask(self) -> None:
        wire = await self._here.wire()
        while not self._ended:
            reply = await wire.ask("POST", "/v1/chat/completions", chat("x"))
            assert reply.status == 200 and reply.whole, reply
            self.bodies.append(reply.body)


def shares(here: World, **weights: float) -> None:
    here.version += 1
    variants = [
        {"name": name, "weight": weights[name], "policy": LEAST,
         "instances": [{"id": name, "address": f"127.0.0.1:{engine.port}"}]}
        for name, engine in zip(("old", "new"), here.engines, strict=True)
    ]  # fmt: skip
    here.publish_endpoints([{"name": "chat", "secret": SECRET, "variants": variants}])


@run
async def test_shares_shift_between_two_versions_under_load_without_losing_a_request() -> None:
    async with world(streaming(b"old"), streaming(b"new")) as here:
        shares(here, old=1, new=0)
        async with Load(here) as load:
            assert set(await load.some()) == {b"old" * 4}
            for new in range(1, 10):
                shares(here, old=10 - new, new=new)
                await load.some(5)
            shares(here, old=1, new=1)
            both = Counter(await load.some(200))
            assert 50 < both[b"old" * 4] < 150, both
            shares(here, old=0, new=1)
            assert set(await load.some()) == {b"new" * 4}
        assert here.shared.counters.truncated == 0 and not here.shared.counters.failures


def published(here: World, instances: list[dict[str, Any]]) -> None:
    here.version += 1
    queue = {"requests": 100, "seconds": 60}
    variant = {"name": "default", "policy": LEAST, "instances": instances, "queue": queue}
    here.publish_endpoints([{"name": "chat", "secret": SECRET, "variants": [variant]}])


@run
async def test_killed_all_gone_and_back_under_load_no_request_is_lost() -> None:
    async def plain(call: Call) -> None:
        await call.answer(b"{}")

    async with world(plain, plain, plain) as here:
        places = [{"id": f"pod-{n}", "address": f"127.0.0.1:{one.port}"} for n, one in enumerate(here.engines)]
        published(here, places)
        async with Load(here) as load:
            await load.some()
            await here.engines[0].stop(for_now=True)  # as if it were killed: nobody listens and every connection is cut
            await load.some(100)
            published(here, places[1:])
            await load.some()
            published(here, [])
            variant = here.shared.fleet.endpoints["chat"].variants["default"]
            await until(lambda: len(variant.waiting) == 6, "all of them wait")
            await here.engines[0].start(here.engines[0].port)
            before = len(here.engines[0].calls)
            published(here, places)
            await load.some()
            await until(lambda: len(here.engines[0].calls) > before, "the one that was killed is asked again")
        variant = here.shared.fleet.endpoints["chat"].variants["default"]
        assert here.in_flight() == {} and len(variant.waiting) == 0
        assert not here.shared.counters.refusals


def test_a_whole_run_without_redis_and_without_a_control_plane(tmp_path: Path) -> None:
    async def test() -> None:
        engine = await Engine().start()
        kept: dict[str, Any] = json.loads(document(8, engine.port))
        (tmp_path / "router.json").write_text(json.dumps(kept))
        async with following_router(tmp_path, "redis://127.0.0.1:9/0") as (router, follower):
            port = router._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
            wire = Wire(*await asyncio.open_connection("127.0.0.1", port))
            for _ in range(50):
                assert (await wire.ask("POST", "/v1/chat/completions", chat("x"))).status == 200
            wire.leave()
            assert not follower.connected and router.shared.fleet.config.version == 8
            figures = router.shared.fleet.endpoints["chat"].variants["default"].figures
            assert figures.requests == 50, "what is counted is kept until somebody asks"
        await engine.stop()
        assert json.loads((tmp_path / "router.json").read_text()) == kept

    told(test())
