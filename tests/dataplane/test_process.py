"""The router as a process of its own: no Django, TLS on both sides, configuration from a file, a gentle end."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.dataplane.engines import Call, Engine
from tests.dataplane.world import SECRET, WAIT_SECONDS, Wire, chat, request, until
from tests.sources.test_s3_misbehaving import certificates


def written(folder: Path, version: int, engine: Engine, **instance: object) -> Path:
    instances = [{"id": "pod-0", "address": f"127.0.0.1:{engine.port}", **instance}]
    endpoint = {"name": "chat", "secret": SECRET, "variants": [{"name": "default", "instances": instances}]}
    path = folder / "router.json"
    made = path.with_suffix(".new")
    made.write_text(json.dumps({"version": version, "endpoints": [endpoint]}))
    made.replace(path)
    return path


@asynccontextmanager
async def process(
    config: Path, *options: str, fds: tuple[int, ...] = ()
) -> AsyncIterator[tuple[asyncio.subprocess.Process, int]]:
    command = [
        sys.executable,
        "-W",
        "error",
        "-m",
        "routing.dataplane",
        "--config",
        str(config),
        "--port",
        "0",
        *options,
    ]
    made = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, pass_fds=fds)
    assert made.stdout is not None
    try:
        line = (await made.stdout.readline()).decode()
        match = re.fullmatch(r"routing on port (\d+)\n", line)
        assert match, line
        yield made, int(match[1])
    finally:
        if made.returncode is None:
            made.send_signal(signal.SIGTERM)
        _, said = await made.communicate()
    assert not re.search(rb"ResourceWarning|never retrieved|never awaited|was destroyed", said), said.decode()


def told(test: object) -> None:
    asyncio.run(asyncio.wait_for(test, WAIT_SECONDS))  # type: ignore[arg-type]


def test_it_serves_over_tls_to_engines_with_tls(tmp_path: Path) -> None:
    authority, pem, key = certificates()
    for name, text in (("ca.pem", authority), ("chain.pem", pem), ("key.pem", key)):
        (tmp_path / name).write_text(text)
    served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    served.load_cert_chain(tmp_path / "chain.pem", tmp_path / "key.pem")
    trusted = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))

    async def test() -> None:
        engine = await Engine().start(tls=served)
        config = written(tmp_path, 1, engine, tls=True)
        files = [f"--certificate={tmp_path / 'chain.pem'}", f"--key={tmp_path / 'key.pem'}"]
        async with process(config, *files, f"--upstream-ca={tmp_path / 'ca.pem'}") as (_, port):
            wire = Wire(*await asyncio.open_connection("127.0.0.1", port, ssl=trusted))
            for _ in range(3):
                assert (await wire.ask("POST", "/v1/chat/completions", chat("x"))).body == b"{}"
            wire.leave()
        async with process(config, *files) as (_, port):
            wire = Wire(*await asyncio.open_connection("127.0.0.1", port, ssl=trusted))
            assert (await wire.ask("POST", "/v1/chat/completions", chat("x"))).status == 502, "trusts nobody unasked"
            wire.leave()
        await engine.stop()

    told(test())


def test_it_takes_up_what_is_published_and_finishes_what_runs_when_it_is_stopped(tmp_path: Path) -> None:
    go = asyncio.Event()

    async def waits(call: Call) -> None:
        await go.wait()
        await call.answer(b"late")

    async def test() -> None:
        one, other = await Engine().start(), await Engine(waits).start()
        async with process(written(tmp_path, 1, one)) as (made, port):
            wire = Wire(*await asyncio.open_connection("127.0.0.1", port))
            assert (await wire.ask("POST", "/v1/completions", b"{}")).body == b"{}"
            written(tmp_path, 2, other)
            while not other.calls:
                busy = Wire(*await asyncio.open_connection("127.0.0.1", port))
                await busy.send(request("POST", "/v1/completions", b"{}"))
                before = len(one.calls)
                await until(lambda before=before: other.calls or len(one.calls) > before, "somebody has it")  # type: ignore[misc]
                if not other.calls:
                    busy.leave()
            made.send_signal(signal.SIGTERM)
            assert await wire.closed(), "who waits for nothing is let go"
            go.set()
            assert (await busy.reply()).body == b"late"
            assert await made.wait() == 0
            busy.leave()
            wire.leave()
        await one.stop()
        await other.stop()

    told(test())


def test_it_serves_on_a_socket_that_its_parent_keeps_for_it(tmp_path: Path) -> None:
    async def test() -> None:
        engine = await Engine().start()
        with socket.create_server(("127.0.0.1", 0)) as taken, socket.create_server(("127.0.0.1", 0)) as metrics:
            config, fds = written(tmp_path, 1, engine), (taken.fileno(), metrics.fileno())
            given = [f"--fd={fds[0]}", "--metrics-port=1", f"--metrics-fd={fds[1]}"]
            for _ in range(2):  # also when it starts again
                waiting, asks = [await asyncio.open_connection(*one.getsockname()) for one in (taken, metrics)]
                asks[1].write(b"GET /metrics HTTP/1.1\r\n\r\n")
                async with process(config, *given, fds=fds) as (_, port):
                    assert b"hearth_routing_" in await asks[0].read()
                    asks[1].close()
                    assert port == taken.getsockname()[1]
                    wire = Wire(*waiting)
                    assert (await wire.ask("POST", "/v1/completions", b"{}")).body == b"{}", "who came before it"
                    wire.leave()
                with pytest.raises(OSError), socket.create_server(("127.0.0.1", port)):
                    pass
        await engine.stop()

    told(test())


def test_a_socket_that_is_kept_is_for_one_worker(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "routing.dataplane", "--config", str(tmp_path / "none"), "--fd=0", "--workers=2"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2 and "--fd is for one worker" in ended.stderr


def test_it_starts_without_any_configuration_and_says_so(tmp_path: Path) -> None:
    async def test() -> None:
        engine = await Engine().start()
        async with process(tmp_path / "router.json", "--body-bytes=1000") as (_, port):
            wire = Wire(*await asyncio.open_connection("127.0.0.1", port))
            reply = await wire.ask("POST", "/v1/completions", b"{}")
            assert reply.status == 503 and json.loads(reply.body)["error"]["code"] == "routing:config:empty"
            written(tmp_path, 1, engine)
            while reply.status == 503:
                reply = await wire.ask("POST", "/v1/completions", b"{}")
                await asyncio.sleep(0.02)
            assert reply.status == 200
            assert (await wire.ask("POST", "/v1/completions", b"x" * 1001)).status == 413, "more than it was told"
            wire.leave()
        await engine.stop()

    told(test())


def test_it_needs_no_django_and_no_database() -> None:
    check = (
        "import routing.dataplane.router, routing.dataplane.__main__, sys; "
        "sys.exit(','.join(sorted({'django', 'psycopg', 'celery', 'redis', 'boto3'} & set(sys.modules))) or 0)"
    )
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("DJANGO", "DATABASE"))}
    ended = subprocess.run([sys.executable, "-c", check], env=clean, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
