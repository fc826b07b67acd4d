"""Routers hear one another through a real Valkey, forget who is gone, and go on alone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import pytest
import redis

from routing.dataplane import following, talking
from routing.dataplane.config import read_config
from routing.dataplane.fleet import Fleet, Lease, Variant
from routing.dataplane.talking import Talker
from routing.domain.deciding import Key, Outcome
from routing.domain.together import FRESH_SECONDS, KEEP_SECONDS, NOTHING, Part
from tests.dataplane.test_following import Door, told
from tests.dataplane.world import LEAST, PREFIX, SECRET, until

CHAT, KEY = ("chat", "default"), Key(0xFEED, 1024)


@pytest.fixture
def broker(valkey_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[redis.Redis]:
    """The test's own stream in a real server."""
    monkeypatch.setattr(talking, "WORDS_KEY", f"test:{uuid4()}:words")
    monkeypatch.setattr(talking, "SAY_SECONDS", 0.01)
    monkeypatch.setattr(talking, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(talking, "KEEP_SECONDS", 0.0)  # clocks stand, and who comes late hears no earlier word
    monkeypatch.setattr(following, "TROUBLE_SECONDS", 0.02)
    connection = redis.Redis.from_url(valkey_url)
    yield connection
    connection.delete(talking.WORDS_KEY)
    connection.close()


def config(version: int, routers: int = 2, policy: dict[str, Any] | None = None, count: int = 2) -> bytes:
    instances = [{"id": f"pod-{number}", "address": f"127.0.0.1:{9 + number}"} for number in range(count)]
    variant = {"name": "default", "policy": policy or PREFIX, "instances": instances}
    endpoint = {"name": "chat", "secret": SECRET, "variants": [variant]}
    return json.dumps({"version": version, "routers": routers, "endpoints": [endpoint]}).encode()


@dataclass
class Process:
    """What a router process has of it. Its clock stands until a test moves it."""

    fleet: Fleet = field(default_factory=Fleet)
    name: str = field(default_factory=lambda: uuid4().hex)
    clock: float = 100.0
    talker: Talker | None = None
    task: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        self.apply(config(1))

    def apply(self, document: bytes) -> None:
        self.fleet.apply(read_config(document))

    @property
    def variant(self) -> Variant:
        return self.fleet.endpoints["chat"].variants["default"]

    def lease(self, instance: str = "pod-0", size: int = 50) -> Lease:
        return self.variant.lease(instance, size)

    def start(self, url: str) -> None:
        self.talker = Talker(url, self.fleet, self.name, lambda: self.clock)
        self.task = asyncio.get_running_loop().create_task(self.talker.run())

    async def stop(self) -> None:
        """As kill -9 would: nothing more is said."""
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)


@asynccontextmanager
async def processes(url: str, count: int = 2) -> AsyncIterator[list[Process]]:
    made = [Process() for _ in range(count)]
    for one in made:
        one.start(url)
    try:
        await until(lambda: all(one.fleet.known == count for one in made), "they hear one another")
        yield made
    finally:
        for one in made:
            await one.stop()


def test_each_knows_what_the_other_has_and_tells_its_own_alone(broker: redis.Redis, valkey_url: str) -> None:
    async def test() -> None:
        async with processes(valkey_url) as (one, other):
            mine, theirs = one.lease(), other.lease()
            both = Part({"pod-0": 2}, {}, {"pod-0": 100})
            for each in (one, other):
                await until(lambda each=each: each.variant.pending == both.pending, "it was told")  # type: ignore[misc]
                assert each.variant.in_flight == both.in_flight
                assert each.variant.part() == Part({"pod-0": 1}, {}, {"pod-0": 50}), "its own, once"
            mine.answered()
            await until(lambda: other.variant.pending == {"pod-0": 50}, "an answer began")
            assert other.variant.in_flight == {"pod-0": 2}
            mine.release()
            theirs.release()
            for each in (one, other):
                await until(lambda each=each: each.variant.in_flight == {}, "nothing is left")  # type: ignore[misc]
                assert each.variant.pending == {} and each.variant.part() == NOTHING

    told(test())


def test_where_one_sent_a_key_the_other_sends_it_too(broker: redis.Redis, valkey_url: str) -> None:
    async def test() -> None:
        async with processes(valkey_url) as (one, other):
            home = one.variant.decide(lambda: KEY, 0.0, 10).instance
            await until(lambda: other.variant.places.of(KEY.digest, home) == home, "it is known there")
            wait = one.lease(home, 10_000)
            moved = one.variant.decide(lambda: KEY, 0.0, 10)
            assert moved.outcome is Outcome.RELIEF and moved.instance != home
            wait.release()
            await until(lambda: other.variant.places.of(KEY.digest, home) == moved.instance, "and where it went")
            decision = other.variant.decide(lambda: KEY, 0.0, 10)
            assert (decision.instance, decision.outcome) == (moved.instance, Outcome.MOVED)

    told(test())


def test_one_that_says_nothing_any_more_is_forgotten_with_all_it_had(broker: redis.Redis, valkey_url: str) -> None:
    async def test() -> None:
        async with processes(valkey_url, 3) as (one, other, killed):
            for each in (one, other, killed):
                each.apply(config(2, routers=3))
            alone = Process()
            alone.apply(config(2, routers=3))
            assert not alone.variant._alone and alone.variant._threshold < 8, "its part of the threshold"
            killed.lease()
            await until(lambda: one.variant.in_flight == {"pod-0": 1}, "it is heard")
            assert one.variant._alone and one.variant._threshold == 8, "all of it"
            await killed.stop()

            def later() -> bool:
                """Its last word may be read only now, so time goes on until it is over."""
                if all(each.variant.in_flight == {} and each.fleet.known == 2 for each in (one, other)):
                    return True
                for each in (one, other):
                    each.clock += FRESH_SECONDS / 8
                return False

            await until(later, "no ghost stays, and the two still hear each other")
            assert alone.variant._threshold < one.variant._threshold <= 8

    told(test())


def test_without_redis_each_goes_on_by_its_own_part_and_hears_again_when_it_is_back(
    broker: redis.Redis, valkey_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        given = broker.connection_pool.connection_kwargs
        door = Door(given["host"], given["port"])
        await door.start()
        async with processes(valkey_url.replace(f"{given['host']}:{given['port']}", f"127.0.0.1:{door.port}")) as both:
            one, other = both
            leases = [one.lease("pod-0"), other.lease("pod-1")]
            await until(lambda: one.variant.in_flight == {"pod-0": 1, "pod-1": 1}, "it is heard")
            door.close()
            await until(lambda: not any(each.talker.connected for each in both if each.talker), "they notice")
            for each in both:
                each.clock += FRESH_SECONDS * 2
            await until(lambda: one.variant.in_flight == {"pod-0": 1}, "its own is what it knows")
            await until(lambda: other.variant.in_flight == {"pod-1": 1}, "so does the other")
            assert {each.fleet.known for each in both} == {1}
            leases.append(one.lease("pod-0"))
            door.open()
            await until(lambda: other.variant.in_flight == {"pod-0": 2, "pod-1": 1}, "what it missed is made up for")
            await until(lambda: one.variant.in_flight == other.variant.in_flight, "at both")
            for lease in leases:
                lease.release()
            await until(lambda: one.variant.in_flight == {} == other.variant.in_flight, "rest")
        door.stop()
        assert "Traceback" not in caplog.text

    told(test())


def test_words_that_make_no_sense_change_nothing(broker: redis.Redis, valkey_url: str) -> None:
    async def test() -> None:
        async with processes(valkey_url) as (one, other):
            for message in (b"", b"{", b"[]", b'{"router": "x", "variants": []}', b"[" * 100_000):
                broker.xadd(talking.WORDS_KEY, {"m": message})
            broker.xadd(talking.WORDS_KEY, {"other": b"x"})
            stranger = {"names": ["gone", "default"], "instances": [["p", 1, 1, 1]], "went": [["0" * 16, 0, 0]]}
            broker.xadd(talking.WORDS_KEY, {"m": json.dumps({"router": one.name, "variants": [stranger]})})
            lease = one.lease()
            await until(lambda: other.variant.in_flight == {"pod-0": 1}, "what makes sense is heard")
            lease.release()

    told(test())


def test_it_says_at_once_what_changed_and_now_and_then_that_it_is_there() -> None:
    one = Process()
    talker = Talker("redis://127.0.0.1:9/0", one.fleet, one.name, lambda: one.clock)

    def says() -> bool:
        return talker._word() is not None

    assert [says(), says()] == [True, False], "that it is there"
    lease = one.lease()
    assert [says(), says()] == [True, False], "what it has"
    one.clock += KEEP_SECONDS
    assert [says(), says()] == [True, False], "it is there still"
    lease.release()
    assert [says(), says()] == [True, False], "that it has nothing any more"


@pytest.mark.parametrize(("spent", "pause"), [(0.0, 0.05), (0.001, 0.05), (0.01, 0.2), (1.0, KEEP_SECONDS)])
def test_it_takes_little_of_the_processor_however_much_there_is_to_say(spent: float, pause: float) -> None:
    one = Process()
    talker = Talker("redis://127.0.0.1:9/0", one.fleet, one.name)
    talker._spent = spent
    assert talker._pause() == pytest.approx(pause)


def test_what_it_spends_is_measured_and_no_more_is_kept_than_is_read(broker: redis.Redis, valkey_url: str) -> None:
    async def test() -> None:
        for _ in range(600):
            broker.xadd(talking.WORDS_KEY, {"m": b"x" * 1000})
        async with processes(valkey_url) as (one, other):
            await until(lambda: all(each.talker and each.talker._spent > 0 for each in (one, other)), "it took time")
            await until(lambda: broker.xlen(talking.WORDS_KEY) < 200, "older words went")

    told(test())


def test_who_comes_late_hears_those_who_had_nothing_new_to_say(broker: redis.Redis, valkey_url: str) -> None:
    async def test() -> None:
        one, late = Process(), Process()
        one.start(valkey_url)
        await until(lambda: one.talker is not None and one.talker.connected, "it said its word")
        late.start(valkey_url)
        await until(lambda: one.fleet.known == late.fleet.known == 2, "they hear one another")
        for each in (one, late):
            await each.stop()

    told(test())


def test_a_sole_router_says_nothing(broker: redis.Redis, valkey_url: str) -> None:
    async def test() -> None:
        async with processes(valkey_url) as (one, other):
            await other.stop()
            one.apply(config(2, routers=1))
            await until(lambda: one.fleet.known == 1, "there is nobody to hear")
            seen = one.talker
            assert seen is not None
            await until(lambda: seen._last == b"", "a round in which nothing is asked")
            broker.delete(talking.WORDS_KEY)
            one.lease().release()
            seen._last = b"1-0"
            await until(lambda: seen._last == b"", "and another one")
            assert one.variant._alone and not broker.exists(talking.WORDS_KEY)

    told(test())


class Waiter:
    def __init__(self, fleet: Fleet) -> None:
        self.fleet, self.placed = fleet, ""

    def place(self) -> bool:
        variant = self.fleet.endpoints["chat"].variants["default"]
        decision = variant.decide(lambda: KEY, 0.0, 1)
        if decision.outcome is not Outcome.SATURATED:
            self.placed = decision.instance
            variant.waiting.discard(self)
        return bool(self.placed)

    def give_up(self) -> None:
        raise AssertionError("nobody waits that long")


def test_who_waits_for_room_is_placed_when_another_router_makes_it() -> None:
    async def test() -> None:
        one = Process()
        one.fleet.hear(1, {CHAT: Part({"pod-0": 8, "pod-1": 8}, {}, {})})
        waiter = Waiter(one.fleet)
        one.variant.waiting.add(waiter, 1e9)
        one.fleet.hear(1, {CHAT: Part({"pod-0": 8, "pod-1": 9}, {}, {})})
        await asyncio.sleep(0)
        assert not waiter.placed
        one.fleet.hear(1, {CHAT: Part({"pod-0": 8, "pod-1": 7}, {}, {})})
        await until(lambda: waiter.placed == "pod-1", "there is room")

    told(test())


def test_what_was_heard_outlives_a_change_of_policy_and_goes_once_it_is_said_no_more() -> None:
    one = Process()
    lease = one.lease()
    one.fleet.hear(1, {CHAT: Part({"pod-0": 3, "pod-1": 1}, {}, {"pod-0": 70})})
    policies: list[dict[str, Any]] = [LEAST, PREFIX, LEAST, PREFIX]
    for version, policy in enumerate(policies, 2):
        one.apply(config(version, policy=policy))
        for _ in range(2):
            assert one.variant.in_flight == ({"pod-0": 1} if policy is LEAST else {"pod-0": 4, "pod-1": 1})
            assert one.variant.part().in_flight == {"pod-0": 1} and one.variant._alone
            one.fleet.hear(1, {CHAT: Part({"pod-0": 3, "pod-1": 1}, {}, {"pod-0": 70})})
        if policy is LEAST:
            one.apply(config(version, policy=PREFIX))
            one.fleet.hear(1, {CHAT: Part({"pod-0": 3, "pod-1": 1}, {}, {"pod-0": 70})})
    one.apply(config(10, count=1))
    one.fleet.hear(0, {})
    assert one.variant.in_flight == {"pod-0": 1} and one.variant.pending == {"pod-0": 50}
    lease.release()
    assert one.variant.in_flight == {} == one.variant.pending
