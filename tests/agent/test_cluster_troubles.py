"""A cluster that does not answer, answers late, or answers nonsense: the node goes on with what it knows."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from controlplane.clusters.documents import (
    Action,
    ConnectionSpec,
    Desired,
    EntryState,
    FileRecord,
    Limits,
    Manifest,
    NodeCacheStatus,
    Reason,
    SourceType,
)  # fmt: skip
from controlplane.clusters.gateway import Conflict, NotFound, Throttled, Unreachable
from tests.agent.world import KIB, MemoryLink, World, noise

DATA = noise(300 * KIB)


class Moody(MemoryLink):
    """Every call named in ``down`` cannot reach the cluster."""

    def __init__(self) -> None:
        super().__init__()
        self.down: set[str] = set()
        self.patience = 0.0  # seconds that are asked for by who is down
        self.asked: list[str] = []

    def _try(self, name: str) -> None:
        self.asked.append(name)
        if name in self.down:
            raise Throttled("slow down", self.patience) if self.patience else Unreachable("unplugged")

    def desired(self) -> Desired | None:
        self._try("desired")
        return super().desired()

    def manifest(self, digest: str) -> Manifest:
        self._try("manifest")
        return super().manifest(digest)

    def secret(self, name: str) -> Mapping[str, str]:
        self._try("secret")
        return super().secret(name)

    def report(self, status: NodeCacheStatus) -> None:
        self._try("report")
        super().report(status)

    def event(self, reason: str, message: str) -> None:
        self._try("event")
        super().event(reason, message)

    def disk(self) -> tuple[int, int] | None:
        self._try("disk")
        return super().disk()

    def wait(self, known_generation: int, timeout_seconds: float) -> bool:
        self._try("wait")
        return super().wait(known_generation, timeout_seconds)


def secretive(world: World) -> None:
    spec = ConnectionSpec("disk", SourceType.FILESYSTEM, allowed=(str(world.origin),), secret_name="key")
    world.connections = (spec,)


@pytest.mark.parametrize("call", ["manifest", "secret"])
def test_it_waits_for_what_it_needs_from_the_cluster(tmp_path: Path, call: str) -> None:
    link = Moody()
    link.down, link.secrets = {call}, {"key": {}}
    with World(tmp_path, link=link) as world:
        secretive(world)
        digest = world.model("m", {"a": DATA})
        entry = world.becomes(digest, EntryState.FAILED, reason=Reason.NODE_UNAVAILABLE)
        assert "cluster does not answer" in entry.message and not world.requests
        link.down.clear()
        world.becomes(digest, EntryState.READY)


@pytest.mark.parametrize("call", ["event", "disk", "wait"])
def test_it_needs_no_answer_to_what_is_only_said_or_known_better(tmp_path: Path, call: str) -> None:
    link = Moody()
    link.down = {call}
    with World(tmp_path, link=link) as world:
        digest = world.model("m", {"a": DATA})
        world.becomes(digest, EntryState.READY, attempts=0)
        world.want(digest, action=Action.EVICT)
        world.becomes(digest, EntryState.ABSENT)
        assert call in link.asked


def test_it_works_while_it_cannot_report_and_says_all_of_it_afterwards(tmp_path: Path) -> None:
    link = Moody()
    with World(tmp_path, link=link) as world:
        world.until(lambda: link.reports)
        link.down = {"report"}
        digest = world.model("m", {"a": DATA})
        world.until(lambda: world.store.marker(digest) and world.tree(digest).exists())
        asked = len(link.asked)
        world.quiet(0.3)
        assert link.asked[asked:].count("report") <= 4, "not with every tick"
        link.down.clear()
        entry = world.becomes(digest, EntryState.READY)
        assert entry.bytes_moved == len(DATA)


def test_it_reports_no_sooner_than_it_was_asked_to(tmp_path: Path) -> None:
    link = Moody()
    with World(tmp_path, link=link) as world:
        world.until(lambda: link.reports)
        link.patience, link.down = 2.0, {"report"}
        asked, started = len(link.asked), time.monotonic()
        digest = world.model("m", {"a": DATA})
        world.until(lambda: world.store.marker(digest))
        world.quiet(0.3)
        told = link.asked[asked:].count("report")
        assert told <= 1 + (time.monotonic() - started) / link.patience
        link.down.clear()
        world.becomes(digest, EntryState.READY)


def test_it_keeps_what_it_has_while_no_wish_can_be_heard(tmp_path: Path) -> None:
    link = Moody()
    world = World(tmp_path, link=link)
    with world:
        digest = world.model("m", {"a": DATA})
        world.becomes(digest, EntryState.READY)
    link.down = {"desired", "manifest", "wait"}
    link.reports.clear()
    with world:  # a new agent that has never heard a wish
        world.until(lambda: link.reports)
        assert not link.reports[-1].entries and [orphan.partial for orphan in link.reports[-1].orphans] == [False]
        link.down.clear()
        world.becomes(digest, EntryState.READY, bytes_moved=len(DATA))
    assert world.content(digest) == {"a": DATA}


@pytest.mark.parametrize("spec", ["none", "other uid", "same again", "older"])
def test_it_goes_on_with_the_last_wish_whatever_odd_one_follows(tmp_path: Path, spec: str) -> None:
    with World(tmp_path) as world:
        digest = world.model("m", {"a": DATA})
        world.becomes(digest, EntryState.READY)
        current = world.link.current
        assert current
        changed = {
            "none": None,
            "other uid": Desired(99, replace(current.spec, node_uid="uid-2", desired=())),
            "same again": Desired(current.generation, replace(current.spec, desired=())),
            "older": replace(current),
        }[spec]
        with world.link.changed:
            world.link.current = changed
            world.link.changed.notify_all()
        seen = len(world.link.reports)
        world.until(lambda: len(world.link.reports) > seen)
        world.becomes(digest, EntryState.READY)
        assert world.link.reports[-1].observed_generation == current.generation
    assert world.content(digest) == {"a": DATA}


def test_it_stops_writing_when_another_incarnation_took_over_in_the_middle_of_a_download(tmp_path: Path) -> None:
    reached, go = threading.Event(), threading.Event()

    def hold(file: FileRecord, position: int) -> None:
        if position >= 128 * KIB:
            reached.set()
            go.wait(60)

    world = World(tmp_path, before=hold, limits=Limits(max_requests=1))
    with world:
        digest = world.model("m", {"a": DATA})
        assert reached.wait(60)
        world.link.replaced = True
        world.until(lambda: world.error)
        go.set()
    assert not world.tree(digest).exists() and "another incarnation" in str(world.error)
    size = sum(path.stat().st_blocks for path in world.store.partial(digest).rglob("*"))
    world.quiet(0.2)
    assert size == sum(path.stat().st_blocks for path in world.store.partial(digest).rglob("*"))


def test_it_lets_a_missing_secret_be_stored_later(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        secretive(world)
        digest = world.model("m", {"a": DATA})
        entry = world.becomes(digest, EntryState.FAILED, reason=Reason.ACCESS_DENIED)
        assert "'key'" in entry.message and not world.requests
        world.link.secrets["key"] = {"access_key_id": "hunter2"}
        world.want(digest, retry_round=1)
        world.becomes(digest, EntryState.READY, retry_round=1, attempts=0)
        assert "hunter2" not in str(world.link.reports) + str(world.link.events)


def test_a_retry_that_is_asked_for_while_the_agent_is_away_is_taken(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.tuning = replace(world.tuning, permanent_first_seconds=600.0)
    with world:
        secretive(world)
        digest = world.model("m", {"a": DATA})
        world.becomes(digest, EntryState.FAILED, reason=Reason.ACCESS_DENIED)
    world.link.secrets["key"] = {}
    world.want(digest, retry_round=1)
    with world:
        world.becomes(digest, EntryState.READY, retry_round=1, attempts=0)


def test_a_retry_is_taken_once_and_only_for_what_failed(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        secretive(world)
        world.tuning = replace(world.tuning, permanent_first_seconds=600.0)
        world.runner.tools.tuning = world.tuning
        digest = world.model("m", {"a": DATA})
        world.becomes(digest, EntryState.FAILED, attempts=1)
        world.want(digest, retry_round=1)
        again = world.becomes(digest, EntryState.FAILED, retry_round=1, attempts=1)
        world.quiet(0.3)
        assert world.becomes(digest, EntryState.FAILED).retry_at == again.retry_at, "no second attempt for one wish"
        world.link.secrets["key"] = {}
        world.want(digest, retry_round=2)
        world.becomes(digest, EntryState.READY, retry_round=2)
        moved = world.becomes(digest, EntryState.READY).bytes_moved
        world.want(digest, retry_round=3)
        assert world.becomes(digest, EntryState.READY, retry_round=3).bytes_moved == moved


@pytest.mark.parametrize("error", [Conflict, NotFound])
def test_an_answer_that_is_no_outage_is_told_from_one(tmp_path: Path, error: type[Exception]) -> None:
    """Only a Conflict means that this agent must leave."""

    class Refusing(MemoryLink):
        def report(self, status: NodeCacheStatus) -> None:
            if len(self.reports) >= 2:
                raise error("no")
            super().report(status)

    world = World(tmp_path, link=Refusing())
    with world:
        digest = world.model("m", {"a": DATA})
        if error is Conflict:
            world.until(lambda: world.error)
        else:
            world.until(lambda: world.store.marker(digest) and world.tree(digest).exists())
    assert (world.error is not None) is (error is Conflict)
