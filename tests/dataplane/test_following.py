"""A router follows what is published in Redis, and goes on without it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import redis

from routing.dataplane import following
from routing.dataplane.following import Follower, Rounds, broker_url
from routing.dataplane.router import Router
from tests.dataplane.engines import Engine
from tests.dataplane.world import SECRET, WAIT_SECONDS, until


@pytest.fixture
def broker(valkey_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[redis.Redis]:
    """The test's own key in a real server."""
    monkeypatch.setattr(following, "CONFIG_KEY", f"test:{uuid4()}:config")
    monkeypatch.setattr(following, "ASK_SECONDS", 0.01)
    monkeypatch.setattr(following, "TROUBLE_SECONDS", 0.02)
    connection = redis.Redis.from_url(valkey_url)
    yield connection
    connection.delete(following.CONFIG_KEY)
    connection.close()


def document(version: int, port: int = 1, **fields: Any) -> str:
    instances = [{"id": "pod-0", "address": f"127.0.0.1:{port}"}]
    endpoint = {"name": "chat", "secret": SECRET, "variants": [{"name": "default", "instances": instances}]}
    return json.dumps({"version": version, "endpoints": [endpoint], **fields})


def publish(broker: redis.Redis, version: int, text: str = "") -> None:
    broker.hset(following.CONFIG_KEY, mapping={"version": version, "document": text or document(version)})


@asynccontextmanager
async def following_router(folder: Path, url: str) -> AsyncIterator[tuple[Router, Follower]]:
    router = Router(folder / "router.json")
    await router.start("127.0.0.1", 0)
    follower = Follower(url, lambda: router.shared.fleet.config.version, router.take)
    task = asyncio.get_running_loop().create_task(follower.run())
    try:
        yield router, follower
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await router.stop(grace_seconds=0)


def told(test: Any) -> None:
    asyncio.run(asyncio.wait_for(test, WAIT_SECONDS))


def version_of(router: Router) -> int:
    return router.shared.fleet.config.version


def test_it_takes_each_newer_version_and_keeps_it_in_its_file(
    broker: redis.Redis, valkey_url: str, tmp_path: Path
) -> None:
    async def test() -> None:
        async with following_router(tmp_path, valkey_url) as (router, follower):
            await until(lambda: follower.connected, "it reaches Redis, where nothing is yet")
            for version in (3, 4, 9):
                publish(broker, version)
                await until(lambda version=version: version_of(router) == version, f"version {version}")  # type: ignore[misc]
            assert json.loads((tmp_path / "router.json").read_text())["version"] == 9
            assert (tmp_path / "router.json").stat().st_mode & 0o777 == 0o600
        again = Router(tmp_path / "router.json")
        again.refresh()
        assert version_of(again) == 9, "the next start needs nobody"

    told(test())


def test_it_leaves_out_what_it_cannot_read_and_takes_the_next(
    broker: redis.Redis, valkey_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with following_router(tmp_path, valkey_url) as (router, _):
            publish(broker, 1)
            await until(lambda: version_of(router) == 1, "the first")
            publish(broker, 2, '{"version": 2, "endpoints": [{"name": "chat"}]}')
            await until(lambda: "stays at version 1" in caplog.text, "the second is refused")
            publish(broker, 3)
            await until(lambda: version_of(router) == 3, "the third")
        assert caplog.text.count("stays at version 1") == 1, "said once"
        assert SECRET not in caplog.text

    told(test())


def test_an_older_version_changes_nothing(broker: redis.Redis, valkey_url: str, tmp_path: Path) -> None:
    async def test() -> None:
        async with following_router(tmp_path, valkey_url) as (router, follower):
            publish(broker, 5)
            await until(lambda: version_of(router) == 5, "the newest")
            publish(broker, 4)
            assert not router.take(document(4, routers=7).encode()) or version_of(router) == 5
            publish(broker, 6)
            await until(lambda: version_of(router) == 6, "the next one")
            assert follower.connected

    told(test())


def test_it_goes_on_without_redis_and_follows_again_when_it_is_back(
    broker: redis.Redis, valkey_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Between them a door that opens and closes; the router's engine is asked all the while."""

    async def test() -> None:
        engine = await Engine().start()
        publish(broker, 1, document(1, engine.port))
        host, port = broker.connection_pool.connection_kwargs["host"], broker.connection_pool.connection_kwargs["port"]
        door = Door(host, port)
        await door.start()
        url = valkey_url.replace(f"{host}:{port}", f"127.0.0.1:{door.port}")
        async with following_router(tmp_path, url) as (router, follower):
            await until(lambda: version_of(router) == 1, "the first")
            door.close()
            await until(lambda: not follower.connected, "it notices")
            publish(broker, 2, document(2, engine.port))
            assert version_of(router) == 1 and "chat" in router.shared.fleet.endpoints
            door.open()
            await until(lambda: version_of(router) == 2, "it is back")
        door.stop()
        await engine.stop()
        assert (
            "routing goes on as it is" in caplog.text
            and ":" + valkey_url.split(":")[2].split("@")[0] not in caplog.text
        )

    told(test())


class Door:
    """A port of its own that leads to the server while it is open, and to nothing while it is closed."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.to, self.port = host, port, 0
        self.is_open = True
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._through, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        self.is_open = False
        for writer in list(self._writers):
            writer.transport.abort()

    def open(self) -> None:
        self.is_open = True

    def stop(self) -> None:
        self.close()
        self._server.close()

    async def _through(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self.is_open:
            writer.transport.abort()
            return
        inner, out = await asyncio.open_connection(self.host, self.to)
        self._writers |= {writer, out}
        try:
            await asyncio.gather(self._pump(reader, out), self._pump(inner, writer), return_exceptions=True)
        finally:
            for one in (writer, out):
                one.transport.abort()
            self._writers -= {writer, out}

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.transport.abort()


def test_it_starts_with_its_file_where_nobody_answers(tmp_path: Path) -> None:
    (tmp_path / "router.json").write_text(document(8))

    async def test() -> None:
        async with following_router(tmp_path, "redis://127.0.0.1:9/0") as (router, follower):
            assert version_of(router) == 8
            await asyncio.sleep(0)
            assert not follower.connected

    told(test())


def test_a_disk_that_takes_nothing_keeps_nobody_from_routing(tmp_path: Path) -> None:
    router = Router(tmp_path / "missing" / "router.json")
    assert router.take(document(1).encode()) and version_of(router) == 1


def test_the_address_may_stand_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://one:1/0")
    monkeypatch.delenv("REDIS_URL_FILE", raising=False)
    assert broker_url() == "redis://one:1/0"
    (tmp_path / "url").write_text("redis://:secret@two:2/0\n")
    monkeypatch.setenv("REDIS_URL_FILE", str(tmp_path / "url"))
    assert broker_url() == "redis://:secret@two:2/0"


class Asking(Rounds):
    def _pause(self) -> float:
        return 0.0

    async def _round(self, connection: Any) -> None:
        await connection.ping()
        self._reached()


def test_it_ends_when_it_is_cancelled_in_whatever_turn_of_the_loop(valkey_url: str) -> None:
    async def test() -> None:
        for turns in range(24):
            asking = Asking(valkey_url)
            task = asyncio.get_running_loop().create_task(asking.run())
            await until(lambda asking=asking: asking.connected, "it asks and asks")  # type: ignore[misc]
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await until(task.done, f"it ends, cancelled after {turns} turns")

    told(test())
