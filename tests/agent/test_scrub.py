"""Damage to a published tree: found, not Ready any more, and repaired with that file's bytes alone."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from caches.agent.marker import NAME
from controlplane.clusters.documents import Algorithm, EntryState
from tests.agent.world import FAST, KIB, World, noise

FILES = {"config.json": b"{}", "deep/a.bin": noise(200 * KIB), "deep/b.bin": noise(150 * KIB, 2)}
BAD = "deep/a.bin"


def _open(tree: Path, path: str) -> Path:
    target = tree / path
    target.parent.chmod(0o755)
    if target.exists():
        target.chmod(0o644)
    return target


def _truncate(tree: Path) -> None:
    os.truncate(_open(tree, BAD), 1000)


def _delete(tree: Path) -> None:
    _open(tree, BAD).unlink()
    (tree / "deep").chmod(0o555)


def _quietly(path: Path, data: bytes) -> None:
    """Change content and nothing else: size, mode and mtime stay."""
    facts = path.stat()
    path.write_bytes(data)
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    path.chmod(0o444)
    path.parent.chmod(0o555)


def _zero(tree: Path) -> None:
    _quietly(_open(tree, BAD), bytes(200 * KIB))


def _flip(tree: Path) -> None:
    data = bytearray(FILES[BAD])
    data[12345] ^= 4
    _quietly(_open(tree, BAD), bytes(data))


def _link(tree: Path) -> None:
    target = _open(tree, BAD)
    target.unlink()
    target.symlink_to("b.bin")


def _folder_link(tree: Path) -> None:
    _open(tree, BAD)
    tree.chmod(0o755)
    (tree / "deep").rename(tree.parent.parent / "elsewhere")
    (tree / "deep").symlink_to(tree.parent.parent / "elsewhere")


def _marker(tree: Path) -> None:
    marker = _open(tree, NAME)
    marker.write_bytes(marker.read_bytes().replace(b"0", b"1"))


def _no_marker(tree: Path) -> None:
    _open(tree, NAME).unlink()


def _stranger(tree: Path) -> None:
    tree.chmod(0o755)
    (tree / "extra").mkdir()
    (tree / "extra" / "evil.py").write_text("import os")
    (tree / "out").symlink_to("/etc")


def _mode(tree: Path) -> None:
    (tree / BAD).chmod(0o666)
    tree.chmod(0o777)


A, B = len(FILES[BAD]), len(FILES["deep/b.bin"])
DAMAGES = [
    (_truncate, A), (_delete, A), (_zero, A), (_flip, A), (_link, A), (_folder_link, A + B), (_marker, 0),
    (_no_marker, 0), (_stranger, 0), (_mode, 0),
]  # fmt: skip


@pytest.mark.parametrize("algorithm", [Algorithm.CRC64NVME, Algorithm.STAT])
@pytest.mark.parametrize(("damage", "cost"), DAMAGES, ids=lambda value: getattr(value, "__name__", ""))
def test_it_finds_damage_on_request_and_reads_only_what_is_wrong(
    tmp_path: Path, damage: Callable[[Path], None], cost: int, algorithm: Algorithm
) -> None:
    with World(tmp_path) as world:
        digest = world.model("m", FILES, algorithm)
        before = world.becomes(digest, EntryState.READY)
        damage(world.tree(digest))
        world.want(digest, verify_round=1)
        after = world.becomes(digest, EntryState.READY, verify_round=1, damaged=())
        world.until(lambda: EntryState.REPAIRING in world.states(digest))
        assert after.bytes_moved - before.bytes_moved == cost
        assert after.witness == before.witness
        echo = [e for r in world.link.reports for e in r.entries if e.verify_round == 1 and e.state is EntryState.READY]
        assert echo and all(not entry.damaged for entry in echo)
    assert world.content(digest) == FILES
    assert not list((world.store.base / "partial").iterdir())
    tree = world.tree(digest)
    assert not [path for path in [tree, *tree.rglob("*")] if path.is_symlink() or path.lstat().st_mode & 0o222]


def test_it_names_the_damaged_files_while_it_repairs(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        digest = world.model("m", FILES)
        world.becomes(digest, EntryState.READY)
        _flip(world.tree(digest))
        world.want(digest, verify_round=1)
        world.becomes(digest, EntryState.READY, verify_round=1)
    repairing = [e for r in world.link.reports for e in r.entries if e.state is EntryState.REPAIRING]
    assert repairing and repairing[0].damaged == (BAD,) and repairing[0].verify_round == 1
    assert ("EntryDamaged", f"{digest}: {BAD}") in world.link.events


def test_it_finds_damage_on_schedule(tmp_path: Path) -> None:
    world = World(tmp_path, scrub_interval_seconds=0.5)
    with world:
        digest = world.model("m", FILES)
        world.becomes(digest, EntryState.READY)
        _flip(world.tree(digest))
        world.until(lambda: EntryState.REPAIRING in world.states(digest))
        world.becomes(digest, EntryState.READY)
    assert world.content(digest) == FILES


@pytest.mark.parametrize("damage", [_truncate, _delete, _stranger, _mode, _no_marker])
def test_it_looks_before_it_says_ready_after_a_restart(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    world = World(tmp_path)
    with world:
        digest = world.model("m", FILES)
        world.becomes(digest, EntryState.READY)
    damage(world.tree(digest))
    world.link.reports.clear()
    with world:
        world.becomes(digest, EntryState.READY)
    assert world.states(digest)[0] is EntryState.REPAIRING
    assert world.content(digest) == FILES


def test_it_reads_touched_files_before_it_says_ready_after_a_restart(tmp_path: Path) -> None:
    world = World(tmp_path)
    with world:
        digest = world.model("m", FILES)
        world.becomes(digest, EntryState.READY)
    target = _open(world.tree(digest), BAD)
    target.write_bytes(bytes(200 * KIB))
    target.chmod(0o444)
    target.parent.chmod(0o555)
    world.link.reports.clear()
    with world:
        world.becomes(digest, EntryState.READY)
    assert world.states(digest)[0] in (EntryState.VERIFYING, EntryState.REPAIRING)
    assert world.content(digest) == FILES


@pytest.mark.parametrize("damage", [_delete, _truncate])
def test_it_notices_without_a_scrub_that_a_file_is_gone_or_short(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    with World(tmp_path, tuning=replace(FAST, glance_seconds=0.05)) as world:
        digest = world.model("m", FILES)
        world.becomes(digest, EntryState.READY)
        reported = len(world.link.reports)
        damage(world.tree(digest))
        world.until(lambda: EntryState.REPAIRING in [
            one.state for report in world.link.reports[reported:] for one in report.entries
        ])  # fmt: skip
        world.becomes(digest, EntryState.READY)
    assert world.content(digest) == FILES


def test_it_fetches_a_vanished_tree_anew(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        digest = world.model("m", FILES)
        world.becomes(digest, EntryState.READY)
        reported = len(world.link.reports)
        world.tree(digest).rename(tmp_path / "gone")
        world.until(
            lambda: EntryState.QUEUED in world.states(digest) or EntryState.DOWNLOADING in world.states(digest)[2:]
        )
        entry = world.becomes(digest, EntryState.READY, bytes_moved=2 * sum(map(len, FILES.values())))
    assert world.content(digest) == FILES and entry.attempts == 0
    coming = (EntryState.QUEUED, EntryState.DOWNLOADING)
    done = [one.bytes_done for report in world.link.reports[reported:] for one in report.entries if one.state in coming]
    # The first report may come after the first bytes.
    assert done == sorted(done) and done[0] < sum(map(len, FILES.values())), "the copy that is gone counts for nothing"


def test_it_finishes_a_repair_that_a_crash_cut_short(tmp_path: Path) -> None:
    """The marker is taken away before anything else, so the half-repaired tree exists for nobody."""
    world = World(tmp_path)
    with world:
        digest = world.model("m", FILES, Algorithm.STAT)
        world.becomes(digest, EntryState.READY)
    _flip(world.tree(digest))
    world.store.unmark(digest)
    assert world.store.marker(digest) is None
    world.link.reports.clear()
    world.requests.clear()
    with world:
        world.becomes(digest, EntryState.READY)
    assert world.states(digest)[0] is EntryState.REPAIRING
    assert {name for name, _, _ in world.requests} == {BAD}
    assert world.content(digest) == FILES
