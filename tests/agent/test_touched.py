"""Files of a published tree that were edited in place: nobody is told that they are there before they were read."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from caches.agent import publish, verify
from caches.agent.ensure_step import fetch
from caches.agent.jobs import Commit
from controlplane.clusters.documents import EntryState
from controlplane.errors import Transient
from tests.agent.world import FAST, KIB, World, noise, now

FILES = {"config.json": b'{"layers": 2}', "a.bin": noise(300 * KIB), "b.bin": noise(200 * KIB, 2)}
EDITED = "config.json"
SIZE = sum(map(len, FILES.values()))


def _edit(tree: Path, data: bytes = b'{"layers": 7}', mode: int = 0o444) -> None:
    """Other bytes of the same size, at another time."""
    path = tree / EDITED
    path.chmod(0o644)
    path.write_bytes(data)
    path.chmod(mode)
    os.utime(path, ns=(1, 1))


def _left_writable(tree: Path) -> None:
    _edit(tree, mode=0o644)


def _with_another_gone(tree: Path) -> None:
    _edit(tree)
    tree.chmod(0o755)
    (tree / "b.bin").unlink()
    tree.chmod(0o555)


def _with_a_stranger(tree: Path) -> None:
    _edit(tree)
    tree.chmod(0o755)
    (tree / "strange").write_text("?")
    tree.chmod(0o555)


@pytest.mark.parametrize("damage", [_edit, _left_writable, _with_another_gone, _with_a_stranger])
def test_no_repair_of_something_else_makes_an_edited_file_right(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    """The repair of a mode, or of another file, writes a new marker: it may not take over what nobody has read."""
    world = World(tmp_path)
    with world:
        digest = world.model("m", FILES)
        world.becomes(digest, EntryState.READY)
    damage(world.tree(digest))
    world.link.reports.clear()
    with world:
        entry = world.becomes(digest, EntryState.READY)
    assert EntryState.REPAIRING in world.states(digest)
    assert world.content(digest) == FILES
    assert entry.bytes_moved < SIZE + SIZE / 2, "only what was wrong was fetched again"


@pytest.mark.parametrize("mode", [0o444, 0o644])
def test_a_file_that_was_touched_and_is_right_is_read_once_and_fetched_never(tmp_path: Path, mode: int) -> None:
    with World(tmp_path, tuning=replace(FAST, glance_seconds=0.05)) as world:
        digest = world.model("m", FILES)
        world.becomes(digest, EntryState.READY)
        marker = world.store.marker(digest)
        assert marker is not None
        _edit(world.tree(digest), FILES[EDITED], mode)

        def settled() -> bool:
            now = world.store.marker(digest)
            return now is not None and now.files != marker.files and now.witness == marker.witness

        world.until(settled, "the marker has the file's new time")
        entry = world.becomes(digest, EntryState.READY, bytes_moved=SIZE)
        assert world.content(digest) == FILES and entry.attempts == 0
        found = verify.look(world.tree(digest), world.store.marker(digest).files)  # type: ignore[union-attr]
        assert not found.wrong and not found.touched, "or every later look would read it again"
        world.until(lambda: world.runner.asks.is_warm(digest), "pods are told so")


def test_an_edited_file_is_no_warm_copy_for_a_pod_that_asks_at_once(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        digest = world.model("m", FILES)
        world.becomes(digest, EntryState.READY)
        world.until(lambda: world.runner.asks.is_warm(digest))
        _edit(world.tree(digest))
        assert not world.runner.asks.is_warm(digest)


@pytest.mark.parametrize(("data", "warm"), [(b'{"layers": 7}', False), (FILES[EDITED], True)], ids=["edited", "same"])
def test_a_pod_that_no_agent_answers_reads_what_was_touched(tmp_path: Path, data: bytes, warm: bool) -> None:
    world = World(tmp_path)
    with world:
        digest = world.model("m", FILES)
        world.becomes(digest, EntryState.READY)
    assert fetch.whole(world.store, digest) is not None
    _edit(world.tree(digest), data)
    assert (fetch.whole(world.store, digest) is not None) is warm


def test_what_is_written_between_the_look_and_the_mark_is_not_marked(tmp_path: Path) -> None:
    world = World(tmp_path)
    with world:
        digest = world.model("m", FILES)
        world.becomes(digest, EntryState.READY)
    kept = world.store.marker(digest).files  # type: ignore[union-attr]
    world.store.unmark(digest)
    world.store.partial(digest).mkdir()
    _edit(world.tree(digest))
    with pytest.raises(Transient, match=f"{EDITED} was written to while the tree was repaired"):
        publish.republish(world.store, digest, (), kept, now(), Commit(threading.Event()))
    assert world.store.marker(digest) is None, "it exists for nobody"
