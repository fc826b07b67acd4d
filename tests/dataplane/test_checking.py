"""Instances that nobody watches are asked by the router itself, left out while they are ill, and taken back."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable

import pytest

from routing.dataplane import checking
from routing.dataplane.checking import Checker, is_well
from routing.dataplane.config import InstanceConfig
from routing.domain.placement import Member
from tests.dataplane.engines import Call, Engine, Script, plain
from tests.dataplane.world import World, chat, run, world


@pytest.fixture(autouse=True)
def asked_by_the_test_alone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(_: Checker) -> None:
        await asyncio.Event().wait()

    if request.node.name != test_a_router_asks_by_itself.__name__:
        monkeypatch.setattr(Checker, "run", never)


def saying(status: bytes) -> Script:
    async def answers(call: Call) -> None:
        await call.answer(b"", status)

    return answers


async def nonsense(call: Call) -> None:
    await call.send(b"SSH-2.0-x\r\n")


async def silence(call: Call) -> None:
    await asyncio.sleep(60)


async def endless(call: Call) -> None:
    await call.send(b"H" * 200_000)


@pytest.mark.parametrize(
    ("script", "well"),
    [
        (plain, True), (saying(b"204 No Content"), True), (saying(b"302 Found"), True),
        (saying(b"404 Not Found"), False), (saying(b"503 Loading"), False), (nonsense, False), (silence, False),
        (endless, False),
    ],
)  # fmt: skip
def test_well_is_who_answers_its_path(script: Script, well: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "ANSWER_SECONDS", 0.2 if script is silence else 30.0)

    @run
    async def test() -> None:
        engine = await Engine(script).start()
        place = InstanceConfig(Member("x"), "127.0.0.1", engine.port, check="/live?x=1")
        assert await is_well(place, None) is well
        [call] = engine.calls
        assert call.line == b"GET /live?x=1 HTTP/1.1"
        await engine.stop()
        assert not await is_well(place, None), "and nobody is ill"

    test()


def published(here: World, check: str = "/health") -> None:
    here.publish(
        instances=[
            {"id": f"pod-{number}", "address": f"127.0.0.1:{engine.port}", "check": check}
            for number, engine in enumerate(here.engines)
        ]
    )


def asked(engine: Engine) -> int:
    return sum(call.line.startswith(b"POST") for call in engine.calls)


@run
async def test_one_that_is_ill_gets_nothing_until_it_is_well_again() -> None:
    clock = [1000.0]
    ill = True

    async def sometimes(call: Call) -> None:
        await call.answer(b"{}", b"503 Loading" if ill and call.line.startswith(b"GET") else b"200 OK")

    async with world(plain, sometimes) as here:
        here.shared.now = lambda: clock[0]
        published(here)
        checker = Checker(here.shared.fleet, now=here.shared.now)
        await checker.round()
        variant = here.shared.fleet.endpoints["chat"].variants["default"]
        assert variant.ejected(clock[0]) == [], "once is no reason"
        await checker.round()
        assert variant.ejected(clock[0]) == ["pod-1"]
        for _ in range(20):
            assert (await here.ask("POST", "/v1/chat/completions", chat("x"))).status == 200
        assert (asked(here.engines[0]), asked(here.engines[1])) == (20, 0)
        ill = False
        await checker.round()
        assert variant.ejected(clock[0]) == ["pod-1"], "it is left out for its time"
        clock[0] += 2
        await checker.round()
        for _ in range(20):
            await here.ask("POST", "/v1/chat/completions", chat("x"))
        assert asked(here.engines[1]) > 0


def test_a_router_that_has_no_open_files_left_finds_nobody_ill_and_nobody_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def crowded(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    @run
    async def told() -> None:
        async with world(saying(b"503 Loading")) as here:
            here.shared.now = lambda: 1000.0
            published(here)
            checker = Checker(here.shared.fleet, now=here.shared.now)
            variant = here.shared.fleet.endpoints["chat"].variants["default"]
            await checker.round()
            with monkeypatch.context() as patched:
                patched.setattr(asyncio, "open_connection", crowded)
                for _ in range(3):
                    await checker.round()
            assert variant.ejected(1000.0) == []
            await checker.round()
            assert variant.ejected(1000.0) == ["pod-0"], "the second failure in a row"

    told()


@run
async def test_who_is_watched_by_others_is_not_asked() -> None:
    async with world(plain) as here:
        published(here, check="")
        await Checker(here.shared.fleet).round()
        assert here.engines[0].calls == []


@run
async def test_an_instance_that_goes_while_it_is_asked_does_no_harm() -> None:
    gone: list[Callable[[], None]] = []

    async def goes(call: Call) -> None:
        gone[0]()
        await call.answer(b"", b"503 Loading")

    async with world(goes, plain) as here:
        published(here)
        gone.append(lambda: here.publish(instances=[{"id": "pod-1", "address": f"127.0.0.1:{here.engines[1].port}"}]))
        checker = Checker(here.shared.fleet)
        await checker.round()
        await checker.round()
        assert here.shared.fleet.endpoints["chat"].variants["default"].ejected(here.shared.now()) == []


@run
async def test_a_router_asks_by_itself() -> None:
    async with world(plain) as here:
        published(here)
        while not here.engines[0].calls:
            await asyncio.sleep(0.02)
        assert here.engines[0].calls[0].line == b"GET /health HTTP/1.1"
