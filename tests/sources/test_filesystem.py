"""Folders as sources: what is listed, what is refused, and changes under the reader."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from caches.sources import filesystem, open_source, problems
from caches.sources.base import Source
from controlplane.clusters.documents import Algorithm, ConnectionSpec, FileRecord, Reason, SourceType
from controlplane.errors import Permanent, Transient
from tests.plugins.files import rewrite, stirred


@pytest.fixture
def root(tmp_path: Path) -> Path:
    place = tmp_path / "root"
    (place / "m").mkdir(parents=True)
    return place


@pytest.fixture
def source(root: Path) -> Source:
    return open_source(ConnectionSpec("disk", SourceType.FILESYSTEM, allowed=(str(root),)), {})


def uri(root: Path) -> str:
    return f"file://{root}/m"


def read(source: Source, root: Path, file: FileRecord, start: int = 0, end: int | None = None) -> bytes:
    end = file.size_bytes if end is None else end
    return b"".join(bytes(chunk) for chunk in source.read_range(uri(root), file, start, end))


def test_it_lists_every_file_once_whatever_the_page_size(source: Source, root: Path) -> None:
    names = ["a-b", "a/b", "a/c/d", "a.txt", "b/1", "Z", "é", "a b", "z/z/z/z", "a/c-"]
    for name in names:
        (root / "m" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "m" / name).write_text(name)
    (root / "m" / "empty").mkdir()
    for page_size in (1, 2, 3, 500):
        found: list[str] = []
        token = ""
        while True:
            page = source.list_page(uri(root), token, page_size)
            assert len(page.files) <= page_size
            found += [file.path for file in page.files]
            token = page.next_token
            if not token:
                break
        assert sorted(found) == sorted(names)
        assert found == sorted(found, key=lambda path: path.split("/"))


def test_it_goes_on_after_a_file_that_is_gone_and_takes_names_that_are_no_text(source: Source, root: Path) -> None:
    for raw in (b"a", b"b\xff", b"c"):
        Path(os.fsdecode(os.fsencode(root / "m") + b"/" + raw)).write_bytes(b"x")
    page = source.list_page(uri(root), "", 2)
    assert page.next_token.isascii()
    Path(os.fsdecode(os.fsencode(root / "m") + b"/b\xff")).unlink()
    assert [file.path for file in source.list_page(uri(root), page.next_token, 2).files] == ["c"]


def test_it_reads_exact_ranges_in_chunks(source: Source, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filesystem, "CHUNK_BYTES", 1000)
    data = os.urandom(5003)
    (root / "m" / "f").write_bytes(data)
    file = source.describe(uri(root), "f")
    assert (file.algorithm, file.checksum, file.size_bytes) == (Algorithm.STAT, file.revision, 5003)
    assert read(source, root, file) == data
    assert read(source, root, file, 17, 4321) == data[17:4321]
    assert read(source, root, file, 5, 5) == b""
    assert source.read_head(uri(root), file, 10) == data[:10]
    assert source.read_head(uri(root), file, 10**9) == data


@pytest.mark.parametrize("change", ["overwrite", "in place", "mode", "truncate", "replace", "delete", "touch"])
def test_it_says_source_changed_before_and_in_the_middle_of_a_range(
    change: str, source: Source, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filesystem, "CHUNK_BYTES", 1000)
    path = root / "m" / "f"

    def spoil() -> None:
        match change:
            case "overwrite":
                path.write_bytes(b"b" * 5000)
                os.utime(path, ns=(1, 1))
            case "in place":
                rewrite(path, b"b" * 5000)
            case "mode":
                stirred(path, lambda: path.chmod(0o600))
            case "truncate":
                os.truncate(path, 1500)
            case "replace":
                (root / "m" / "new").write_bytes(b"b" * 5000)
                os.replace(root / "m" / "new", path)
            case "delete":
                path.unlink()
            case "touch":
                os.utime(path, ns=(2, 2))

    path.write_bytes(b"a" * 5000)
    file = source.describe(uri(root), "f")
    stream = source.read_range(uri(root), file, 0, 5000)
    assert bytes(next(iter(stream))) == b"a" * 1000
    spoil()
    if change in ("in place", "mode"):
        # Perhaps only attributes changed: it is the registered file still, and what was read of it may be a mix.
        with pytest.raises(Transient) as touched:
            next(iter(stream))
        assert touched.value.code == problems.TOUCHED
        assert source.describe(uri(root), "f") == file
        assert read(source, root, file) == path.read_bytes()
        return
    for again in (stream, source.read_range(uri(root), file, 0, 5000)):
        with pytest.raises(Permanent) as caught:
            next(iter(again))
        assert caught.value.reason == Reason.SOURCE_CHANGED
    with pytest.raises(Permanent):
        source.bind(uri(root), file)


def test_it_reads_a_bound_file_only_in_the_state_it_was_bound_in(source: Source, root: Path) -> None:
    path = root / "m" / "f"
    path.write_bytes(b"a" * 100)
    file = source.describe(uri(root), "f")
    bound = source.bind(uri(root), file)
    assert read(source, root, bound) == b"a" * 100 and bound.checksum == file.checksum
    stirred(path, lambda: path.chmod(0o600))
    with pytest.raises(Transient) as caught:
        read(source, root, bound)
    assert caught.value.code == problems.TOUCHED and "anew" in caught.value.detail
    assert read(source, root, source.bind(uri(root), bound)) == b"a" * 100
    os.utime(path, ns=(1, 1))
    with pytest.raises(Permanent):
        source.bind(uri(root), bound)


def test_it_reads_what_was_registered_with_a_change_time(source: Source, root: Path) -> None:
    path = root / "m" / "f"
    path.write_bytes(b"a")
    file = source.describe(uri(root), "f")
    old = replace(file, revision=f"{file.revision}-{path.stat().st_ctime_ns}")
    stirred(path, lambda: path.chmod(0o600))
    assert read(source, root, source.bind(uri(root), old)) == b"a"


@pytest.mark.parametrize("moment", [-1, 0, 2**33 * 10**9])
def test_it_knows_a_file_of_any_time(moment: int, source: Source, root: Path) -> None:
    path = root / "m" / "f"
    path.write_bytes(b"a")
    os.utime(path, ns=(moment, moment))
    file = source.describe(uri(root), "f")
    assert read(source, root, source.bind(uri(root), file)) == b"a"
    assert source.list_page(uri(root)).files[0].revision == file.revision
    other = replace(file, revision=file.revision[:-1])  # a beginning of an inode's number is another inode
    with pytest.raises(Permanent):
        read(source, root, other)


def test_it_follows_links_to_files_inside_the_root_alone(source: Source, root: Path, tmp_path: Path) -> None:
    (root / "blob").write_text("inside")
    (tmp_path / "secret").write_text("outside")
    (root / "m" / "good").symlink_to("../blob")
    (root / "m" / "bad").symlink_to(tmp_path / "secret")
    (root / "m" / "chain").symlink_to("bad")
    (root / "m" / "folder").symlink_to(tmp_path)
    good = source.describe(uri(root), "good")
    assert read(source, root, good) == b"inside"
    for path in ("bad", "chain", "folder/secret", "folder"):
        with pytest.raises(Permanent) as caught:
            source.describe(uri(root), path)
        assert caught.value.reason == Reason.INVALID_REQUEST
        forged = FileRecord(path, 7, Algorithm.STAT, "x", "x")
        with pytest.raises(Permanent):
            read(source, root, forged)
    (root / "m" / "good").unlink()
    (root / "m" / "good").symlink_to(tmp_path / "secret")
    with pytest.raises(Permanent) as caught:
        read(source, root, good)
    assert "outside" in caught.value.detail


@pytest.mark.parametrize("path", ["../blob", "/etc/passwd", "a/../../blob", "", "a//b", "x\0y"])
def test_it_refuses_unsafe_paths(path: str, source: Source, root: Path) -> None:
    (root / "blob").write_text("x")
    with pytest.raises(Permanent) as caught:
        source.describe(uri(root), path)
    assert caught.value.reason == Reason.INVALID_REQUEST


def test_it_does_not_hang_on_a_pipe(source: Source, root: Path) -> None:
    os.mkfifo(root / "m" / "pipe")
    source.check(uri(root))
    with pytest.raises(Permanent) as caught:
        source.describe(uri(root), "pipe")
    assert caught.value.code == "source:user:unsafe-file"


def test_it_names_what_is_wrong_with_a_place(source: Source, root: Path, tmp_path: Path) -> None:
    (root / "m" / "f").write_text("x")
    source.check(uri(root))
    (root / "out").symlink_to(tmp_path)
    (tmp_path / "root-sibling").mkdir()
    for place, code in [
        (f"file://{root}/typo", "source:user:empty-prefix"),
        (f"file://{root}/m/f", "source:user:empty-prefix"),
        (f"file://{tmp_path}", "source:user:not-allowed"),
        (f"file://{tmp_path}/root-sibling", "source:user:not-allowed"),
        (f"file://{root}/out", "source:user:not-allowed"),
        (f"file://{root}/m/%2e%2e/%2e%2e", "source:user:bad-uri"),
        (f"file://host{root}", "source:user:bad-uri"),
        ("s3://bucket/m", "source:user:bad-uri"),
    ]:
        with pytest.raises(Permanent) as caught:
            source.check(place)
        assert caught.value.code == code, place


@pytest.mark.parametrize(
    ("raised", "kind", "reason"),
    [
        (PermissionError(13, "no"), Permanent, Reason.ACCESS_DENIED),
        (OSError(5, "I/O"), Transient, Reason.SOURCE_UNAVAILABLE),
        (OSError(116, "stale handle"), Transient, Reason.SOURCE_UNAVAILABLE),
    ],
)
def test_it_gives_each_failure_of_the_disk_its_reason(
    raised: OSError,
    kind: type[Permanent] | type[Transient],
    reason: Reason,
    source: Source,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (root / "m" / "f").write_text("x")
    file = source.describe(uri(root), "f")

    def fail(*_: object) -> int:
        raise raised

    monkeypatch.setattr(os, "preadv", fail)
    with pytest.raises(kind) as caught:
        read(source, root, file)
    assert isinstance(caught.value, kind) and caught.value.reason == reason
