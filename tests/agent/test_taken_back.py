"""Lines that go away or turn into Evict while bytes move."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

from controlplane.clusters.documents import Action, EntryState, FileRecord, Limits, Reason
from controlplane.errors import Permanent
from tests.agent.world import KIB, World, noise

DATA = noise(512 * KIB)


def held(world: World) -> tuple[threading.Event, threading.Event]:
    """Reads hang from 128 KiB on until the second event is set."""
    reached, go = threading.Event(), threading.Event()

    def hold(file: FileRecord, position: int) -> None:
        if position >= 128 * KIB:
            reached.set()
            go.wait(60)

    world.before = hold
    world.limits = Limits(max_requests=1)
    return reached, go


def test_it_stops_when_the_line_goes_and_keeps_the_partial_tree(tmp_path: Path) -> None:
    world = World(tmp_path)
    reached, go = held(world)
    with world:
        digest = world.model("m", {"a": DATA})
        assert reached.wait(60)
        world.unwant(digest)
        world.until(lambda: world.link.reports[-1].orphans)
        report = world.link.reports[-1]
        assert not report.entries and report.orphans[0].partial and report.capacity.reserved_bytes == 0
        go.set()
        world.quiet(0.3)
        assert world.entry(digest) is None
    assert not world.tree(digest).exists()
    assert (world.store.partial(digest) / "a").read_bytes()[: 128 * KIB] == DATA[: 128 * KIB]


def test_it_evicts_a_download_at_once_though_a_read_hangs(tmp_path: Path) -> None:
    world = World(tmp_path)
    reached, go = held(world)
    with world:
        digest = world.model("m", {"a": DATA})
        assert reached.wait(60)
        world.want(digest, action=Action.EVICT)
        world.becomes(digest, EntryState.ABSENT)
        assert not world.store.partial(digest).exists()
        go.set()
        world.quiet(0.3)
        assert not world.store.partial(digest).exists() and not world.tree(digest).exists()
        assert world.link.reports[-1].capacity.used_bytes == 0
        world.before = lambda file, position: None
        world.want(digest, action=Action.ENSURE)
        world.becomes(digest, EntryState.READY)
    assert world.content(digest) == {"a": DATA}


def test_it_evicts_only_what_is_named_and_nothing_outside_its_root(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        keep = world.model("keep", {"a": DATA})
        go = world.model("go", {"b": b"small"})
        world.becomes(keep, EntryState.READY)
        world.becomes(go, EntryState.READY)
        outside = tmp_path / "outside"
        outside.mkdir()
        (outside / "precious").write_text("mine")
        tree = world.tree(go)
        tree.chmod(0o755)
        (tree / "way-out").symlink_to(outside)
        stranger = world.store.base / "weights" / "somebody-elses"
        stranger.mkdir()
        world.want(go, action=Action.EVICT)
        world.becomes(go, EntryState.ABSENT)
        world.until(lambda: world.link.reports[-1].orphans)
        assert [orphan.name for orphan in world.link.reports[-1].orphans] == ["somebody-elses"]
    assert (outside / "precious").read_text() == "mine" and stranger.exists()
    assert world.content(keep) == {"a": DATA} and not tree.exists()


def test_it_evicts_what_had_failed_without_waiting_for_its_retry(tmp_path: Path) -> None:
    def refuse(file: FileRecord, position: int) -> None:
        if position >= 64 * KIB:
            raise Permanent("source:user:denied", "403", reason=Reason.ACCESS_DENIED)

    world = World(tmp_path, before=refuse, limits=Limits(max_requests=1))
    world.tuning = replace(world.tuning, permanent_first_seconds=600.0)
    with world:
        digest = world.model("m", {"a": DATA})
        entry = world.becomes(digest, EntryState.FAILED, reason=Reason.ACCESS_DENIED)
        assert entry.bytes_done == 64 * KIB and world.store.partial(digest).exists()
        world.want(digest, action=Action.EVICT)
        world.becomes(digest, EntryState.ABSENT, reason="", bytes_done=0)
        assert not world.store.partial(digest).exists()
        world.until(lambda: not list((world.store.base / "state").iterdir()))
        world.before = lambda file, position: None
        world.want(digest, action=Action.ENSURE)
        world.becomes(digest, EntryState.READY, attempts=0)


def test_it_says_absent_of_what_was_never_there(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        digest = world.register("m", {"a": b"x"})
        world.want(digest, "m", action=Action.EVICT)
        world.becomes(digest, EntryState.ABSENT)
    assert not list((world.store.base / "state").iterdir())


def test_it_refuses_a_line_whose_digest_is_none(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        good = world.register("m", {"a": b"x"})
        bad = "sha256:../../etc"
        world.link.manifests[bad] = world.link.manifests[good]
        world.want(bad, "m", send=False)
        world.want(good, "m")
        world.becomes(good, EntryState.READY)
        entry = world.becomes(bad, EntryState.FAILED, reason="InvalidRequest")
        assert "../../etc" in entry.message


def test_it_remembers_when_a_tree_was_last_used(tmp_path: Path) -> None:
    world = World(tmp_path)
    with world:
        digest = world.model("m", {"a": b"x"})
        world.becomes(digest, EntryState.READY, last_used_at=None)
        world.store.touch_used(digest)
        used = world.until(lambda: (entry := world.entry(digest)) and entry.last_used_at)
    with world:
        world.becomes(digest, EntryState.READY, last_used_at=used)
