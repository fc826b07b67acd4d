"""What may stand in Redis by mistake or malice, and what a router makes of it: it goes on, and follows what is next."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import redis

from routing.dataplane import following, telling
from routing.dataplane.config import MOST_VERSION, BadConfig, read_config
from routing.dataplane.following import Follower
from routing.dataplane.router import Router
from routing.dataplane.telling import Teller
from tests.dataplane.test_following import broker, document, following_router, publish, told, version_of
from tests.dataplane.world import SECRET, until

__all__ = ["broker"]


def written(version: str = "1", **instance: Any) -> bytes:
    """A document whose version stands there as it is given."""
    one = {"id": "pod-0", "address": "127.0.0.1:1", **instance}
    endpoint = {"name": "chat", "secret": SECRET, "variants": [{"name": "default", "instances": [one]}]}
    return json.dumps({"version": "@", "endpoints": [endpoint]}).replace('"@"', version).encode()


ODD = {
    "a version without end": written("1e999"),
    "a version that is infinite": written("Infinity"),
    "a version that is no number": written("NaN"),
    "a version below all": written("-1"),
    "a version above all": written(str(MOST_VERSION)),
    "a version of nobody": written("null"),
    "a version with 5,000 digits": written("9" * 5000),
    "a weight without end": written(weight=10**400),
    "a weight that is infinite": written(weight=float("inf")),
    "a weight that is no number": written(weight=float("nan")),
    "an id of half a character": written(id="\ud800"),
    "a port that is none": written(address="127.0.0.1:http"),
    "a port of 0": written(address="127.0.0.1:0"),
    "a port too high": written(address="127.0.0.1:65536"),
    "no host": written(address=":80"),
    "an instance that is a text": json.dumps(
        {
            "version": 1,
            "endpoints": [{"name": "a", "secret": SECRET, "variants": [{"name": "default", "instances": ["pod-0"]}]}],
        }
    ).encode(),
    "a queue that is a list": json.dumps(
        {
            "version": 1,
            "endpoints": [
                {"name": "a", "secret": SECRET, "variants": [{"name": "default", "instances": [], "queue": [1]}]}
            ],
        }
    ).encode(),
    "a queue without end": (
        b'{"version": 1, "endpoints": [{"name": "a", "secret": "%s", "variants": '
        b'[{"name": "d", "instances": [], "queue": {"requests": 1e999}}]}]}' % SECRET.encode()
    ),
    "waiting without end": (
        b'{"version": 1, "endpoints": [{"name": "a", "secret": "%s", "variants": '
        b'[{"name": "d", "instances": [], "queue": {"requests": 1, "seconds": 1e999}}]}]}' % SECRET.encode()
    ),
    "a beginning that is no digest": (
        b'{"version": 1, "endpoints": [{"name": "a", "secret": "%s", "variants": '
        b'[{"name": "d", "instances": [], "hot": ["xyz"]}]}]}' % SECRET.encode()
    ),
    "a name of half a character": written().replace(b'"chat"', b'"\\ud800"'),
    "a list": b"[]",
    "a number": b"7",
    "nothing": b"",
    "no text": b"\xff\xfe\x00",
    "very deep": b"[" * 100_000,
    "cut in the middle": written()[:-20],
}


@pytest.mark.parametrize("case", ODD)
def test_what_is_no_configuration_is_refused_without_an_end_of_following(
    case: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(BadConfig) as refused:
        read_config(ODD[case])
    assert SECRET not in str(refused.value)
    router = Router(tmp_path / "router.json")
    assert router.take(document(3).encode()) and not router.take(ODD[case])
    assert version_of(router) == 3 and caplog.text.count("stays at version 3") == 1
    (tmp_path / "router.json").write_bytes(ODD[case])
    router.refresh()
    assert version_of(router) == 3, "nor does a file that somebody damaged take anything away"
    Router(tmp_path / "router.json").refresh()


@pytest.mark.parametrize(
    ("version", "text"),
    [
        ("one", document(50)),
        ("-5", document(50)),
        ("1e9", document(50)),
        ("", document(50)),
        ("9" * 5000, document(50)),
        ("9" * 15, "{"),
        ("900", '{"version": 900}'),
    ],
)
def test_a_version_that_is_none_is_passed_over_and_the_next_is_taken(
    broker: redis.Redis, valkey_url: str, tmp_path: Path, version: str, text: str
) -> None:
    """Also one that is far above: a broker that was emptied begins below it again."""

    async def test() -> None:
        async with following_router(tmp_path, valkey_url) as (router, follower):
            publish(broker, 2)
            await until(lambda: version_of(router) == 2, "the first")
            broker.hset(following.CONFIG_KEY, mapping={"version": version, "document": text})
            asked = await rounds(follower)
            await until(lambda: asked() >= 3, "it was looked at")
            assert version_of(router) == 2 and follower.connected
            broker.delete(following.CONFIG_KEY)
            publish(broker, 3)
            await until(lambda: version_of(router) == 3, "the one after")

    told(test())


async def rounds(follower: Follower) -> Any:
    """How many times it asked since, as a function."""
    count, ask = [0], follower._ask

    async def counted(connection: Any) -> None:
        await ask(connection)
        count[0] += 1

    follower._ask = counted  # type: ignore[method-assign]
    return lambda: count[0]


def test_a_document_that_is_older_than_its_number_is_read_once(
    broker: redis.Redis, valkey_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with following_router(tmp_path, valkey_url) as (router, follower):
            taken: list[bytes] = []
            follower._take = lambda data: (taken.append(data), router.take(data))[1]  # type: ignore[func-returns-value]
            publish(broker, 5)
            await until(lambda: version_of(router) == 5, "the first")
            publish(broker, 9, document(4))
            asked = await rounds(follower)
            await until(lambda: asked() >= 4, "it was looked at")
            assert len(taken) == 2 and version_of(router) == 5
            publish(broker, 10)
            await until(lambda: version_of(router) == 10, "one that is what it says")

    told(test())


def test_a_broker_that_is_emptied_takes_nothing_away(broker: redis.Redis, valkey_url: str, tmp_path: Path) -> None:
    async def test() -> None:
        async with following_router(tmp_path, valkey_url) as (router, follower):
            publish(broker, 7)
            await until(lambda: version_of(router) == 7, "the first")
            broker.delete(following.CONFIG_KEY)
            asked = await rounds(follower)
            await until(lambda: asked() >= 3, "it was looked at")
            assert version_of(router) == 7 and follower.connected and "chat" in router.shared.fleet.endpoints
            for version in (6, 7):
                publish(broker, version, document(version, routers=9))
            await until(lambda: asked() >= 6, "older ones arrive late")
            assert router.shared.fleet.config.routers == 1
            broker.hset(following.CONFIG_KEY, mapping={"version": 8})
            broker.hdel(following.CONFIG_KEY, "document")
            await until(lambda: asked() >= 9, "a number without a document")
            assert version_of(router) == 7
            publish(broker, 8)
            await until(lambda: version_of(router) == 8, "its document follows")

    told(test())


def test_a_key_of_another_kind_stops_nothing_for_good(
    broker: redis.Redis, valkey_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with following_router(tmp_path, valkey_url) as (router, follower):
            await until(lambda: follower.connected, "it is there")
            broker.set(following.CONFIG_KEY, "mine")
            await until(lambda: not follower.connected, "it cannot be asked")
            refused = follower._refused
            await until(lambda: follower._refused > refused + 2, "several times")
            broker.delete(following.CONFIG_KEY)
            publish(broker, 1)
            await until(lambda: version_of(router) == 1 and follower.connected, "it follows again")
        assert caplog.text.count("Redis is not reached") == 1, "said once"

    told(test())


def test_it_follows_on_where_nothing_more_can_be_told(
    broker: redis.Redis,
    valkey_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A full broker, or another kind of key in the place: what was counted is kept, and told when there is room."""
    stream = f"test:{uuid4()}:figures"
    monkeypatch.setattr(telling, "STREAM_KEY", stream)

    async def test() -> None:
        async with following_router(tmp_path, valkey_url) as (router, follower):
            teller = Teller(router.shared.fleet)
            broker.set(stream, "not a stream")
            follower._work = teller.tell
            await until(lambda: follower._unheard, "it is refused")
            publish(broker, 4)
            await until(lambda: version_of(router) == 4, "what is published is taken all the same")
            asked = await rounds(follower)
            await until(lambda: asked() >= 4, "it goes on")
            assert follower.connected and teller._pending is not None
            broker.delete(stream)
            await until(lambda: broker.exists(stream), "there is room")
            await until(lambda: not follower._unheard, "it is heard")
            found: Any = broker.xrange(stream)
            assert json.loads(found[0][1][b"m"])["number"] == 1, "the very message that was refused"
        assert caplog.text.count("does not take what is told") == 1

    try:
        told(test())
    finally:
        broker.delete(stream)


def test_nothing_that_goes_wrong_ends_the_following(
    broker: redis.Redis, valkey_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with following_router(tmp_path, valkey_url) as (router, follower):
            await until(lambda: follower.connected, "it is there")
            take, follower._take = follower._take, lambda data: bool(1 / 0)
            publish(broker, 1)
            await until(lambda: not follower.connected, "something unheard of")
            follower._take = take
            await until(lambda: version_of(router) == 1, "it is tried again")
        assert "ZeroDivisionError" in caplog.text

    told(test())


def test_versions_that_arrive_in_any_order_end_with_the_newest(tmp_path: Path) -> None:
    router = Router(tmp_path / "router.json")
    for version in (3, 1, 7, 5, 7, 2):
        assert router.take(document(version).encode())
    assert version_of(router) == 7
    assert json.loads((tmp_path / "router.json").read_text())["version"] == 7
    assert [one.name for one in tmp_path.iterdir()] == ["router.json"], "nothing half written stays"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "--follow needs REDIS_URL"),
        ({"REDIS_URL": " "}, "--follow needs REDIS_URL"),
        ({"REDIS_URL_FILE": "/nowhere/url"}, "cannot be read (FileNotFoundError)"),
    ],
)
def test_who_is_to_follow_and_cannot_know_whom_is_told_at_the_start(
    tmp_path: Path, given: dict[str, str], said: str
) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("REDIS_URL")}
    command = [sys.executable, "-m", "routing.dataplane", "--config", str(tmp_path / "c"), "--follow", "--port", "0"]
    ended = subprocess.run(command, env={**clean, **given}, capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == 2 and said in ended.stderr and ended.stdout == ""


def test_an_instance_at_a_host_that_is_no_name_is_a_failure_and_no_silence(tmp_path: Path) -> None:
    from tests.dataplane.world import world

    async def test() -> None:
        async with world() as here:
            for host in ("a" * 70, "a..b", "x\x00y"):
                here.publish(instances=[{"id": f"odd-{len(host)}", "address": f"{host}:80"}])
                reply = await here.ask("POST", "/v1/completions", b"{}")
                assert reply.status == 502 and here.in_flight() == {}, host

    asyncio.run(asyncio.wait_for(test(), 60))
