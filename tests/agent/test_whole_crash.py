"""The agent dies at any step of everything it does: the next one starts from the disk and is never lied to."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from caches.agent import verify
from controlplane.clusters.documents import Action, Algorithm, EntryState, EntryStatus, Limits
from tests.agent.test_crash import Died
from tests.agent.world import KIB, World, noise

FILES = {"a.bin": noise(150 * KIB), "deep/b.bin": noise(70 * KIB, 2), "empty": b""}
# The thread that empties the trash dies as all the others do.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
CALLS = ("rename", "replace", "unlink", "fchmod", "fsync", "fdatasync", "mkdir", "rmdir", "ftruncate")


@contextmanager
def deadly(monkeypatch: pytest.MonkeyPatch, at: int) -> Iterator[Callable[[], int]]:
    """From the ``at``-th call on, in whichever thread, no call changes the disk any more; how many there were."""
    count = 0

    def wrap(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            count += 1
            if count >= at:
                raise Died
            return real(*args, **kwargs)

        return call

    with monkeypatch.context() as patch:
        for name in CALLS:
            patch.setattr(os, name, wrap(getattr(os, name)))
        yield lambda: count


def truthful(world: World, digest: str) -> None:
    """What the disk says to anybody who looks, an ensure step on the node for one."""
    marker = world.store.marker(digest)
    if marker is not None and world.tree(digest).exists():
        found = verify.read_tree(world.tree(digest), marker, lambda count: None)
        assert not found.damaged


def fine(world: World, digest: str) -> Callable[[], EntryStatus | None]:
    def ended() -> EntryStatus | None:
        entry = world.entry(digest)
        return entry if entry and entry.state is EntryState.READY else None

    return ended


@pytest.fixture
def precious(tmp_path: Path) -> Iterator[None]:
    """What lies beside the store and behind a link in it is not the agent's."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("precious")
    yield
    assert [path.name for path in outside.iterdir()] == ["file"] and (outside / "file").read_text() == "precious"


@pytest.mark.usefixtures("precious")
@pytest.mark.parametrize("at", [*range(1, 14), *range(14, 56, 3)])
def test_it_begins_again_after_death_at_any_step_of_a_download(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    world = World(tmp_path, limits=Limits(max_requests=1))
    digest = world.register("m", FILES, Algorithm.STAT)
    world.want(digest, "m")
    world.store.prepare()
    with deadly(monkeypatch, at) as count, world:
        world.until(lambda: count() >= at or world.error or fine(world, digest)())
    assert all(entry.state is not EntryState.READY for r in world.link.reports[:-1] for entry in r.entries)
    truthful(world, digest)
    world.link.reports.clear()
    world.error = None
    with world:
        world.becomes(digest, EntryState.READY)
    assert world.content(digest) == FILES and not list((world.store.base / "partial").iterdir())
    truthful(world, digest)


@pytest.mark.usefixtures("precious")
@pytest.mark.parametrize("at", [*range(1, 9), *range(9, 40, 3)])
def test_it_is_never_ready_too_early_after_death_in_a_repair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    world = World(tmp_path, limits=Limits(max_requests=1))
    with world:
        digest = world.model("m", FILES, Algorithm.STAT)
        world.becomes(digest, EntryState.READY)
    tree = world.tree(digest)
    for path in (tree, tree / "deep", tree / "deep/b.bin"):
        path.chmod(0o755)
    facts = (tree / "deep/b.bin").stat()
    (tree / "deep/b.bin").write_bytes(bytes(70 * KIB))
    os.utime(tree / "deep/b.bin", ns=(facts.st_mtime_ns, facts.st_mtime_ns))
    (tree / "way-out").symlink_to(tmp_path / "outside")
    world.want(digest, verify_round=1)
    world.link.reports.clear()
    with deadly(monkeypatch, at) as count, world:
        world.until(lambda: count() >= at or world.error or (fine(world, digest)() and world.link.reports[1:]))
    for report in world.link.reports:
        for entry in report.entries:
            assert entry.state is not EntryState.READY or entry.verify_round == 1
    world.link.reports.clear()
    world.error = None
    with world:
        entry = world.becomes(digest, EntryState.READY, verify_round=1)
        assert entry.scrub and "deep/b.bin" in entry.scrub.damaged
    assert world.content(digest) == FILES
    truthful(world, digest)


@pytest.mark.usefixtures("precious")
@pytest.mark.parametrize("at", range(1, 16))
def test_it_finishes_an_eviction_after_death_at_any_step_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    world = World(tmp_path)
    with world:
        gone = world.model("gone", FILES)
        kept = world.model("kept", {"k": b"keep"})
        world.becomes(gone, EntryState.READY)
        world.becomes(kept, EntryState.READY)
    tree = world.tree(gone)
    tree.chmod(0o755)
    (tree / "way-out").symlink_to(tmp_path / "outside")
    tree.chmod(0o555)
    world.want(gone, action=Action.EVICT)
    world.link.reports.clear()
    with deadly(monkeypatch, at) as count, world:
        world.until(lambda: count() >= at or world.error or world.states(gone)[-1:] == [EntryState.ABSENT])
    if EntryState.ABSENT in world.states(gone):
        assert not tree.exists()
    truthful(world, gone)
    world.link.reports.clear()
    world.error = None
    with world:
        world.becomes(gone, EntryState.ABSENT)
        world.becomes(kept, EntryState.READY)
        world.until(lambda: not list((world.store.base / "trash").iterdir()))
        left = [path.name for kind in ("weights", "partial", "state") for path in (world.store.base / kind).iterdir()]
        assert left == [world.tree(kept).name] * 2, "the other tree and its record"
    assert world.content(kept) == {"k": b"keep"}
