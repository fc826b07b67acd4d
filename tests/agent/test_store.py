"""The store's own parts: marker, lock, paths that cannot be led away, meter and record."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from caches.agent import safefs
from caches.agent.marker import MarkedFile, marker_build, marker_decode, marker_encode, witness_of
from caches.agent.record import Meter, Record, record_read, record_write
from caches.agent.store import Store, StoreBusy, name_of
from controlplane.errors import Permanent

DIGEST = "sha256:" + "ab" * 32
NOW = datetime(2026, 11, 29, tzinfo=UTC)
FILES = (MarkedFile("b", 2, "00000000000000ff", 5), MarkedFile("a/x", 1, "0123456789abcdef", 6))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path)
    store.prepare()
    return store


def test_it_reads_back_the_marker_it_wrote() -> None:
    marker = marker_build(DIGEST, FILES, NOW)
    assert [file.path for file in marker.files] == ["a/x", "b"]
    assert marker_decode(marker_encode(marker), DIGEST) == marker
    assert marker.witness == witness_of(reversed(FILES)) and marker.size_bytes == 3


@pytest.mark.parametrize(
    "tamper",
    [
        lambda data: data.replace(b'"b",2', b'"b",3'),
        lambda data: data.replace(b"00000000000000ff", b"00000000000000fe"),
        lambda data: data[:-3],
        lambda data: b"",
        lambda data: b"[]",
        lambda data: b"null",
        lambda data: data.replace(b"ab" * 32, b"cd" * 32),
        lambda data: data.replace(b'"format":1', b'"format":2'),
        lambda data: data.replace(b"+00:00", b""),
        lambda data: json.dumps({**json.loads(data), "files": "x"}).encode(),
        lambda data: json.dumps({**json.loads(data), "files": json.loads(data)["files"][::-1]}).encode(),
    ],
)
def test_it_does_not_believe_a_tampered_marker(tamper: Callable[[bytes], bytes]) -> None:
    data = marker_encode(marker_build(DIGEST, FILES, NOW))
    assert tamper(data) != data
    assert marker_decode(tamper(data), DIGEST) is None


def test_it_lets_one_agent_in_at_a_time(store: Store) -> None:
    with store.lock(0), pytest.raises(StoreBusy, match="another agent"), Store(store.base.parent).lock(0.1):
        pass
    with store.lock(0):
        pass


@pytest.mark.parametrize("digest", ["", "sha256:", "sha256:" + "AB" * 32, "../x", DIGEST + "/..", DIGEST + "\n"])
def test_it_makes_folder_names_of_digests_only(digest: str) -> None:
    with pytest.raises(Permanent):
        name_of(digest)


def test_it_refuses_a_store_that_is_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "hearth").symlink_to("elsewhere")
    with pytest.raises(OSError, match="not a link"):
        Store(tmp_path).prepare()


def test_it_discards_trees_of_its_own_only(store: Store, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not a tree"):
        store.discard(tmp_path)
    with pytest.raises(ValueError, match="not a tree"):
        store.discard(store.base / "weights" / "stranger")
    assert store.discard(store.tree(DIGEST)) is False


def test_it_follows_no_link_on_the_way(store: Store, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("precious")
    tree = store.partial(DIGEST)
    tree.mkdir()
    (tree / "out").symlink_to(outside)
    (tree / "file").symlink_to(outside / "file")
    os.mkfifo(tree / "pipe")
    for path in ("out/file", "file", "pipe"):
        with pytest.raises(OSError):
            safefs.open_file(tree, path, os.O_RDONLY)
    with pytest.raises(OSError):
        safefs.open_file(tree, "out/new", os.O_RDWR, create=True)
    with pytest.raises(OSError):
        safefs.write_atomically(tree, "out/new", b"x")
    store.discard(tree)
    store.empty_trash()
    assert (outside / "file").read_text() == "precious" and [path.name for path in outside.iterdir()] == ["file"]


def test_it_leaves_an_old_file_whole_when_a_write_is_cut_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    safefs.write_atomically(tmp_path, "a", b"old")

    def break_off(fd: int) -> None:
        raise OSError("cut")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", break_off)
        with pytest.raises(OSError, match="cut"):
            safefs.write_atomically(tmp_path, "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"old"
    safefs.write_atomically(tmp_path, "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"new"


def test_it_counts_moved_bytes_over_a_death(tmp_path: Path) -> None:
    meter = Meter(tmp_path / "moved")
    meter.add(5)
    meter.add(7)  # never closed, as after kill -9
    again = Meter(tmp_path / "moved")
    assert again.total == 12
    again.close()
    again.add(1)
    (tmp_path / "moved").write_text("rubbish")
    assert Meter(tmp_path / "moved").total == 0


def test_it_remembers_a_record_and_forgives_a_damaged_one(tmp_path: Path) -> None:
    record = Record(reason="AccessDenied", attempts=3, retry_at=NOW, verify_round=2)
    record_write(tmp_path, record)
    assert record_read(tmp_path) == record
    for text in ("", "[]", '{"retry_at": "soon"}', '{"unknown": 1'):
        (tmp_path / "record.json").write_text(text)
        assert record_read(tmp_path) == Record()
