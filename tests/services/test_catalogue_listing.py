"""Which files of a listing count, and how their records travel between steps."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caches.services.listing import TooSlow, check_paths, check_patterns, describe_all, pack, unpack
from caches.sources.base import ListedFile
from caches.sources.selection import wanted
from controlplane.clusters.documents import Algorithm, FileRecord
from controlplane.errors import Invalid, Permanent


@pytest.mark.parametrize(
    ("path", "allow", "ignore", "kept"),
    [
        ("a.bin", [], [], True),
        ("a.bin", ["*.safetensors"], [], False),
        ("deep/er/a.safetensors", ["*.safetensors"], [], True),
        ("a.bin", [], ["*.bin"], False),
        ("a.bin", ["*"], ["*.bin"], False),
        ("original/a.pth", [], ["original/"], False),
        ("originals/a.pth", [], ["original/"], True),
        ("a.BIN", [], ["*.bin"], True),
        ("a1.bin", ["a[0-9].bin"], [], True),
        ("ab.bin", ["a?.bin", "never"], [], True),
        ("[x]", ["[x]"], [], False),
    ],
)
def test_patterns(path: str, allow: list[str], ignore: list[str], kept: bool) -> None:
    assert wanted(path, allow, ignore) is kept


@pytest.mark.parametrize("patterns", [[""], ["x" * 201], ["x"] * 101])
def test_patterns_are_bounded(patterns: list[str]) -> None:
    with pytest.raises(Invalid) as caught:
        check_patterns(allow_patterns=[], ignore_patterns=patterns)
    assert [error.field for error in caught.value.errors] == ["source.ignore_patterns"]
    check_patterns(allow_patterns=["x" * 200], ignore_patterns=["x"] * 100)


def test_an_unsafe_path_is_named_so_that_any_page_can_show_it() -> None:
    check_paths([ListedFile("a/b", 1, "r")])
    with pytest.raises(Permanent) as caught:
        check_paths([ListedFile("a", 1, "r"), ListedFile("b\0\udcff\n", 1, "r")])
    assert caught.value.detail.isprintable() and "b\\x00" in caught.value.detail


@given(
    st.lists(
        st.builds(
            FileRecord,
            path=st.text(),
            size_bytes=st.integers(0, 2**60),
            algorithm=st.sampled_from(Algorithm),
            checksum=st.text(),
            revision=st.text(),
            version_id=st.text(),
            scope=st.text(),
        )
    )
)
def test_records_survive_packing(records: list[FileRecord]) -> None:
    assert unpack(pack(records)) == records
    assert pack(records).isascii()


class Slow:
    """A store that needs a while for every file."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.running = self.most = self.asked = 0
        self.lock = threading.Lock()

    def describe(self, uri: str, path: str) -> FileRecord:
        with self.lock:
            self.running += 1
            self.asked += 1
            self.most = max(self.most, self.running)
        threading.Event().wait(self.seconds)
        with self.lock:
            self.running -= 1
        if path == "bad":
            raise Permanent("source:source:changed", "gone")
        return FileRecord(path, 1, Algorithm.ETAG, path, path)


def test_files_are_described_side_by_side_in_their_order_and_never_too_many() -> None:
    slow = Slow(0.01)
    files = [ListedFile(f"{n:03}", 1, "") for n in range(60)]
    records = describe_all(slow, "s3://b/p", files, seconds=100)  # type: ignore[arg-type]
    assert [record.path for record in records] == [file.path for file in files]
    assert 2 <= slow.most <= 16
    assert describe_all(slow, "s3://b/p", [], seconds=0) == []  # type: ignore[arg-type]


def test_a_store_that_is_too_slow_is_left_in_time_with_nothing_running() -> None:
    slow = Slow(0.05)
    with pytest.raises(TooSlow):
        describe_all(slow, "u", [ListedFile(str(n), 1, "") for n in range(2000)], seconds=0.1)  # type: ignore[arg-type]
    assert slow.asked < 2000
    assert slow.running == 0


def test_the_first_failure_is_the_answer() -> None:
    files = [ListedFile(name, 1, "") for name in ("a", "bad", "c")]
    with pytest.raises(Permanent, match="gone"):
        describe_all(Slow(0), "u", files, seconds=100)  # type: ignore[arg-type]
