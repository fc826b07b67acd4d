"""The agent dies at every single step of publishing, repairing and evicting: the next one is never told a lie."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from caches.agent import publish, verify
from caches.agent.ensure import Ensure
from caches.agent.evict import Evict
from controlplane.clusters.documents import Action, Algorithm, EntryState
from tests.agent.world import KIB, World, noise

FILES = {"a.bin": noise(100 * KIB), "deep/b.bin": noise(30 * KIB, 2), "empty": b""}
STEPS = ("rename", "replace", "unlink", "fchmod", "fsync", "rmdir")


class Died(BaseException):
    """Stands for kill -9: nothing that handles errors may see it as one."""


@contextmanager
def dying(monkeypatch: pytest.MonkeyPatch, at: int) -> Iterator[Callable[[], int]]:
    """From the ``at``-th changing call on, every changing call raises; the number of calls so far."""
    count = 0
    lethal = False

    def wrap(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal count, lethal
            count += 1
            lethal = lethal or count == at
            if lethal:
                raise Died
            return real(*args, **kwargs)

        return call

    with monkeypatch.context() as patch:
        for name in STEPS:
            patch.setattr(os, name, wrap(getattr(os, name)))
        yield lambda: count


def settle(world: World, digest: str) -> None:
    """A new agent on the same store. Whenever it says Ready, the bytes must be right."""
    world.link.reports.clear()
    world.error = None
    with world:
        world.becomes(digest, EntryState.READY)
        assert world.content(digest) == FILES
        assert not list((world.store.base / "partial").iterdir())
        tree = world.tree(digest)
        assert not [path for path in (tree, *tree.rglob("*")) if path.lstat().st_mode & 0o222]


def test_it_survives_death_at_every_step_of_a_publication(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Ensure._fetch
    for at in (1, 2, 3, 5, 8, 11, 14, 17, 20, 23, 26):
        folder = tmp_path / str(at)
        folder.mkdir()
        world = World(folder)
        digest = world.register("m", FILES, Algorithm.STAT)
        checked: list[Any] = []

        def keep(self: Ensure, *args: Any, checked: list[Any] = checked) -> Any:
            checked.append(original(self, *args))
            raise Died

        with monkeypatch.context() as patch:
            patch.setattr(Ensure, "_fetch", keep)
            with world:
                world.want(digest, "m")
                world.until(partial(bool, checked))
        try:
            with dying(monkeypatch, at):
                publish.publish(world.store, digest, checked[0], world.runner.tools.clock(), _now_or_never)
        except Died:
            pass
        settle(world, digest)


@contextmanager
def _now_or_never() -> Iterator[None]:
    yield


@pytest.mark.parametrize("at", [1, 3, 5, 7, 9, 12, 15, 18, 21, 24, 28, 32])
def test_it_survives_death_at_every_step_of_a_repair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    world = World(tmp_path)
    with world:
        digest = world.model("m", FILES, Algorithm.STAT)
        world.becomes(digest, EntryState.READY)
        marker = world.store.marker(digest)
        assert marker
    tree = world.tree(digest)
    (tree / "deep").chmod(0o755)
    (tree / "deep" / "b.bin").unlink()
    tree.chmod(0o755)
    (tree / "stranger").write_text("x")
    world.store.unmark(digest)
    unfinished = world.store.partial(digest)
    (unfinished / "deep").mkdir(parents=True)
    (unfinished / "deep" / "b.bin").write_bytes(FILES["deep/b.bin"])
    kept = [file for file in marker.files if file.path != "deep/b.bin"]
    fresh = tuple(file for file in marker.files if file.path == "deep/b.bin")
    assert verify.look(tree, marker.files).wrong
    try:
        with dying(monkeypatch, at):
            publish.republish(world.store, digest, fresh, kept, world.runner.tools.clock(), _now_or_never)
    except Died:
        found = world.store.marker(digest)
        assert found is None or not verify.look(tree, found.files).damaged
    settle(world, digest)


@pytest.mark.parametrize("at", [1, 2, 3, 4, 6, 8, 10])
def test_it_survives_death_at_every_step_of_an_eviction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    world = World(tmp_path)
    with world:
        digest = world.model("m", FILES)
        world.becomes(digest, EntryState.READY)
    try:
        with dying(monkeypatch, at):
            evict = Evict(world.store, digest)
            evict.take_away()
            evict.run()
    except Died:
        pass
    world.link.reports.clear()
    with world:
        world.want(digest, action=Action.EVICT)
        world.becomes(digest, EntryState.ABSENT)
        world.until(lambda: not list((world.store.base / "trash").iterdir()))
        assert not list((world.store.base / "weights").iterdir())
        world.want(digest, action=Action.ENSURE)
        world.becomes(digest, EntryState.READY)
    assert world.content(digest) == FILES
