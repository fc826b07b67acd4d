"""What others put into the store: links, hard links, files, odd modes, odd names. Nothing of theirs is lost."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from caches.agent import safefs
from caches.agent.capacity import tree_bytes
from caches.agent.store import Store, name_of
from controlplane.clusters.documents import Action, Algorithm, EntryState
from tests.agent.test_resume import FILES, SIZE, interrupted
from tests.agent.world import KIB, World, noise

DATA = noise(40 * KIB)
DIGEST = "sha256:" + "ab" * 32


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    place = tmp_path / "outside"
    place.mkdir()
    (place / "precious").write_bytes(b"mine")
    return place


def untouched(outside: Path) -> bool:
    file = outside / "precious"
    return os.listdir(outside) == ["precious"] and file.read_bytes() == b"mine"


def test_it_writes_to_no_hard_link_in_a_partial_tree(tmp_path: Path) -> None:
    """Somebody kept a copy of the half-done file by its inode, as a backup with hard links does."""
    world = World(tmp_path)
    digest = interrupted(world)
    copy = tmp_path / "copy"
    os.link(world.store.partial(digest) / "model.bin", copy)
    copy.chmod(0o440)
    before = copy.read_bytes()
    with world:
        world.want(digest, "m")
        world.becomes(digest, EntryState.READY)
    assert copy.read_bytes() == before and copy.stat().st_mode & 0o777 == 0o440
    assert world.content(digest) == FILES and (world.tree(digest) / "model.bin").stat().st_nlink == 1


def test_it_repairs_a_file_without_writing_to_a_hard_link_of_it(tmp_path: Path) -> None:
    world = World(tmp_path)
    with world:
        digest = world.model("m", {"a": DATA, "b": b"b"})
        world.becomes(digest, EntryState.READY)
        copy = tmp_path / "copy"
        os.link(world.tree(digest) / "a", copy)
        copy.chmod(0o644)
        copy.write_bytes(b"theirs")
        world.want(digest, verify_round=1)
        world.becomes(digest, EntryState.READY, verify_round=1)
        assert copy.read_bytes() == b"theirs" and world.content(digest) == {"a": DATA, "b": b"b"}
        os.link(world.tree(digest) / "b", tmp_path / "kept")
        world.want(digest, action=Action.EVICT)
        world.becomes(digest, EntryState.ABSENT)
    assert (tmp_path / "kept").read_bytes() == b"b"


def _link(place: Path, outside: Path) -> None:
    place.symlink_to(outside)


def _dangling(place: Path, outside: Path) -> None:
    place.symlink_to(outside / "nothing")


def _file(place: Path, outside: Path) -> None:
    place.write_bytes(b"x" * 100)


def _pipe(place: Path, outside: Path) -> None:
    os.mkfifo(place)


@pytest.mark.parametrize("where", ["tree", "partial"])
@pytest.mark.parametrize("put", [_link, _dangling, _file, _pipe])
def test_it_takes_away_what_stands_in_a_trees_place_and_fetches_it(
    tmp_path: Path, outside: Path, put: Callable[[Path, Path], None], where: str
) -> None:
    world = World(tmp_path)
    digest = world.register("m", {"a": DATA})
    world.store.prepare()
    put(getattr(world.store, where)(digest), outside)
    with world:
        world.want(digest, "m")
        world.becomes(digest, EntryState.READY, attempts=0)
    assert world.content(digest) == {"a": DATA} and not world.tree(digest).is_symlink() and untouched(outside)


def test_it_notices_a_tree_that_became_a_link_while_it_was_ready(tmp_path: Path, outside: Path) -> None:
    """Moved to a bigger disk by hand, with a link left behind: consumers must not read from there."""
    with World(tmp_path) as world:
        digest = world.model("m", {"a": DATA})
        world.becomes(digest, EntryState.READY)
        moved = tmp_path / "bigger-disk"
        world.tree(digest).rename(moved)
        world.tree(digest).symlink_to(moved)
        world.until(lambda: world.tree(digest).is_dir() and not world.tree(digest).is_symlink())
        world.becomes(digest, EntryState.READY)
    assert (moved / "a").read_bytes() == DATA and world.content(digest) == {"a": DATA}


@pytest.mark.parametrize("kind", ["weights", "partial"])
def test_it_reports_strangers_with_their_bytes_and_touches_none(tmp_path: Path, outside: Path, kind: str) -> None:
    world = World(tmp_path)
    world.store.prepare()
    place = world.store.base / kind
    (place / "a file").write_bytes(b"x" * 123)
    (place / "folder").mkdir()
    (place / "folder" / "big").write_bytes(b"x" * 456)
    (place / "link").symlink_to(outside)
    (place / name_of(DIGEST)).mkdir()
    with world:
        digest = world.model("m", {"a": DATA})
        world.becomes(digest, EntryState.READY)
        found = {orphan.name: orphan.bytes for orphan in world.link.reports[-1].orphans}
        assert found == {"a file": 123, "folder": 456, "link": 0, name_of(DIGEST): 0}
        assert world.link.reports[-1].capacity.used_bytes >= len(DATA) + 123 + 456
        world.want(digest, action=Action.EVICT)
        world.becomes(digest, EntryState.ABSENT)
    assert sorted(os.listdir(place)) == ["a file", "folder", "link", name_of(DIGEST)] and untouched(outside)


def test_it_evicts_a_link_by_its_name_alone(tmp_path: Path, outside: Path) -> None:
    world = World(tmp_path)
    digest = world.register("m", {"a": DATA})
    world.store.prepare()
    world.store.tree(digest).symlink_to(outside)
    with world:
        world.want(digest, "m", action=Action.EVICT)
        world.becomes(digest, EntryState.ABSENT)
        world.until(lambda: not os.path.lexists(world.store.tree(digest)))
        world.until(lambda: not os.listdir(world.store.base / "trash"))
    assert untouched(outside)


def test_it_empties_a_trash_of_links_odd_modes_and_odd_names(tmp_path: Path, outside: Path) -> None:
    store = Store(tmp_path)
    store.prepare()
    trash = store.base / "trash"
    deep = trash / "deep"
    for _ in range(60):
        deep = deep / "d"
    deep.mkdir(parents=True)
    (deep / "f").write_bytes(b"x")
    (trash / "closed" / "in").mkdir(parents=True)
    (trash / "closed" / "in" / "f").write_bytes(b"x")
    (trash / "closed" / "in" / "out").symlink_to(outside)
    (trash / "closed" / "in").chmod(0)
    (trash / "closed").chmod(0o111)
    (trash / "link").symlink_to(outside)
    os.link(outside / "precious", trash / "hard")
    os.mkfifo(trash / "pipe")
    Path(os.fsdecode(os.fsencode(trash) + b"/\xff\xfe")).write_bytes(b"x")
    (trash / ("n" * 255)).write_bytes(b"x")
    assert safefs.remove_tree(trash, "deep", stop=lambda: True) is False and deep.exists()
    store.empty_trash()
    assert os.listdir(trash) == [] and untouched(outside)


@pytest.mark.parametrize("mode", [0o000, 0o200, 0o444, 0o555, 0o777, 0o4755])
def test_it_resumes_a_partial_tree_whatever_its_modes(tmp_path: Path, mode: int) -> None:
    world = World(tmp_path)
    digest = interrupted(world)
    partial = world.store.partial(digest)
    (partial / "model.bin").chmod(mode)
    partial.chmod(mode if mode & 0o500 == 0o500 else 0o500)
    world.requests.clear()
    with world:
        world.want(digest, "m")
        world.becomes(digest, EntryState.READY)
    assert sum(end - start for _, start, end in world.requests) <= SIZE // 2
    tree = world.tree(digest)
    assert tree.stat().st_mode & 0o7777 == 0o555 and (tree / "model.bin").stat().st_mode & 0o7777 == 0o444


NAMES = {
    "longest": {"n" * 255: b"1", f"{'d' * 255}/{'f' * 255}": b"2"},
    "deepest": {"/".join("d" * 200): b"1"},
    "unicode": {"модель/weights-é.bin": b"1", "模型": b"2", "🔥/🔥": b"3", "e\u0301": b"4"},
    "odd": {
        "a b": b"1",
        "-rf": b"2",
        "$(x)": b"3",
        "a;b'c\"d": b"4",
        "...": b"5",
        "~": b"6",
        "%2e%2e": b"7",
        "*": b"8",
    },
    "empty": {"a": b"", "b/c": b"", "b/d": b""},
    "one empty": {"only": b""},
    "names of ours": {"journal": b"1", "record.json": b"2", "lock": b"3", "marker.json": b"4", "weights/x": b"5"},
    "alike": {"a": b"same", "b": b"same", "c/a": b"same"},
    "prefixes": {"a": b"1", "a.b": b"2", "a-b/c": b"3", "ab": b"4"},
}


@pytest.mark.parametrize("algorithm", [Algorithm.STAT, Algorithm.CRC64NVME, Algorithm.SHA256])
@pytest.mark.parametrize("files", NAMES.values(), ids=NAMES)
def test_it_keeps_files_of_any_name(tmp_path: Path, files: dict[str, bytes], algorithm: Algorithm) -> None:
    with World(tmp_path) as world:
        digest = world.model("m", files, algorithm)
        entry = world.becomes(digest, EntryState.READY, attempts=0)
        assert entry.bytes_done == entry.bytes_total == sum(map(len, files.values()))
        assert world.content(digest) == files
        world.want(digest, verify_round=1)
        world.becomes(digest, EntryState.READY, verify_round=1, scrub=None)
        world.want(digest, action=Action.EVICT)
        world.becomes(digest, EntryState.ABSENT)
        world.until(lambda: not os.listdir(world.store.base / "trash"))


def test_it_keeps_thousands_of_small_files_and_repairs_one(tmp_path: Path) -> None:
    files = {f"shard-{number % 10}/{number:05}": b"%d" % number for number in range(1500)}
    with World(tmp_path) as world:
        digest = world.model("m", files)
        world.becomes(digest, EntryState.READY, attempts=0)
        victim = world.tree(digest) / "shard-7/00777"
        victim.parent.chmod(0o755)
        victim.unlink()
        victim.parent.chmod(0o555)
        world.requests.clear()
        world.want(digest, verify_round=1)
        entry = world.becomes(digest, EntryState.READY, verify_round=1)
        assert entry.scrub and entry.scrub.damaged == ("shard-7/00777",)
        assert [path for path, _, _ in world.requests] == ["shard-7/00777"]
    assert world.content(digest) == files


def test_it_counts_a_hole_only_where_it_was_asked_for(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "in").mkdir(parents=True)
    with (tree / "in" / "sparse").open("wb") as file:
        file.truncate(10 * 1024 * KIB)
    (tree / "link").symlink_to("/etc")
    assert tree_bytes(tree) == 10 * 1024 * KIB and tree_bytes(tree, allocated=True) < KIB
    assert tree_bytes(tmp_path / "nothing") == 0 == tree_bytes(tree / "link")
