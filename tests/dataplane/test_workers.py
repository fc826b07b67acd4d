"""Several processes on one port, one that dies among them; and what a router says to Prometheus."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import pytest

from routing.dataplane import workers
from routing.dataplane.exposing import Exposing, exposition
from routing.dataplane.workers import PARENT, held_port, is_orphan
from routing.domain.expositions import read_samples
from tests.dataplane.engines import Engine
from tests.dataplane.test_process import process, told, written
from tests.dataplane.world import PREFIX, WAIT_SECONDS, Wire, chat, run, until, world


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

    async def got(page: int, path: str) -> tuple[int, bytes]:
        wire = Wire(*await asyncio.open_connection("127.0.0.1", page))
        reply = await wire.ask("GET", path)
        wire.leave()
        return reply.status, reply.body

    async def answered(page: int, **labels: str) -> float:
        status, text = await got(page, "/metrics")
        assert status == 200
        samples = [one for one in read_samples(text.decode()) if one.name == "hearth_routing_answers_total"]
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
            assert await got(page, "/readyz") == (200, b"ready\n")
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


class Short(workers._Workers):
    """Its processes end as they are told to; ``started`` when each was."""

    def __init__(self, *codes: int) -> None:
        super().__init__([], "127.0.0.1", 1, None)
        self.codes, self.started = codes, list[float]()

    def _start(self, tries: int = 0) -> workers._Worker:
        code = self.codes[min(len(self.started), len(self.codes) - 1)]
        self.started.append(time.monotonic())
        what = "import time; time.sleep(600)" if code < 0 else f"import sys; sys.exit({code})"
        return workers._Worker(subprocess.Popen([sys.executable, "-Sc", what]), None, tries)


def test_what_cannot_start_is_tried_ever_more_seldom_and_then_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(workers, "AGAIN_SECONDS", 0.05)
    monkeypatch.setattr(workers, "LOOK_SECONDS", 0.01)
    short = Short(3)
    assert asyncio.run(asyncio.wait_for(short.run(2, None), WAIT_SECONDS)) == 3
    assert len(short.started) == 2 * workers.TRIES
    assert "ended with 3" in caplog.text and "5 in a row" in caplog.text and "no router process" in caplog.text
    assert short.started[-1] - short.started[0] > 0.05 * (1 + 2 + 4 + 8), "and waited in between"


def test_one_that_cannot_start_takes_the_others_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "AGAIN_SECONDS", 0.001)
    monkeypatch.setattr(workers, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(workers, "LONGEST_SECONDS", 0.002)
    short = Short(-1, 3)

    async def test() -> None:
        running = asyncio.create_task(short.run(2, None))
        await until(lambda: len(short.started) > 2 * workers.TRIES + 2, "it is tried on and on")
        assert not running.done() and short._running[0].process.poll() is None
        short._ending.set()
        await running

    asyncio.run(asyncio.wait_for(test(), WAIT_SECONDS))


@pytest.mark.parametrize(("tries", "seconds"), [(0, 1), (1, 1), (2, 2), (3, 4), (5, 16), (6, 30), (2000, 30)])
def test_the_pause_grows_and_has_an_end(tries: int, seconds: float) -> None:
    assert workers.pause_after(tries) == seconds


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--certificate=/nowhere.pem", "--key=/nowhere.key"], "--certificate and --key"),
        (["--upstream-ca=/nowhere.pem"], "--upstream-ca"),
        (["--host=192.0.2.1", "--workers=2"], "cannot start"),
    ],
    ids=["certificate", "authority", "address"],
)
def test_a_router_that_cannot_start_says_why_in_a_line(tmp_path: Path, options: list[str], said: str) -> None:
    command = [sys.executable, "-m", "routing.dataplane", "--config", str(tmp_path / "router.json"), "--port=0"]
    ended = subprocess.run([*command, *options], capture_output=True, text=True, timeout=WAIT_SECONDS, check=False)
    assert ended.returncode == 1 and said in ended.stderr and "Traceback" not in ended.stderr


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
async def test_it_answers_metrics_and_how_it_is_and_nothing_else() -> None:
    async with world() as here:
        exposing = Exposing(here.shared)
        port = await exposing.start("127.0.0.1", 0)
        for line, status, said in (
            ("GET /metrics", 200, b"hearth_routing_config_version"),
            ("GET /metrics?x=1", 200, b"hearth_routing_config_version"),
            ("HEAD /metrics", 200, b""),
            ("GET /healthz", 200, b"ok"),
            ("GET /readyz", 200, b"ready"),
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
