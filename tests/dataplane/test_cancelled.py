"""Whoever is stopped in the middle of reaching somebody leaves no connection behind, in whichever turn of the loop."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import ssl
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop

from routing.dataplane.checking import is_well
from routing.dataplane.config import InstanceConfig
from routing.dataplane.fleet import Fleet
from routing.dataplane.router import Router, Shared
from routing.dataplane.scraping import Scraper
from routing.dataplane.upstream import connected
from routing.domain.placement import Member
from routing.engines.traffic import ask
from tests.dataplane.engines import Call, Engine
from tests.dataplane.world import SECRET, WAIT_SECONDS, Wire, request, until
from tests.sources.test_s3_misbehaving import certificates

TURNS = range(12)
Trust = ssl.SSLContext | None
Runner = Callable[[Coroutine[Any, Any, None]], None]
RUNNERS: dict[str, Runner] = {"asyncio": asyncio.run, "uvloop": uvloop.run}


async def an_upstream(place: InstanceConfig, trust: Trust) -> None:
    (await connected(place, trust)).close()


async def a_check(place: InstanceConfig, trust: Trust) -> None:
    await is_well(place, trust)


async def a_scrape(place: InstanceConfig, trust: Trust) -> None:
    await Scraper(Fleet(), lambda: trust)._asked(place)


async def a_question(place: InstanceConfig, trust: Trust) -> None:
    await ask(place.host, place.port, "/v1/completions", b"{}")


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """To serve with, and to trust it."""
    folder = tmp_path_factory.mktemp("certificates")
    authority, pem, key = certificates()
    for name, text in (("ca.pem", authority), ("chain.pem", pem), ("key.pem", key)):
        (folder / name).write_text(text)
    served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    served.load_cert_chain(folder / "chain.pem", folder / "key.pem")
    return served, ssl.create_default_context(cafile=str(folder / "ca.pem"))


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """No warning of anything that was not closed."""
    gc.collect()  # of tests before
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        yield
        gc.collect()
    assert [str(one.message) for one in said if issubclass(one.category, ResourceWarning)] == []


def bounded(run: Runner, test: Awaitable[None]) -> None:
    run(asyncio.wait_for(test, WAIT_SECONDS))


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize(
    ("asks", "tls"),
    [(one, tls) for tls in (False, True) for one in (an_upstream, a_check, a_scrape)] + [(a_question, False)],
    ids=lambda one: one.__name__ if callable(one) else {False: "plain", True: "tls"}[one],
)
def test_it_closes_what_it_was_about_to_reach(
    asks: Callable[[InstanceConfig, Trust], Awaitable[None]],
    tls: bool,
    runner: str,
    contexts: tuple[ssl.SSLContext, ssl.SSLContext],
    nothing_left: None,
) -> None:
    served, trust = contexts

    async def test() -> None:
        engine = await Engine().start(tls=served if tls else None)
        place = InstanceConfig(Member("pod"), "127.0.0.1", engine.port, tls=tls, check="/health")
        for turns in TURNS:
            asked = asyncio.ensure_future(asks(place, trust))
            for _ in range(turns):
                await asyncio.sleep(0)
            asked.cancel()
            with suppress(asyncio.CancelledError):
                await asked
        await until(lambda: engine.open == 0, "nobody is connected")
        await engine.stop()

    bounded(RUNNERS[runner], test())


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("leaves", [False, True], ids=["stopped", "its client leaves"])
def test_a_router_that_waits_for_a_connection_leaves_none(
    leaves: bool, runner: str, tmp_path: Path, nothing_left: None
) -> None:
    """The instance's machine lets nobody in and turns nobody away."""

    async def test() -> None:
        with socket.socket() as full, socket.socket() as first:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            first.connect(full.getsockname())
            router = Router(tmp_path / "router.json", shared=Shared())
            port = await router.start("127.0.0.1", 0)
            assert router.take(_document(full.getsockname()[1]))
            wire = Wire(*await asyncio.open_connection("127.0.0.1", port))
            await wire.send(request("POST", "/v1/completions", b"{}"))
            await until(lambda: router.shared.fleet.endpoints["chat"].variants["default"].in_flight, "it is asked")
            if leaves:
                wire.leave()
                await until(lambda: not router.shared.clients, "it left")
                assert router.shared.fleet.endpoints["chat"].variants["default"].in_flight == {}
            await router.stop(grace_seconds=0)
            assert not router.shared.clients
            wire.leave()

    bounded(RUNNERS[runner], test())


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_router_that_ends_in_the_middle_of_answers_leaves_no_connection(
    runner: str, tmp_path: Path, nothing_left: None
) -> None:
    """Some clients wait for a first byte, some are in a stream, some are silent between two requests."""

    async def begins(call: Call) -> None:
        if b"models" in call.line:
            await call.answer()
            return
        if b"completions" in call.line:
            await call.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nevent\r\n")
        await asyncio.Event().wait()

    async def test() -> None:
        engine = await Engine(begins).start()
        router = Router(tmp_path / "router.json", shared=Shared())
        port = await router.start("127.0.0.1", 0)
        assert router.take(_document(engine.port))
        wires = [Wire(*await asyncio.open_connection("127.0.0.1", port)) for _ in range(6)]
        assert (await wires[0].ask("GET", "/v1/models")).status == 200
        for wire, path in zip(wires[1:], ("/v1/completions", "/v1/embeddings") * 2, strict=False):
            await wire.send(request("POST", path, b"{}"))
        await until(lambda: len(engine.calls) == 5, "they are asked")
        await router.stop(grace_seconds=0)
        for wire in wires:
            with suppress(ConnectionError):
                await wire.reader.read()  # to its end
            wire.leave()
        await engine.stop()

    bounded(RUNNERS[runner], test())


def _document(port: int) -> bytes:
    variant = {"name": "default", "instances": [{"id": "pod-0", "address": f"127.0.0.1:{port}"}]}
    return json.dumps({"version": 1, "endpoints": [{"name": "chat", "secret": SECRET, "variants": [variant]}]}).encode()
