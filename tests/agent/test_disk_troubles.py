"""A disk that is full, over quota or broken at each step: said with numbers, never Ready too early, healed later."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from caches.agent.journal import Journal
from caches.agent.record import Meter
from controlplane.clusters.documents import Action, Algorithm, EntryState, Limits, Reason
from tests.agent.world import KIB, World, noise

FILES = {"a.bin": noise(150 * KIB), "deep/b.bin": noise(30 * KIB, 2)}


class Trouble:
    """Raises where ``hit`` says so, until ``over``."""

    def __init__(self, number: int) -> None:
        self.number, self.over, self.hits = number, False, 0

    def wrap(self, real: Callable[..., Any], hit: Callable[..., bool]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if not self.over and hit(*args, **kwargs):
                self.hits += 1
                raise OSError(self.number, os.strerror(self.number))
            return real(*args, **kwargs)

        return call


def _always(*args: Any, **kwargs: Any) -> bool:
    return True


def _named(text: str) -> Callable[..., bool]:
    return lambda path, *args, **kwargs: text in os.fspath(path)


STAGES: dict[str, tuple[Any, str, Callable[..., bool]]] = {
    "folder": (Path, "mkdir", _named("/partial/sha256")),
    "subfolder": (os, "mkdir", _named("deep")),
    "file": (os, "open", lambda path, flags, *_, **__: "a.bin" in os.fspath(path) and bool(flags & os.O_CREAT)),
    "bytes": (os, "pwrite", lambda fd, data, offset: offset >= 32 * KIB),
    "first byte": (os, "pwrite", lambda fd, data, offset: len(data) > 100),
    "sync of bytes": (os, "fdatasync", _always),
    "journal": (Journal, "append", _always),
    "meter": (Meter, "add", _always),
    "sync of files": (os, "fchmod", lambda fd, mode: mode == 0o444),
    "marker": (os, "replace", lambda source, target, **_: "marker" in target),
    "publication": (os, "rename", lambda source, target, **_: "/weights/" in os.fspath(target)),
}


@pytest.fixture(params=[errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS], ids=lambda number: errno.errorcode[number])
def trouble(request: pytest.FixtureRequest) -> Iterator[Trouble]:
    yield Trouble(request.param)


@pytest.mark.parametrize("stage", STAGES)
def test_it_says_what_the_disk_said_at_each_step_and_recovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str, trouble: Trouble
) -> None:
    owner, name, hit = STAGES[stage]
    full = trouble.number in (errno.ENOSPC, errno.EDQUOT)
    reason = Reason.INSUFFICIENT_CAPACITY if full else Reason.NODE_UNAVAILABLE
    world = World(tmp_path, limits=Limits(max_requests=1))
    digest = world.register("m", FILES, Algorithm.STAT)
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, trouble.wrap(getattr(owner, name), hit))
        with world:
            world.want(digest, "m")
            entry = world.becomes(digest, EntryState.FAILED, reason=reason)
            assert trouble.hits and entry.retry_at
            assert os.strerror(trouble.number) in entry.message or ("It needs" in entry.message and full)
            assert world.store.marker(digest) is None or not world.tree(digest).exists()
            trouble.over = True
            world.becomes(digest, EntryState.READY, attempts=0)
            assert EntryState.READY not in world.states(digest)[:-1]
    assert world.content(digest) == FILES


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_it_keeps_working_where_its_own_notes_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """A record that is not written costs an early retry at most; files are another matter."""
    trouble = Trouble(number)
    world = World(tmp_path)
    with monkeypatch.context() as patch, world:
        patch.setattr(os, "replace", trouble.wrap(os.replace, lambda source, target, **_: target == "record.json"))
        digest = world.model("m", FILES)
        world.becomes(digest, EntryState.READY)
        world.want(digest, action=Action.EVICT)
        world.becomes(digest, EntryState.ABSENT)
    assert trouble.hits


def test_it_evicts_on_a_disk_that_takes_no_new_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trouble = Trouble(errno.ENOSPC)
    world = World(tmp_path)
    with world:
        digest = world.model("m", FILES)
        world.becomes(digest, EntryState.READY)
    with monkeypatch.context() as patch:
        patch.setattr(
            os,
            "open",
            trouble.wrap(
                os.open, lambda path, flags, *_, **__: bool(flags & os.O_CREAT) and path != world.store.base / "lock"
            ),
        )
        world.link.reports.clear()
        world.want(digest, action=Action.EVICT)
        with world:
            world.becomes(digest, EntryState.ABSENT)
    assert not list((world.store.base / "weights").iterdir())


def test_it_names_an_unreadable_file_as_damaged_and_repairs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sector that cannot be read is damage of that file, not a fault of the node."""
    trouble = Trouble(errno.EIO)
    world = World(tmp_path)
    with world:
        digest = world.model("m", FILES)
        world.becomes(digest, EntryState.READY)
        bad = (world.tree(digest) / "deep/b.bin").stat().st_ino
        hit = lambda fd, *_: os.fstat(fd).st_ino == bad  # noqa: E731
        with monkeypatch.context() as patch:
            patch.setattr(os, "pread", trouble.wrap(os.pread, hit))
            world.want(digest, verify_round=1)
            entry = world.becomes(digest, EntryState.READY, verify_round=1)
        assert entry.scrub and entry.scrub.damaged == ("deep/b.bin",)
    assert world.content(digest) == FILES
