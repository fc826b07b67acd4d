"""Files that are written over in place with bytes of the same size, their modification time restored afterwards."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from controlplane.clusters.documents import Algorithm, EntryState, FileRecord, Limits, Reason
from tests.agent.test_resume import FILES, SIZE, interrupted
from tests.agent.world import KIB, World, noise
from tests.plugins.files import rewrite, stirred

OLD, NEW = noise(512 * KIB, 1), noise(512 * KIB, 2)


def test_it_publishes_no_mix_of_a_file_rewritten_in_place_under_a_throttled_download(tmp_path: Path) -> None:
    world = World(tmp_path, limits=Limits(bytes_per_second=800 * KIB, max_requests=1))
    with world:
        digest = world.model("m", {"a": OLD}, Algorithm.STAT)
        world.until(lambda: (entry := world.entry(digest)) and 0 < entry.bytes_done < 400 * KIB)
        rewrite(world.origin / "m" / "a", NEW)
        entry = world.becomes(digest, EntryState.FAILED, reason=Reason.SOURCE_UNAVAILABLE)
        assert "a: It was written to" in entry.message and not world.tree(digest).exists()
        world.limits = Limits()
        world.send()
        world.becomes(digest, EntryState.READY)
    assert world.content(digest) == {"a": NEW}, "read anew from its first byte"


def test_it_notices_a_rewrite_after_the_last_byte_before_it_publishes(tmp_path: Path) -> None:
    data = noise(2048 * KIB, 3)
    world = World(tmp_path, limits=Limits(max_requests=1))

    def late(file: FileRecord, position: int) -> None:
        if position == len(data) - 16 * KIB:  # the source has looked at the file for the last time
            world.before = lambda file, position: None
            rewrite(world.origin / "m" / "a", data[::-1])

    world.before = late
    with world:
        digest = world.model("m", {"a": data}, Algorithm.STAT)
        world.becomes(digest, EntryState.FAILED, reason=Reason.SOURCE_UNAVAILABLE)
        world.becomes(digest, EntryState.READY)
    assert world.content(digest) == {"a": data[::-1]}


@pytest.mark.parametrize("change", ["bytes", "mode"])
def test_it_does_not_resume_what_may_have_been_rewritten_while_it_was_down(tmp_path: Path, change: str) -> None:
    world = World(tmp_path)
    digest = interrupted(world, Algorithm.STAT)
    path, data = world.origin / "m" / "model.bin", FILES["model.bin"]
    if change == "bytes":
        data = data[::-1]
        rewrite(path, data)
    else:
        stirred(path, lambda: path.chmod(0o600))
    world.requests.clear()
    with world:
        world.want(digest, "m")
        world.becomes(digest, EntryState.READY)
    assert world.content(digest) == {"model.bin": data}
    assert sum(end - start for _, start, end in world.requests) >= SIZE


def test_it_resumes_where_a_checksum_proves_the_bytes_whatever_the_mode(tmp_path: Path) -> None:
    world = World(tmp_path)
    digest = interrupted(world, Algorithm.SHA256)
    (world.origin / "m" / "model.bin").chmod(0o600)
    world.requests.clear()
    with world:
        world.want(digest, "m")
        world.becomes(digest, EntryState.READY)
    assert sum(end - start for _, start, end in world.requests) <= SIZE // 2


@pytest.mark.parametrize("stated", [True, False], ids=["stated", "unknown"])
def test_it_never_joins_bytes_of_two_revisions_that_were_registered_alike(tmp_path: Path, stated: bool) -> None:
    """The digest does not cover the change time, so the journal has to say which revision its bytes came from."""
    world = World(tmp_path)
    digest = interrupted(world, Algorithm.STAT)
    if not stated:
        journal = world.store.journal(digest)
        journal.write_bytes(b"".join(line for line in journal.read_bytes().splitlines(True) if line[:1] == b"S"))
    fresh = FILES["model.bin"][::-1]
    rewrite(world.origin / "m" / "model.bin", fresh)
    world.restate(digest, "m")
    world.requests.clear()
    with world:
        world.want(digest, "m")
        world.becomes(digest, EntryState.READY)
    assert world.content(digest) == {"model.bin": fresh}
    assert sum(end - start for _, start, end in world.requests) >= SIZE


CHANGES: dict[str, Callable[[Path], None]] = {
    "mode": lambda path: path.chmod(0o600),
    "hard link": lambda path: os.link(path, path.parent.parent / "snapshot"),
    "owner": lambda path: os.chown(path, os.getuid(), os.getgid()),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_it_takes_a_file_whose_attributes_alone_changed_for_the_same_file(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    with World(tmp_path) as world:
        digest = world.register("m", {"a": OLD}, Algorithm.STAT)
        path = world.origin / "m" / "a"
        stirred(path, lambda: change(path))
        world.want(digest, "m")
        world.becomes(digest, EntryState.READY, attempts=0)
    assert world.content(digest) == {"a": OLD}


def test_it_repairs_no_tree_with_bytes_that_it_did_not_have(tmp_path: Path) -> None:
    """One file is damaged here and was rewritten at the source: the other one would stay the old one."""
    world = World(tmp_path)
    with world:
        digest = world.model("m", {"a": OLD, "b": OLD}, Algorithm.STAT)
        world.becomes(digest, EntryState.READY)
        rewrite(world.origin / "m" / "a", NEW)
        damaged = world.tree(digest) / "a"
        damaged.chmod(0o644)
        damaged.write_bytes(b"gone")
        world.want(digest, verify_round=1)
        entry = world.becomes(digest, EntryState.FAILED, reason=Reason.INTEGRITY_MISMATCH)
        assert "other bytes" in entry.message and world.store.marker(digest) is None
        rewrite(world.origin / "m" / "a", OLD)
        world.want(digest, retry_round=1)
        world.becomes(digest, EntryState.READY)
    assert world.content(digest) == {"a": OLD, "b": OLD}
