"""What a scrub found stays in the status until the next one is asked for, also when the repair was over at once."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from caches.agent.record import Record, record_read, record_write
from controlplane.clusters import codec
from controlplane.clusters.documents import (
    MOST_DAMAGED,
    Action,
    Algorithm,
    EntryState,
    EntryStatus,
    FileRecord,
    Reason,
    ScrubFindings,
)  # fmt: skip
from controlplane.errors import Permanent
from tests.agent.test_scrub import BAD, FILES, _delete, _flip, _link, _mode, _no_marker, _open, _stranger, _truncate
from tests.agent.world import KIB, World, noise


def _folder_mode(tree: Path) -> None:
    tree.chmod(0o755)


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (_flip, (BAD,)),
        (_delete, (BAD,)),
        (_truncate, (BAD,)),
        (_link, (BAD,)),
        (_mode, (BAD,)),
        (_folder_mode, ("./",)),
        (_stranger, ("extra/evil.py", "out")),
    ],
)
def test_it_still_names_what_it_repaired_when_it_is_ready_again(
    tmp_path: Path, damage: Callable[[Path], None], found: tuple[str, ...]
) -> None:
    with World(tmp_path) as world:
        digest = world.model("m", FILES)
        world.becomes(digest, EntryState.READY, scrub=None)
        damage(world.tree(digest))
        world.want(digest, verify_round=1)
        entry = world.becomes(digest, EntryState.READY, verify_round=1)
        assert entry.damaged == () and entry.scrub == ScrubFindings(1, found, len(found))


def test_it_names_what_was_damaged_also_when_a_lost_marker_was_noticed_first(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        digest = world.model("m", FILES)
        world.becomes(digest, EntryState.READY)
        world.link.reachable = False
        _flip(world.tree(digest))
        _no_marker(world.tree(digest))
        world.want(digest, verify_round=1)
        world.link.reachable = True
        entry = world.becomes(digest, EntryState.READY, verify_round=1)
        assert entry.scrub == ScrubFindings(1, (BAD,), 1)


def test_it_forgets_the_findings_when_the_next_round_finds_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    with world:
        digest = world.model("m", FILES)
        world.becomes(digest, EntryState.READY)
        _flip(world.tree(digest))
        world.want(digest, verify_round=1)
        world.becomes(digest, EntryState.READY, verify_round=1)
    world.link.reports.clear()
    with world:  # also the next agent knows
        world.becomes(digest, EntryState.READY, scrub=ScrubFindings(1, (BAD,), 1))
        world.want(digest, verify_round=2)
        world.becomes(digest, EntryState.READY, verify_round=2, scrub=None)
        world.want(digest, action=Action.EVICT)
        world.becomes(digest, EntryState.ABSENT, scrub=None)


def test_it_keeps_the_findings_of_a_repair_that_could_not_be_made(tmp_path: Path) -> None:
    world = World(tmp_path)
    with world:
        digest = world.model("m", FILES)
        world.becomes(digest, EntryState.READY)

        def deny(file: FileRecord, position: int) -> None:
            raise Permanent("source:user:denied", "403", reason=Reason.ACCESS_DENIED)

        world.before = deny
        _flip(world.tree(digest))
        world.want(digest, verify_round=1)
        failed = world.becomes(digest, EntryState.FAILED, verify_round=1)
        assert failed.scrub == ScrubFindings(1, (BAD,), 1) and failed.damaged == (BAD,)


def test_it_adds_what_a_later_scrub_finds_while_nobody_asked_again(tmp_path: Path) -> None:
    world = World(tmp_path, scrub_interval_seconds=0.3)
    with world:
        digest = world.model("m", FILES)
        world.becomes(digest, EntryState.READY)
        _flip(world.tree(digest))
        world.until(lambda: (entry := world.entry(digest)) and entry.scrub == ScrubFindings(0, (BAD,), 1))
        world.becomes(digest, EntryState.READY)
        _open(world.tree(digest), "deep/b.bin").unlink()
        both = ScrubFindings(0, (BAD, "deep/b.bin"), 2)
        world.until(lambda: (entry := world.entry(digest)) and entry.scrub == both)


def test_it_names_so_many_and_counts_all() -> None:
    record = Record()
    names = [f"{number:04}" for number in range(MOST_DAMAGED + 7)]
    record.note_damage(names, 3)
    record.note_damage(names, 3)
    record.note_damage(["0000"], 2)  # an old scrub that ended late
    assert record.findings == ScrubFindings(3, tuple(names[:MOST_DAMAGED]), MOST_DAMAGED + 7)
    record.note_damage((), 4)
    assert record.findings is None


def test_it_reads_a_record_of_before_and_after_findings_were_kept(tmp_path: Path) -> None:
    record = Record(verify_round=3)
    record.note_damage(["b", "a"], 3)
    record_write(tmp_path, record)
    assert record_read(tmp_path) == record
    document = json.loads((tmp_path / "record.json").read_text())
    old = {name: value for name, value in document.items() if not name.startswith("found")}
    (tmp_path / "record.json").write_text(json.dumps(old | {"of_the_future": 1}))
    assert record_read(tmp_path) == Record(verify_round=3)


def test_a_status_without_findings_is_what_it_was_before_there_were_any() -> None:
    """Readers that do not know the field see it only once something was found."""
    status = EntryStatus("sha256:x", EntryState.READY)
    assert "scrub" not in codec.encode(status)
    found = replace(status, scrub=ScrubFindings(1, ("a",), 1))
    assert codec.encode(found)["scrub"] == {"verifyRound": 1, "damaged": ["a"], "damagedCount": 1}
    assert codec.decode(EntryStatus, codec.encode(found)) == found


@pytest.mark.parametrize("algorithm", [Algorithm.STAT, Algorithm.CRC64NVME])
def test_it_counts_the_bytes_of_a_download_and_of_a_repair_exactly(tmp_path: Path, algorithm: Algorithm) -> None:
    """A file that no checksum proves has its revision looked at once more, which is no byte of it."""
    files = {"a": noise(1100 * KIB), "b": noise(1025 * KIB, 2), "c": b"x"}
    with World(tmp_path) as world:
        digest = world.model("m", files, algorithm)
        before = world.becomes(digest, EntryState.READY)
        assert before.bytes_moved == sum(map(len, files.values()))
        target = world.tree(digest) / "a"
        target.chmod(0o644)
        target.write_bytes(bytes(1100 * KIB))
        world.want(digest, verify_round=1)
        after = world.becomes(digest, EntryState.READY, verify_round=1)
        assert after.bytes_moved - before.bytes_moved == len(files["a"])
    assert world.content(digest) == files


def test_it_does_not_call_a_round_done_before_every_byte_was_read(tmp_path: Path) -> None:
    """A stranger is seen at the first glance; that it is gone says nothing about the bytes beside it."""
    world = World(tmp_path)
    with world:
        digest = world.model("m", FILES)
        first = world.becomes(digest, EntryState.READY)
    _flip(world.tree(digest))
    _stranger(world.tree(digest))
    world.link.reports.clear()
    world.want(digest, verify_round=1)
    with world:
        entry = world.becomes(digest, EntryState.READY, verify_round=1)
        assert entry.scrub and set(entry.scrub.damaged) >= {BAD, "extra/evil.py"}
        assert world.content(digest) == FILES
        ready = [e for r in world.link.reports for e in r.entries if e.state is EntryState.READY]
        assert ready[0].verify_round == 1 or ready[0].verified_at == first.verified_at
