"""What was journaled is read from disk again, not from the source; what was tampered with is fetched anew."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from caches.agent.download import Download
from caches.agent.entry import READING_BACK
from controlplane.clusters.documents import Algorithm, EntryState, FileRecord, Limits
from tests.agent.world import KIB, World, noise

SIZE = 1024 * KIB
FILES = {"model.bin": noise(SIZE)}


class Dam:
    """Lets reads below ``height`` pass and holds the others until it is opened."""

    def __init__(self, height: int) -> None:
        self.height, self.open, self.reached = height, threading.Event(), threading.Event()

    def __call__(self, file: FileRecord, position: int) -> None:
        if position >= self.height:
            self.reached.set()
            self.open.wait(60)


def interrupted(world: World, algorithm: Algorithm = Algorithm.CRC64NVME, share: float = 0.5) -> str:
    """A download whose line went away when it had journaled ``share`` of the bytes; the agent is stopped."""
    dam = Dam(int(SIZE * share))
    world.before = dam
    world.limits = Limits(max_requests=1)
    with world:
        digest = world.model("m", FILES, algorithm)
        assert dam.reached.wait(60)
        world.until(lambda: (entry := world.entry(digest)) and entry.bytes_done >= SIZE * share)
        world.unwant(digest)
        world.until(lambda: world.link.reports[-1].orphans)
        dam.open.set()
    orphan = world.link.reports[-1].orphans[0]
    assert orphan.partial and orphan.bytes >= SIZE * share
    world.before = lambda file, position: None
    return digest


def finish(world: World, digest: str) -> int:
    """Ask for it again and let it end: the bytes that were read from the source for that."""
    world.requests.clear()
    with world:
        world.want(digest, "m")
        entry = world.becomes(digest, EntryState.READY)
    assert world.content(digest) == FILES
    asked = sum(end - start for _, start, end in world.requests)
    assert SIZE <= entry.bytes_moved <= SIZE // 2 + asked + 32 * KIB  # what both lives read, and a read in flight
    return asked


@pytest.mark.parametrize("algorithm", [Algorithm.CRC64NVME, Algorithm.STAT])
def test_it_moves_only_the_missing_half(tmp_path: Path, algorithm: Algorithm) -> None:
    world = World(tmp_path)
    digest = interrupted(world, algorithm)
    assert finish(world, digest) <= SIZE // 2
    assert min(start for _, start, _ in world.requests) >= SIZE // 2


def test_it_says_why_a_download_that_goes_on_counts_from_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    digest = interrupted(world)
    go_on = threading.Event()
    monkeypatch.setattr(Download, "_tick", lambda *_: go_on.wait(60))
    with world:
        world.want(digest, "m")
        entry = world.becomes(digest, EntryState.DOWNLOADING, message=READING_BACK)
        assert entry.bytes_done < SIZE // 2
        go_on.set()
        assert world.becomes(digest, EntryState.READY).message == ""


def _flip(world: World, digest: str) -> None:
    path = world.store.partial(digest) / "model.bin"
    data = bytearray(path.read_bytes())
    data[100 * KIB] ^= 1
    path.write_bytes(data)


def _truncate(world: World, digest: str) -> None:
    with (world.store.partial(digest) / "model.bin").open("r+b") as file:
        file.truncate(100 * KIB)


def _swap_for_link(world: World, digest: str) -> None:
    path = world.store.partial(digest) / "model.bin"
    secret = world.tmp_path / "elsewhere"
    secret.write_bytes(path.read_bytes())
    path.unlink()
    path.symlink_to(secret)


def _tear_journal(world: World, digest: str) -> None:
    journal = world.store.journal(digest)
    journal.write_bytes(journal.read_bytes()[:-5])


def _garble_journal(world: World, digest: str) -> None:
    journal = world.store.journal(digest)
    lines = journal.read_bytes().split(b"\n")
    lines[0] = b"S 0 0 65536 0000000000000000"
    journal.write_bytes(b"\n".join([b"\xff\x00nonsense", b"S 7 0 99 0123456789abcdef", b"S 0 9 5 x", *lines]))


def _add_strangers(world: World, digest: str) -> None:
    partial = world.store.partial(digest)
    (partial / "stranger").mkdir()
    (partial / "stranger" / "x.py").write_text("import os")
    (partial / ".hearth-marker.json").write_text("{}")
    (partial / "model.bin").chmod(0o444)


def _lengthen(world: World, digest: str) -> None:
    with (world.store.partial(digest) / "model.bin").open("r+b") as file:
        file.truncate(SIZE + 77)


@pytest.mark.parametrize(
    ("tamper", "again"),
    [
        (_flip, 64 * KIB),
        (_truncate, SIZE),
        (_swap_for_link, SIZE),
        (_tear_journal, 64 * KIB),
        (_garble_journal, 64 * KIB),
        (_add_strangers, 0),
        (_lengthen, 0),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_it_fetches_tampered_segments_again(tmp_path: Path, tamper: Callable[[World, str], None], again: int) -> None:
    world = World(tmp_path)
    digest = interrupted(world)
    tamper(world, digest)
    assert finish(world, digest) <= SIZE // 2 + again
    elsewhere = tmp_path / "elsewhere"
    assert not elsewhere.exists() or elsewhere.read_bytes()[: SIZE // 2] == FILES["model.bin"][: SIZE // 2]
    assert not elsewhere.exists() or set(elsewhere.read_bytes()[SIZE // 2 + 64 * KIB :]) <= {0}


def test_it_resumes_with_another_segment_size(tmp_path: Path) -> None:
    world = World(tmp_path)
    digest = interrupted(world)
    world.tuning = replace(world.tuning, segment_bytes=100 * KIB)
    assert finish(world, digest) <= SIZE // 2


def test_it_never_lets_two_downloads_of_one_artifact_write(tmp_path: Path) -> None:
    """The line goes and comes back while a read still hangs: the second download waits until the first has ended."""
    dam = Dam(SIZE // 2)
    world = World(tmp_path, limits=Limits(max_requests=1), before=dam)
    with world:
        digest = world.model("m", FILES)
        assert dam.reached.wait(60)
        world.unwant(digest)
        world.until(lambda: world.link.reports[-1].orphans)
        world.want(digest, "m")
        world.becomes(digest, EntryState.QUEUED)
        seen = len(world.requests)
        world.quiet(0.5)
        assert len(world.requests) == seen
        dam.open.set()
        world.becomes(digest, EntryState.READY)
    assert world.content(digest) == FILES
