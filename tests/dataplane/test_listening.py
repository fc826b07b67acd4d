"""Whoever comes in the very moment in which a server ends is served or cut, and never forgotten."""

from __future__ import annotations

import asyncio
import gc
import socket
import warnings
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from routing.dataplane import exposing
from routing.dataplane.listening import cut
from routing.dataplane.router import Router
from routing.domain.engine_model import EngineShape
from routing.engines.keeping_time import KeepingTime
from routing.engines.standin import StandIn
from tests.dataplane.engines import Engine
from tests.dataplane.world import WAIT_SECONDS

Stop = Callable[[], Awaitable[None]]


async def a_router(folder: Path) -> tuple[int, Stop]:
    router = Router(folder / "router.json")
    return await router.start("127.0.0.1", 0), lambda: router.stop(grace_seconds=0)


async def a_standin(folder: Path) -> tuple[int, Stop]:
    engine = StandIn(KeepingTime(EngineShape(), limit=8, compress=1.0))
    return await engine.start("127.0.0.1", 0), engine.stop


async def a_page(folder: Path) -> tuple[int, Stop]:
    async def text() -> str:
        return "one 1\n"

    page = exposing.Page(text)
    return await page.start("127.0.0.1", 0), page.stop


async def an_engine(folder: Path) -> tuple[int, Stop]:
    engine = await Engine().start()
    return engine.port, engine.stop


async def ended_while_one_came(make: Callable[[Path], Awaitable[tuple[int, Stop]]], folder: Path, turns: int) -> bytes:
    """A client comes, the server's loop turns so often, the server ends: what the client hears."""
    port, stop = await make(folder)
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.setblocking(False)
        for _ in range(turns):
            await asyncio.sleep(0)
        await stop()
        try:
            return await asyncio.wait_for(asyncio.get_running_loop().sock_recv(client, 100), WAIT_SECONDS / 2)
        except ConnectionResetError:
            return b""


@pytest.mark.parametrize("make", [a_router, a_standin, a_page, an_engine], ids=lambda make: make.__name__)
def test_it_forgets_nobody_who_came_as_it_ended(
    make: Callable[[Path], Awaitable[tuple[int, Stop]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exposing, "HEAD_SECONDS", 0.02)  # a silent client keeps a page no longer
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for turns in range(7):
            assert asyncio.run(ended_while_one_came(make, tmp_path, turns)) == b""
        gc.collect()
    assert [str(one.message) for one in said if "unclosed" in str(one.message)] == []


def test_it_cuts_who_comes_while_others_are_cut() -> None:
    """A connection that appears after the first look is cut too."""
    open_ones: set[One] = set()

    class One:
        def __init__(self, next_one: One | None = None) -> None:
            self.next_one = next_one
            open_ones.add(self)

        def abort(self) -> None:
            asyncio.get_running_loop().call_soon(self.lost)

        def lost(self) -> None:
            open_ones.discard(self)
            if self.next_one is not None:
                open_ones.add(self.next_one)
                self.next_one = None

    last = One()
    One(last)
    open_ones.discard(last)
    asyncio.run(asyncio.wait_for(cut(open_ones), WAIT_SECONDS))
    assert not open_ones
