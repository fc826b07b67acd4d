"""What a router says to Prometheus with odd names, to odd clients, and to several at once."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from routing.dataplane import exposing as module
from routing.dataplane.exposing import Exposing, exposition
from routing.dataplane.router import Shared
from routing.dataplane.workers import held_port
from routing.domain.expositions import read_samples
from tests.dataplane.world import Wire, chat, run, until, world


@run
async def test_odd_names_are_read_back_as_they_are() -> None:
    async with world() as here:
        here.version += 1
        port = here.engines[0].port
        names = ['a"b', "c\\d", "e\nf", "g\\n", "h{i}", "j,k=l", "é中", "m n"]
        here.publish_endpoints(
            [
                {
                    "name": name,
                    "secret": "ab" * 16,
                    "variants": [
                        {"name": "default", "instances": [{"id": f"of {name}", "address": f"127.0.0.1:{port}"}]}
                    ],
                }
                for name in names
            ]
        )
        text = exposition(here.shared)
        found = [one.labels for one in read_samples(text) if one.name == "hearth_routing_in_flight"]
        assert [one["endpoint"] for one in found] == names
        assert [one["instance"] for one in found] == [f"of {name}" for name in names]


def test_a_router_that_knows_nothing_says_so_in_numbers() -> None:
    samples = {one.name: one.value for one in read_samples(exposition(Shared(), following=False))}
    assert samples == {
        "hearth_routing_disconnected_total": 0,
        "hearth_routing_truncated_total": 0,
        "hearth_routing_config_version": 0,
        "hearth_routing_clients": 0,
        "hearth_routing_following": 0,
        "hearth_routing_routers": 1,
        "hearth_routing_routers_known": 1,
    }


@run
async def test_a_router_is_ready_once_anything_was_published_even_that_there_is_no_endpoint() -> None:
    async with world() as here:
        exposing = Exposing(Shared())
        here.version += 1
        here.publish_endpoints([])
        told = Exposing(here.shared)
        for page, status in ((exposing, 503), (told, 200)):
            port = await page.start("127.0.0.1", 0)
            for path, expected in (("/readyz", status), ("/healthz", 200)):
                wire = Wire(*await asyncio.open_connection("127.0.0.1", port))
                assert (await wire.ask("GET", path)).status == expected, path
                wire.leave()
            await page.stop()


@run
async def test_refusals_and_who_left_are_counted_also_where_no_endpoint_is_known() -> None:
    async with world() as here:
        here.version += 1
        here.publish_endpoints([])
        assert (await here.ask("POST", "/v1/chat/completions", chat("x"))).status == 503
        text = exposition(here.shared)
        assert 'hearth_routing_refusals_total{code="routing:config:empty"} 1' in text


@run
async def test_it_answers_many_at_once_and_survives_those_that_leave_or_dawdle() -> None:
    async with world() as here:
        exposing = Exposing(here.shared)
        port = await exposing.start("127.0.0.1", 0)
        try:
            silent = Wire(*await asyncio.open_connection("127.0.0.1", port))
            half = Wire(*await asyncio.open_connection("127.0.0.1", port))
            await half.send(b"GET /metrics HTT")
            half.leave()
            wires = [Wire(*await asyncio.open_connection("127.0.0.1", port)) for _ in range(20)]
            for wire in wires:
                await wire.send(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\nGET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            for wire in wires:
                assert (await wire.reply()).status == 200
                assert await wire.closed(), "one answer for each connection"
                wire.leave()
            silent.leave()
        finally:
            await exposing.stop()


def test_silence_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HEAD_SECONDS", 0.01)

    @run
    async def test() -> None:
        exposing = Exposing(Shared())
        port = await exposing.start("127.0.0.1", 0)
        wire = Wire(*await asyncio.open_connection("127.0.0.1", port))
        assert await wire.closed()
        wire.leave()
        await exposing.stop()

    test()


def test_a_port_that_somebody_has_is_said_and_nothing_is_left_open() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OSError, match="in use"):
            held_port("127.0.0.1", taken.getsockname()[1])


@pytest.mark.parametrize("options", [["--workers", "0"], ["--workers", "-1"], ["--workers", "x"]])
def test_workers_that_cannot_be_are_refused_at_the_start(tmp_path: Path, options: list[str]) -> None:
    command = [sys.executable, "-m", "routing.dataplane", "--config", str(tmp_path / "c"), "--port", "0", *options]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == 2 and "--workers" in ended.stderr and ended.stdout == ""


def test_workers_whose_parent_is_killed_end_by_themselves(tmp_path: Path) -> None:
    from tests.dataplane.test_process import process, told
    from tests.dataplane.test_workers import children

    async def test() -> None:
        async with process(tmp_path / "router.json", "--workers=2") as (made, _):
            await until(lambda: len(children(made.pid)) == 2, "both run")
            left = children(made.pid)
            made.send_signal(signal.SIGKILL)
            await made.wait()
            try:
                await until(lambda: not any(_runs(pid) for pid in left), "they notice")
            finally:
                for pid in left:
                    if _runs(pid):
                        os.kill(pid, signal.SIGKILL)

    told(test())


def _runs(pid: int) -> bool:
    """Not one that has ended and that nobody has waited for yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
