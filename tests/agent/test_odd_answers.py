"""Answers that nobody should give: by the cluster, by the source, by the agent's own code."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from caches.agent import verify
from caches.agent.fetch import Lane, fetch_range
from caches.agent.limits import RequestGate, Stopped, TokenBucket
from caches.agent.tuning import Tuning
from caches.domain.manifests import manifest_digest
from caches.sources.base import Chunk
from caches.sources.checksums import crc64nvme
from controlplane.clusters.documents import Action, Algorithm, EntryState, FileRecord, Manifest, Reason
from controlplane.clusters.gateway import Unreachable
from controlplane.errors import Transient
from tests.agent.world import FAST, KIB, World, noise

DATA = noise(128 * KIB)
FILE = FileRecord("a", len(DATA), Algorithm.STAT, "r", "r")


def test_it_waits_for_a_manifest_that_is_not_published_yet(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        digest = world.register("m", {"a": DATA})
        manifest = world.link.manifests.pop(digest)
        world.link.manifests["other"] = manifest
        world.lines.clear()
        world.link.manifests[digest] = manifest
        world.want(digest, "m", send=False)
        del world.link.manifests[digest]
        world.send()
        entry = world.becomes(digest, EntryState.FAILED, reason=Reason.INTERNAL)
        assert "not published" in entry.message
        world.link.manifests[digest] = manifest
        world.becomes(digest, EntryState.READY, attempts=0)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Unreachable("down"), Reason.NODE_UNAVAILABLE),
        (ValueError("garbled"), Reason.INTEGRITY_MISMATCH),
        (RuntimeError("a bug"), Reason.INTERNAL),
    ],
)
def test_it_names_what_keeps_a_manifest_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, reason: Reason
) -> None:
    with World(tmp_path) as world:
        digest = world.register("m", {"a": DATA})

        def fail(asked: str) -> Manifest:
            raise error

        monkeypatch.setattr(world.link, "manifest", fail)
        world.want(digest, "m")
        entry = world.becomes(digest, EntryState.FAILED, reason=reason)
        assert entry.message and "a bug" not in entry.message
        monkeypatch.undo()
        world.want(digest, retry_round=1)
        world.becomes(digest, EntryState.READY)


def test_it_refuses_names_that_cannot_live_side_by_side(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        good = world.link.manifests[world.register("m", {"a": b"x"})].files[0]
        files = (replace(good, path="A"), good)
        digest = manifest_digest(files)
        world.link.manifests[digest] = Manifest(digest, files)
        world.want(digest, "m")
        entry = world.becomes(digest, EntryState.FAILED, reason=Reason.INTEGRITY_MISMATCH)
    assert "side by side" in entry.message


def test_it_says_when_it_was_not_told_how_to_reach_the_source(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        digest = world.register("m", {"a": DATA})
        world.want(digest, "m", connection="nobody")
        entry = world.becomes(digest, EntryState.FAILED, reason=Reason.INVALID_REQUEST)
        assert "nobody" in entry.message
        world.want(digest, connection="disk", retry_round=1)
        world.becomes(digest, EntryState.READY)


class Scripted:
    """A reader whose n-th answer is the n-th script: bytes, or an error to raise after them."""

    def __init__(self, *answers: tuple[bytes, Exception | None]) -> None:
        self.answers, self.asked = list(answers), list[tuple[int, int]]()

    def read_range(
        self, uri: str, file: FileRecord, start: int, end: int, *, stall_seconds: float = 30.0
    ) -> Iterator[Chunk]:
        self.asked.append((start, end))
        data, error = self.answers.pop(0)
        yield data
        if error:
            raise error


class Count:
    def __init__(self) -> None:
        self.read = self.wrote = 0
        self.pieces: list[tuple[int, int, int]] = []

    def finished(self, start: int, end: int, crc: int) -> None:
        self.pieces.append((start, end, crc))

    def moved(self, count: int) -> None:
        self.read += count

    def written(self, count: int) -> None:
        self.wrote += count


def fetch(tmp_path: Path, reader: Scripted, count: Count, tuning: Tuning = FAST) -> bytes:
    fd = os.open(tmp_path / "out", os.O_RDWR | os.O_CREAT)
    lane = Lane(RequestGate(1), TokenBucket(None), tuning)
    try:
        fetch_range(
            reader=reader, uri="file:///m", file=FILE, start=0, end=100, fd=fd, lane=lane, progress=count,
            before=lambda need: None,
        )  # fmt: skip
        return os.pread(fd, 1000, 0)
    finally:
        os.close(fd)


SILENT = Transient("source:source:stall", "silent", reason=Reason.SOURCE_UNAVAILABLE)


def test_it_joins_short_answers_and_broken_ones(tmp_path: Path) -> None:
    data, count = DATA[:100], Count()
    reader = Scripted((data[:30], None), (data[30:31], SILENT), (b"", SILENT), (data[31:], None))
    assert fetch(tmp_path, reader, count) == data
    assert reader.asked == [(0, 100), (30, 100), (31, 100), (31, 100)]
    assert count.pieces == [(0, 100, crc64nvme(data))]
    assert (count.read, count.wrote) == (100, 100)


def test_it_finishes_pieces_on_the_way(tmp_path: Path) -> None:
    """What a kill costs again is a piece, not the whole request."""
    data, count = DATA[:100], Count()
    tuning = replace(FAST, write_bytes=10, checkpoint_bytes=30)
    fetch(tmp_path, Scripted((data[:45], SILENT), (data[45:], None)), count, tuning)
    assert [(start, end) for start, end, _ in count.pieces] == [(0, 30), (30, 65), (65, 95), (95, 100)]
    assert all(crc == crc64nvme(data[start:end]) for start, end, crc in count.pieces)


def test_it_gives_up_after_so_many_answers_without_a_byte(tmp_path: Path) -> None:
    reader = Scripted((DATA[:10], SILENT), *[(b"", SILENT)] * 9)
    with pytest.raises(Transient, match="silent"):
        fetch(tmp_path, reader, Count())
    assert len(reader.asked) == FAST.range_attempts


def test_it_writes_nothing_of_an_answer_that_is_too_long(tmp_path: Path) -> None:
    count = Count()
    with pytest.raises(Transient, match="more bytes"):
        fetch(tmp_path, Scripted(*[(DATA[:101], None)] * 9), count)
    assert count.wrote == 0 and (tmp_path / "out").read_bytes() == b""


def test_it_does_not_wait_out_a_pause_when_it_is_stopped(tmp_path: Path) -> None:
    lane = Lane(
        RequestGate(1), TokenBucket(None), replace(FAST, range_pause_seconds=30.0, range_pause_most_seconds=30.0)
    )
    threading.Timer(0.1, lane.stopped.set).start()
    fd = os.open(tmp_path / "out", os.O_RDWR | os.O_CREAT)
    with pytest.raises(Stopped):
        fetch_range(
            reader=Scripted(*[(b"", SILENT)] * 3), uri="", file=FILE, start=0, end=9, fd=fd, lane=lane,
            progress=Count(), before=lambda need: None,
        )  # fmt: skip
    os.close(fd)


@pytest.mark.parametrize("algorithm", [Algorithm.SHA256, Algorithm.CRC64NVME, Algorithm.STAT])
def test_it_believes_no_file_without_proof(tmp_path: Path, algorithm: Algorithm) -> None:
    """A tree without a marker and without its copy: content checksums prove a file, nothing else does."""
    with World(tmp_path) as world:
        digest = world.model("m", {"a": DATA, "b": noise(9), "c": b"short"}, algorithm)
        world.becomes(digest, EntryState.READY)
    tree, manifest = world.tree(digest), world.link.manifests[digest]
    (tree / "b").chmod(0o644)
    (tree / "b").write_bytes(noise(9, 2))
    tree.chmod(0o755)
    (tree / "c").unlink()
    found = verify.recheck(tree, manifest, None, lambda count: None)
    assert [file.path for file in found] == (["a"] if algorithm.is_content else [])
    (world.store.state(digest) / "marker.json").unlink()
    world.requests.clear()
    world.link.reports.clear()
    with world:
        world.becomes(digest, EntryState.READY)
    assert {path for path, _, _ in world.requests} == ({"b", "c"} if algorithm.is_content else {"a", "b", "c"})
    assert world.content(digest) == {"a": DATA, "b": noise(9), "c": b"short"}


def test_it_lets_a_scrub_go_when_its_tree_is_evicted(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.tuning = replace(world.tuning, scrub_bytes_per_second=KIB)
    with world:
        digest = world.model("m", {"a": DATA})
        world.becomes(digest, EntryState.READY)
        world.want(digest, verify_round=1)
        world.quiet(0.3)
        assert world.becomes(digest, EntryState.READY).verify_round == 0, "still reading"
        world.want(digest, action=Action.EVICT)
        world.becomes(digest, EntryState.ABSENT)


def test_it_leaves_unknown_anchors_unbelieved() -> None:
    bad = replace(FILE, algorithm=Algorithm.CRC64NVME, checksum="not base64")
    assert verify.anchor_crc(bad) == "" and verify.anchor_crc(FILE) is None
