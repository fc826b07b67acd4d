"""A clock that jumps, and a journal that somebody damaged: waits stay bounded, and no claim is believed unread."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caches.agent.backoff import pause_seconds, retry_at
from caches.agent.journal import Segment, journal_origin, journal_read, journal_write
from caches.agent.limits import TokenBucket
from caches.agent.record import record_read, record_write
from caches.agent.scrub import ScrubState, next_scrub
from caches.agent.tuning import Tuning
from controlplane.clusters.documents import Action, ArtifactKind, DesiredEntry, EntryState, FileRecord, Reason
from controlplane.errors import Permanent
from tests.agent.test_resume import FILES, SIZE, interrupted
from tests.agent.world import KIB, World

NOW = datetime(2026, 11, 29, tzinfo=UTC)
LINE = DesiredEntry("sha256:" + "ab" * 32, ArtifactKind.WEIGHTS, Action.ENSURE, "c", "file:///m", 1, 0)


class Clock:
    """Shifts a world's wall clock."""

    def __init__(self) -> None:
        self.shift = timedelta(0)

    def __call__(self) -> datetime:
        return datetime.now(UTC) + self.shift


def deny(file: FileRecord, position: int) -> None:
    raise Permanent("source:user:denied", "403", reason=Reason.ACCESS_DENIED)


@pytest.mark.parametrize("shift", [timedelta(days=-400), timedelta(days=400)], ids=["back", "ahead"])
def test_a_clock_that_is_set_while_an_entry_waits_does_not_keep_it_waiting(tmp_path: Path, shift: timedelta) -> None:
    world = World(tmp_path, before=deny)
    world.tuning = replace(world.tuning, permanent_first_seconds=500.0, permanent_most_seconds=600.0)
    clock = Clock()
    with world:
        world.runner.tools.clock = clock
        digest = world.model("m", {"a": b"x" * KIB})
        world.becomes(digest, EntryState.FAILED, attempts=1)
        world.before = lambda file, position: None
        world.quiet(0.1)
        world.becomes(digest, EntryState.FAILED, attempts=1)
        clock.shift = shift
        world.becomes(digest, EntryState.READY)


def test_a_wait_that_was_planned_by_a_clock_ahead_is_forgotten_at_the_start(tmp_path: Path) -> None:
    world = World(tmp_path, before=deny)
    with world:
        digest = world.model("m", {"a": b"x" * KIB})
        world.becomes(digest, EntryState.FAILED)
    state = world.store.state(digest)
    record = record_read(state)
    record.retry_at = datetime.now(UTC) + timedelta(days=4000)
    record_write(state, record)
    world.before = lambda file, position: None
    world.link.reports.clear()
    with world:
        world.becomes(digest, EntryState.READY)


@pytest.mark.parametrize(
    ("verified", "due"),
    [
        (None, True),
        (timedelta(hours=-25), True),
        (timedelta(hours=-24), True),
        (timedelta(hours=-24, microseconds=1), False),
        (timedelta(0), False),
        (timedelta(days=300), True),  # the clock was ahead when it was read
    ],
)
def test_a_scrub_is_due_after_a_day_or_when_nobody_can_tell(verified: timedelta | None, due: bool) -> None:
    at = NOW + verified if verified is not None else None
    assert (next_scrub([ScrubState(LINE, at, 0)], 86400, NOW) is not None) is due


def test_it_scrubs_nothing_that_is_to_go() -> None:
    evict = replace(LINE, action=Action.EVICT, verify_round=9)
    assert next_scrub([ScrubState(evict, None, 0)], 1, NOW) is None


@given(st.integers(1, 200), st.booleans(), st.floats(0, 0.999))
def test_a_retry_is_never_in_the_past_and_never_further_than_the_most(
    attempts: int, transient: bool, chance: float
) -> None:
    tuning = Tuning()
    at = retry_at(attempts=attempts, transient=transient, now=NOW, tuning=tuning, chance=lambda: chance)
    wait = (at - NOW).total_seconds()
    first = tuning.transient_first_seconds if transient else tuning.permanent_first_seconds
    assert first * 0.79 <= wait <= tuning.retry_most
    later = retry_at(attempts=attempts + 1, transient=transient, now=NOW, tuning=tuning, chance=lambda: chance)
    assert later >= at
    asked = NOW + timedelta(days=3)
    assert retry_at(
        attempts=attempts, transient=transient, now=NOW, tuning=tuning, chance=lambda: chance, not_before=asked
    ) == asked  # fmt: skip


@given(st.integers(-3, 500))
def test_a_pause_between_answers_without_a_byte_grows_to_its_most(fruitless: int) -> None:
    tuning = Tuning()
    pause = pause_seconds(fruitless=fruitless, tuning=tuning)
    assert tuning.range_pause_seconds <= pause <= tuning.range_pause_most_seconds
    assert pause <= pause_seconds(fruitless=fruitless + 1, tuning=tuning)


class Virtual:
    """A clock that moves only while somebody waits."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> bool:
        self.now += seconds
        return False


@given(st.lists(st.tuples(st.integers(1, 5000), st.sampled_from([None, 100.0, 1000.0, 50_000.0])), max_size=20))
def test_a_bucket_takes_the_time_that_its_rates_say_however_they_change(steps: list[tuple[int, float | None]]) -> None:
    clock = Virtual()
    bucket = TokenBucket(1000.0, clock)
    expected, rate = 0.0, 1000.0
    began = clock.now
    for count, change in steps:
        bucket.set_rate(change)
        rate = change or 0.0
        bucket.take(count, clock.wait)
        expected += count / rate if rate else 0.0
    assert clock.now - began == pytest.approx(expected, abs=1e-6)


def test_an_idle_bucket_saves_nothing_up() -> None:
    clock = Virtual()
    bucket = TokenBucket(100.0, clock)
    clock.now += 3600
    bucket.take(200, clock.wait)
    assert clock.now == pytest.approx(3702)


def _lines(journal: Path, change: Callable[[list[bytes]], list[bytes]]) -> None:
    journal.write_bytes(b"".join(change(journal.read_bytes().splitlines(True))))


def _grown(journal: Path) -> None:
    _lines(journal, lambda lines: [line.replace(b"S 0", b"S 7") for line in lines])


DAMAGES: dict[str, tuple[Callable[[Path], object], bool]] = {
    # what happens to it, and whether what was read before still counts
    "untouched": (lambda journal: None, True),
    "empty": (lambda journal: journal.write_bytes(b""), False),
    "gone": (lambda journal: journal.unlink(), False),
    "binary": (lambda journal: journal.write_bytes(os.urandom(5000)), False),
    "zeros": (lambda journal: journal.write_bytes(bytes(5000)), False),
    "other version": (
        lambda journal: journal.write_bytes(b"V 2\n" + journal.read_bytes().replace(b"S ", b"T ")),
        False,
    ),
    "a header of the future": (lambda journal: journal.write_bytes(b"V 2\n" + journal.read_bytes()), True),
    "torn": (lambda journal: journal.write_bytes(journal.read_bytes()[:-3]), True),
    "carriage returns": (lambda journal: journal.write_bytes(journal.read_bytes().replace(b"\n", b"\r\n")), False),
    "twice": (lambda journal: journal.write_bytes(journal.read_bytes() * 2), True),
    "backwards": (lambda journal: _lines(journal, lambda lines: lines[::-1]), True),
    "another file's": (_grown, False),
    "a wrong checksum last": (
        lambda journal: _lines(journal, lambda lines: [*lines, *[line[:-17] + b"0" * 16 + b"\n" for line in lines]]),
        False,
    ),
    "past the end": (lambda journal: journal.write_bytes(b"S 0 0 99999999999 0000000000000000\n"), False),
    "huge numbers": (lambda journal: journal.write_bytes(b"S 0 0 " + b"9" * 5000 + b" 0000000000000000\n"), False),
}


@pytest.mark.parametrize(("damage", "counts"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_journal_costs_a_repeat_and_nothing_else(
    tmp_path: Path, damage: Callable[[Path], object], counts: bool
) -> None:
    world = World(tmp_path)
    digest = interrupted(world)
    damage(world.store.journal(digest))
    world.requests.clear()
    with world:
        world.want(digest, "m")
        world.becomes(digest, EntryState.READY, attempts=0)
    read = sum(end - start for _, start, end in world.requests)
    assert world.content(digest) == FILES
    assert read < SIZE if counts else read == SIZE


@given(
    st.dictionaries(
        st.tuples(st.integers(0, 9), st.integers(0, 10**12), st.integers(1, 10**9)),
        st.integers(0, 2**64 - 1),
        max_size=8,
    )
)
def test_what_is_written_to_a_journal_is_read_from_it(
    tmp_path_factory: pytest.TempPathFactory, rows: dict[tuple[int, int, int], int]
) -> None:
    path = tmp_path_factory.mktemp("journal") / "journal"
    claims = {Segment(file, start, start + size): crc for (file, start, size), crc in rows.items()}
    for origin in ("", "ab" * 32):
        journal_write(path, claims, origin)
        assert journal_read(path) == claims and journal_origin(path) == origin
