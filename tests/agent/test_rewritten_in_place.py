"""Files that are written over in place with bytes of the same size, their modification time restored afterwards."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from controlplane.clusters.documents import Algorithm, EntryState, FileRecord, Limits, Reason
from tests.agent.test_resume import FILES, SIZE, interrupted
from tests.agent.world import KIB, World, noise

OLD, NEW = noise(512 * KIB, 1), noise(512 * KIB, 2)


def rewrite(path: Path, data: bytes) -> None:
    """As a copy tool does that writes in place and keeps times."""
    facts = path.stat()
    with path.open("r+b") as file:
        file.write(data)
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    now = path.stat()
    assert (now.st_size, now.st_mtime_ns, now.st_ino) == (facts.st_size, facts.st_mtime_ns, facts.st_ino)


def test_it_publishes_no_mix_of_a_file_rewritten_in_place_under_a_throttled_download(tmp_path: Path) -> None:
    world = World(tmp_path, limits=Limits(bytes_per_second=800 * KIB, max_requests=1))
    with world:
        digest = world.model("m", {"a": OLD}, Algorithm.STAT)
        world.until(lambda: (entry := world.entry(digest)) and 0 < entry.bytes_done < 400 * KIB)
        rewrite(world.origin / "m" / "a", NEW)
        entry = world.becomes(digest, EntryState.FAILED, reason=Reason.SOURCE_CHANGED)
        assert "a: It was written to" in entry.message
        assert not world.tree(digest).exists() and not world.store.partial(digest).exists()
    assert EntryState.READY not in world.states(digest)


def test_it_notices_a_rewrite_after_the_last_byte_before_it_publishes(tmp_path: Path) -> None:
    data = noise(2048 * KIB, 3)
    world = World(tmp_path, limits=Limits(max_requests=1))

    def late(file: FileRecord, position: int) -> None:
        if position == len(data) - 16 * KIB:  # the source has looked at the file for the last time
            rewrite(world.origin / "m" / "a", data[::-1])

    world.before = late
    with world:
        digest = world.model("m", {"a": data}, Algorithm.STAT)
        world.becomes(digest, EntryState.FAILED, reason=Reason.SOURCE_CHANGED)
    assert EntryState.READY not in world.states(digest)


def test_it_does_not_resume_what_was_rewritten_while_it_was_down(tmp_path: Path) -> None:
    world = World(tmp_path)
    digest = interrupted(world, Algorithm.STAT)
    rewrite(world.origin / "m" / "model.bin", FILES["model.bin"][::-1])
    with world:
        world.want(digest, "m")
        world.becomes(digest, EntryState.FAILED, reason=Reason.SOURCE_CHANGED)
    assert not world.tree(digest).exists()


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


def test_it_refuses_a_change_of_mode_alone_and_says_what_helps(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        digest = world.register("m", {"a": OLD}, Algorithm.STAT)
        (world.origin / "m" / "a").chmod(0o600)
        world.want(digest, "m")
        entry = world.becomes(digest, EntryState.FAILED, reason=Reason.SOURCE_CHANGED)
        assert "attributes" in entry.message
