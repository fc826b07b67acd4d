"""Several processes on one port, one that dies among them; and what a router says to Prometheus."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

from routing.dataplane.exposing import Exposing, exposition
from routing.dataplane.workers import PARENT, held_port, is_orphan
from routing.domain.expositions import read_samples
from tests.dataplane.engines import Engine
from tests.dataplane.test_process import process, told, written
from tests.dataplane.world import PREFIX, Wire, chat, run, until, world


def children(parent: int) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(parent)], capture_output=True, text=True, check=False)
    return [int(line) for line in found.stdout.split()]


def test_several_processes_share_a_port_and_one_that_dies_is_replaced(tmp_path: Path) -> None:
    async def answers(port: int) -> bool:
        try:
            wire = Wire(*await asyncio.open_connection("127.0.0.1", port))
            reply = await wire.ask("POST", "/v1/chat/completions", chat("x"))
        except (OSError, asyncio.IncompleteReadError):
            return False
        wire.leave()
        return reply.status == 200

    async def serves(port: int) -> None:
        while not await answers(port):
            await asyncio.sleep(0.05)

    async def test() -> None:
        engine = await Engine().start()
        async with process(written(tmp_path, 1, engine), "--workers=2") as (made, port):
            await serves(port)
            first = children(made.pid)
            assert len(first) == 2
            os.kill(first[0], signal.SIGKILL)
            await until(lambda: len(set(children(made.pid)) - set(first)) == 1, "another takes its place")
            await serves(port)
            second = children(made.pid)
            made.send_signal(signal.SIGTERM)
            assert await made.wait() == 0
            await until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in second), "nothing stays behind")
        await engine.stop()

    told(test())


def test_one_page_has_the_numbers_of_all_processes_and_they_never_fall(tmp_path: Path) -> None:
    async def ask(port: int, times: int) -> None:
        for _ in range(times):  # each over a connection of its own, which any of the processes may get
            wire = Wire(*await asyncio.open_connection("127.0.0.1", port))
            assert (await wire.ask("POST", "/v1/chat/completions", chat("x"))).status == 200
            wire.leave()

    async def answered(page: int, **labels: str) -> float:
        wire = Wire(*await asyncio.open_connection("127.0.0.1", page))
        reply = await wire.ask("GET", "/metrics")
        wire.leave()
        assert reply.status == 200
        samples = [one for one in read_samples(reply.body.decode()) if one.name == "hearth_routing_answers_total"]
        return sum(one.value for one in samples if labels.items() <= one.labels.items())

    async def answers(page: int, wanted: int) -> None:
        while (found := await answered(page, endpoint="chat", status="200")) != wanted:
            assert found < wanted
            await asyncio.sleep(0.02)

    async def serves(port: int) -> None:
        while True:
            try:
                return await ask(port, 1)
            except (OSError, asyncio.IncompleteReadError):
                await asyncio.sleep(0.05)

    async def test() -> None:
        engine = await Engine().start()
        async with process(written(tmp_path, 1, engine), "--workers=2", "--metrics-port=0") as (made, port):
            assert made.stdout is not None
            page = int((await made.stdout.readline()).decode().removeprefix("metrics on port "))
            await serves(port)
            await until(lambda: len(children(made.pid)) == 2, "both run")
            await ask(port, 19)
            await answers(page, 20)
            [gone, _] = children(made.pid)
            os.kill(gone, signal.SIGKILL)
            await until(lambda: gone not in children(made.pid), "it is gone")
            await answers(page, 20)
            await serves(port)
            await answers(page, 21)
            made.send_signal(signal.SIGTERM)
            assert await made.wait() == 0
        await engine.stop()

    told(test())


def test_a_worker_knows_that_its_parent_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PARENT, raising=False)
    assert not is_orphan(), "nobody's worker"
    monkeypatch.setenv(PARENT, str(os.getppid()))
    assert not is_orphan()
    monkeypatch.setenv(PARENT, "1" if os.getppid() != 1 else "2")
    assert is_orphan()


def test_a_port_that_is_held_takes_no_connections_itself() -> None:
    with held_port("127.0.0.1", 0) as held, pytest.raises(ConnectionRefusedError):
        asyncio.run(asyncio.open_connection("127.0.0.1", held.getsockname()[1]))


@run
async def test_it_exposes_what_happened_in_the_format_that_prometheus_reads() -> None:
    async with world(policy=PREFIX) as here:
        for _ in range(3):
            await here.ask("POST", "/v1/chat/completions", chat("x" * 2000))
        await here.ask("GET", "/nowhere")
        text = exposition(here.shared, following=True)
        samples = defaultdict(list)
        for one in read_samples(text):
            samples[one.name].append(one)
        [decided] = samples["hearth_routing_decisions_total"]
        assert decided.value == 3 and decided.labels == {
            "endpoint": "chat", "variant": "default", "outcome": "Primary", "instance": "pod-0",
        }  # fmt: skip
        assert samples["hearth_routing_answers_total"][0].value == 3
        assert samples["hearth_routing_config_version"][0].value == here.version
        assert [one.value for one in samples["hearth_routing_in_flight"]] == [0]
        assert samples["hearth_routing_following"][0].value == 1 and "xxx" not in text
        assert "hearth_routing_following" not in exposition(here.shared)


@run
async def test_it_answers_metrics_and_nothing_else() -> None:
    async with world() as here:
        exposing = Exposing(here.shared)
        port = await exposing.start("127.0.0.1", 0)
        for line, status, said in (
            ("GET /metrics", 200, b"hearth_routing_config_version"),
            ("GET /metrics?x=1", 200, b"hearth_routing_config_version"),
            ("HEAD /metrics", 200, b""),
            ("GET /", 404, b"Only GET"),
            ("POST /metrics", 404, b"Only GET"),
        ):
            wire = Wire(*await asyncio.open_connection("127.0.0.1", port))
            await wire.send(f"{line} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
            reply = await wire.reply(head=line.startswith("HEAD"))
            assert reply.status == status and said in reply.body
            wire.leave()
        wire = Wire(*await asyncio.open_connection("127.0.0.1", port))
        await wire.send(b"GET /metrics HTTP/1.1\r\nx: " + b"y" * 20_000)
        assert await wire.closed(), "a head without an end is not waited for"
        wire.leave()
        await exposing.stop()
