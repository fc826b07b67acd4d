"""Wishes that change at every moment of a download: whoever comes last is obeyed; nothing half-done is ever shown."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from caches.agent import publish, verify
from caches.agent.download import Download
from caches.agent.ensure import Ensure
from caches.agent.store import Store
from controlplane.clusters.documents import Action, Algorithm, EntryState, Limits, Reason
from controlplane.errors import Transient
from tests.agent.world import KIB, World, noise

FILES = {"a.bin": noise(200 * KIB), "deep/b.bin": noise(50 * KIB, 2)}
MOMENTS: dict[str, tuple[Any, str]] = {
    "manifest": (Ensure, "_manifest"),
    "source": (Ensure, "_source"),
    "binding": (Ensure, "_bound"),
    "fetching": (Download, "fetch"),
    "checking": (Download, "check"),
    "witness": (Ensure, "_check_witness"),
    "sealing": (publish, "_seal_files"),
}


class Gate:
    """Holds the first call of a function before it begins, until it is opened."""

    def __init__(self) -> None:
        self.reached, self.open, self._first = threading.Event(), threading.Event(), True

    def wrap(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._first:
                self._first = False
                self.reached.set()
                self.open.wait(60)
            return real(*args, **kwargs)

        return call


@contextmanager
def held_at(world: World, monkeypatch: pytest.MonkeyPatch, moment: str) -> Iterator[tuple[str, Gate]]:
    """A download that stands still at this moment."""
    owner, name = MOMENTS[moment]
    gate = Gate()
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, gate.wrap(getattr(owner, name)))
        with world:
            digest = world.model("m", FILES, Algorithm.STAT)
            assert gate.reached.wait(60)
            try:
                yield digest, gate
            finally:
                gate.open.set()


@pytest.mark.parametrize("moment", MOMENTS)
def test_an_eviction_wins_at_every_moment_and_stays_won(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    world = World(tmp_path)
    with held_at(world, monkeypatch, moment) as (digest, gate):
        world.want(digest, action=Action.EVICT)
        world.becomes(digest, EntryState.ABSENT)
        gate.open.set()
        world.quiet(0.2)
        world.becomes(digest, EntryState.ABSENT, reason="")
        assert not world.tree(digest).exists() and not world.store.partial(digest).exists()
        assert world.link.reports[-1].capacity.reserved_bytes == 0
        world.want(digest, action=Action.ENSURE)
        world.becomes(digest, EntryState.READY)
        assert EntryState.FAILED not in world.states(digest)
    assert world.content(digest) == FILES


@pytest.mark.parametrize("moment", MOMENTS)
def test_an_eviction_that_is_taken_back_at_once_ends_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    world = World(tmp_path)
    with held_at(world, monkeypatch, moment) as (digest, gate):
        world.want(digest, action=Action.EVICT)
        world.want(digest, action=Action.ENSURE)
        gate.open.set()
        world.becomes(digest, EntryState.READY)
    assert world.content(digest) == FILES and not list((world.store.base / "partial").iterdir())


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_line_that_goes_and_comes_back_ends_ready_and_removes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    world = World(tmp_path)
    with held_at(world, monkeypatch, moment) as (digest, gate):
        line = world.lines[digest]
        world.unwant(digest)
        world.heard()
        assert world.entry(digest) is None and world.link.reports[-1].capacity.reserved_bytes == 0
        world.lines[digest] = line
        world.send()
        gate.open.set()
        world.becomes(digest, EntryState.READY)
    assert world.content(digest) == FILES


@pytest.mark.parametrize("moment", ["checking", "witness", "sealing"])
def test_nothing_is_published_that_nobody_asks_for_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Not even when every byte is there: the store's books were closed when the line went."""
    world = World(tmp_path)
    with held_at(world, monkeypatch, moment) as (digest, gate):
        world.unwant(digest)
        world.heard()
        gate.open.set()
        world.quiet(0.3)
        assert world.store.partial(digest).exists() and not world.tree(digest).exists()


@pytest.mark.parametrize("moment", ["fetching", "checking", "sealing"])
def test_an_agent_that_stops_in_the_middle_leaves_what_the_next_one_can_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    world = World(tmp_path)
    with held_at(world, monkeypatch, moment) as (digest, gate):
        world.runner.stop()
        gate.open.set()
    assert EntryState.READY not in world.states(digest)
    world.link.reports.clear()
    world.requests.clear()
    with world:
        world.becomes(digest, EntryState.READY)
    read = sum(end - start for _, start, end in world.requests)
    assert world.content(digest) == FILES and (moment == "fetching" or read == 0)


def test_limits_that_change_in_flight_are_felt_by_what_runs(tmp_path: Path) -> None:
    world = World(tmp_path, limits=Limits(bytes_per_second=20 * KIB, max_requests=1))
    with world:
        digest = world.model("m", FILES)
        world.until(lambda: world.requests)
        world.limits = Limits(bytes_per_second=None, max_requests=4)
        world.send()
        world.becomes(digest, EntryState.READY)  # at the old rate it would take twelve seconds and more
        assert len(world.requests) >= 4


def test_a_pause_lets_nothing_new_begin_and_ends_where_it_began(tmp_path: Path) -> None:
    world = World(tmp_path, limits=Limits(paused=True))
    with world:
        digest = world.model("m", FILES)
        entry = world.becomes(digest, EntryState.QUEUED)
        world.until(lambda: "Paused" in (world.entry(digest) or entry).message)
        world.quiet(0.2)
        assert not world.requests
        world.want(digest, action=Action.EVICT)
        world.becomes(digest, EntryState.ABSENT)
        world.want(digest, action=Action.ENSURE)
        world.limits = Limits()
        world.send()
        world.becomes(digest, EntryState.READY, message="")


def test_a_verify_round_that_comes_while_bytes_move_is_answered_by_them(tmp_path: Path) -> None:
    """Everything was read and checked after the wish, or is read once more: never echoed for nothing."""
    gate = Gate()
    world = World(tmp_path)
    world.before = gate.wrap(lambda file, position: None)
    with world:
        digest = world.model("m", FILES)
        assert gate.reached.wait(60)
        world.want(digest, verify_round=4)
        world.heard()
        gate.open.set()
        entry = world.becomes(digest, EntryState.READY, verify_round=4)
        assert entry.verified_at and entry.ready_at and entry.verified_at >= entry.ready_at


def test_an_eviction_takes_a_scrub_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    world = World(tmp_path)
    with monkeypatch.context() as patch, world:
        digest = world.model("m", FILES)
        world.becomes(digest, EntryState.READY)
        patch.setattr(verify, "read_tree", gate.wrap(verify.read_tree))
        world.want(digest, verify_round=1)
        assert gate.reached.wait(60)
        world.want(digest, action=Action.EVICT)
        world.becomes(digest, EntryState.ABSENT)
        gate.open.set()
        world.quiet(0.2)
        world.becomes(digest, EntryState.ABSENT, verify_round=0)


def test_a_stronger_line_goes_first_when_a_place_becomes_free(tmp_path: Path) -> None:
    gate = Gate()
    world = World(tmp_path, limits=Limits(max_downloads=1))
    world.before = gate.wrap(lambda file, position: None)
    with world:
        first = world.model("first", {"f": FILES["a.bin"]}, order=1)
        assert gate.reached.wait(60)
        weak = world.model("weak", {"w": b"w" * KIB}, order=9)
        strong = world.model("strong", {"s": b"s" * KIB}, order=0)
        world.becomes(strong, EntryState.QUEUED)
        gate.open.set()
        for digest in (first, weak, strong):
            world.becomes(digest, EntryState.READY)
        order = list(dict.fromkeys(path for path, _, _ in world.requests))
        assert order == ["f", "s", "w"]


@pytest.mark.parametrize("reason", ["transient", "fault"])
def test_a_failure_ends_with_the_line_it_belonged_to(tmp_path: Path, reason: str) -> None:
    world = World(tmp_path)
    world.tuning = replace(world.tuning, transient_first_seconds=600.0)

    def fail(*_: object) -> None:
        if reason == "fault":
            raise RuntimeError("hunter2")
        raise Transient("source:source:unavailable", "down", reason=Reason.SOURCE_UNAVAILABLE)

    world.before = fail
    with world:
        digest = world.model("m", FILES)
        entry = world.becomes(digest, EntryState.FAILED)
        assert "hunter2" not in entry.message, "what a fault says may be anything"
        world.before = lambda file, position: None
        world.want(digest, action=Action.EVICT)
        world.becomes(digest, EntryState.ABSENT, reason="", attempts=0)
        world.want(digest, action=Action.ENSURE)
        world.becomes(digest, EntryState.READY, attempts=0)


def test_two_lines_of_one_digest_keep_it(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        digest = world.model("m", FILES)
        world.becomes(digest, EntryState.READY)
        line = world.lines[digest]
        world.lines["again"] = replace(line, action=Action.EVICT, order=-5)
        world.send()
        world.heard()
        world.becomes(digest, EntryState.READY)
        assert len(world.link.reports[-1].entries) == 1
    assert world.content(digest) == FILES


def test_a_store_is_let_go_by_a_stopped_agent(tmp_path: Path) -> None:
    world = World(tmp_path)
    with world:
        digest = world.model("m", FILES)
        world.becomes(digest, EntryState.READY)
        second = World(tmp_path)
        with second:
            second.until(lambda: second.error)
        assert "another agent" in str(second.error)
    with Store(world.root).lock(0):
        pass
