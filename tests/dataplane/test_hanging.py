"""Answers that begin and hang, and more clients than a router serves."""

from __future__ import annotations

import asyncio
import resource
import sys
from collections.abc import Callable

import pytest

from routing.dataplane import __main__, client
from routing.dataplane.__main__ import OWN_FILES, most_clients
from routing.dataplane.exchange import QUIET_SECONDS
from routing.dataplane.router import MOST_CLIENTS, Shared
from tests.dataplane.engines import Call
from tests.dataplane.test_strict import Clock, later
from tests.dataplane.world import Wire, World, request, run, until, world

ASKED = request("POST", "/v1/completions", b"{}")
BEGINS = {
    "a stream": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n",
    "of a length": b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nab",
    "until it closes": b"HTTP/1.1 200 OK\r\n\r\nab",
    "a head alone": b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n",
}


class Piecewise:
    """An engine that sends what the test gives it, and ends its answer with b""."""

    def __init__(self) -> None:
        self.pieces: asyncio.Queue[bytes] = asyncio.Queue()

    async def __call__(self, call: Call) -> None:
        while piece := await self.pieces.get():
            await call.send(piece)


def read(here: World) -> int:
    """Bytes of the only answer that the router has."""
    [one] = here.shared.clients
    upstream = one._exchange._upstream if one._exchange is not None else None
    return upstream.read if upstream is not None else 0


@pytest.mark.parametrize("begins", BEGINS.values(), ids=BEGINS)
def test_an_answer_that_began_and_hangs_is_broken_off(begins: bytes) -> None:
    @run
    async def told() -> None:
        clock, engine = Clock(), Piecewise()
        async with world(engine, shared=Shared(now=clock)) as here:
            wire = await here.wire()
            await wire.send(ASKED)
            engine.pieces.put_nowait(begins)
            await until(lambda: here.shared.clients and read(here) == len(begins), "it began")
            await later(here, clock, 1)
            await later(here, clock, QUIET_SECONDS - 1)
            assert here.in_flight() == {"pod-0": 1}, "it may think"
            await later(here, clock, 2)
            assert here.in_flight() == {} and here.shared.counters.truncated == 1
            await until(here.engines[0].gone.is_set, "its instance was told")
            reply = await wire.reply()
            assert (reply.status, reply.whole) == (200, False)
            await until(lambda: not here.shared.clients, "the client sees where it ends")

    told()


@run
async def test_an_answer_that_brings_something_now_and_then_goes_on() -> None:
    clock, engine = Clock(), Piecewise()
    async with world(engine, shared=Shared(now=clock)) as here:
        wire = await here.wire()
        await wire.send(ASKED)
        sent = 0
        for piece in (BEGINS["a stream"], b"1\r\n", b"c\r\n", b"1\r\nd\r\n"):
            engine.pieces.put_nowait(piece)
            sent += len(piece)
            await until(lambda: here.shared.clients and read(here) == sent, "it came")  # noqa: B023
            await later(here, clock, 1)
            await later(here, clock, QUIET_SECONDS - 1)
        engine.pieces.put_nowait(b"0\r\n\r\n")
        engine.pieces.put_nowait(b"")
        assert (reply := await wire.reply()).whole and reply.body == b"abcd"
        assert here.shared.counters.truncated == 0


@run
async def test_a_client_that_is_slow_is_not_taken_for_an_instance_that_hangs() -> None:
    clock, engine = Clock(), Piecewise()
    async with world(engine, shared=Shared(now=clock)) as here:
        wire = await here.wire()
        await wire.send(ASKED)
        engine.pieces.put_nowait(BEGINS["a stream"])
        await until(lambda: here.shared.clients and read(here), "it began")
        [one] = here.shared.clients
        await later(here, clock, 1)
        one.pause_writing()  # as the loop says it of a client that takes nothing
        one.read_by = 0.0  # that has a bound of its own
        await later(here, clock, QUIET_SECONDS)
        one.resume_writing()
        await later(here, clock, 1)
        await later(here, clock, QUIET_SECONDS - 1)
        assert here.in_flight() == {"pod-0": 1}, "its instance was not let speak"
        await later(here, clock, 2)
        assert here.in_flight() == {}, "and now it was"


async def turned_away(here: World) -> Wire:
    wire = await here.wire()
    reply = await wire.reply()
    assert (reply.status, reply.headers["retry-after"], reply.headers["connection"]) == (503, "1", "close")
    assert b"routing:router:full" in reply.body and await wire.closed()
    return wire


@run
async def test_more_clients_than_it_serves_are_told_so_and_those_it_serves_go_on() -> None:
    async with world(shared=Shared(most_clients=2)) as here:
        served = [await here.wire() for _ in range(2)]
        assert [(await one.ask("POST", "/v1/completions", b"{}")).status for one in served] == [200, 200]
        (await turned_away(here)).leave()
        assert [(await one.ask("POST", "/v1/completions", b"{}")).status for one in served] == [200, 200]
        served[0].leave()
        await until(lambda: len(here.shared.clients) == 1, "both are gone")
        assert (await here.ask("POST", "/v1/completions", b"{}")).status == 200
        assert here.shared.counters.refusals == {"routing:router:full": 1} and len(here.engines[0].calls) == 5


def test_those_who_are_told_so_are_bounded_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "TURNED_AWAY", 1)

    @run
    async def told() -> None:
        clock = Clock()
        async with world(shared=Shared(most_clients=1, now=clock)) as here:
            await here.wire()
            await until(lambda: len(here.shared.clients) == 1, "it is served")
            lingers = await turned_away(here)
            assert await (await here.wire()).closed(), "it is cut without a word"
            assert len(here.shared.clients) == 2
            await lingers.send(b"x" * 1000)  # nobody reads it
            await later(here, clock, 3)
            await until(lambda: len(here.shared.clients) == 1, "it had its moment")

    told()


UNBOUND = resource.RLIM_INFINITY
LIMITS = [(1024, 480), (65_536, 32_736), (1 << 20, MOST_CLIENTS), (UNBOUND, MOST_CLIENTS), (OWN_FILES, 1)]


@pytest.mark.parametrize(("files", "clients"), LIMITS)
def test_it_serves_as_many_clients_as_half_of_its_open_files(
    files: int, clients: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: Callable[[int], tuple[int, int]] = lambda _: (files, files)  # noqa: E731
    monkeypatch.setattr(resource, "getrlimit", asked)
    assert most_clients() == clients


@pytest.mark.parametrize("option", ["--clients", "--workers"])
def test_it_does_not_start_for_nobody(
    option: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["router", "--config", "x", option, "0"])
    with pytest.raises(SystemExit):
        __main__.main()
    assert f"{option} is 1 or more" in capsys.readouterr().err
