"""A clock that is wrong by an hour is corrected; one that is right, or an answer that was slow, changes nothing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.clusters.kubernetes.clock import ServerClock, shifted
from tests.contracts.observing import status

HERE = datetime(2026, 11, 29, 12, 0, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)


def heard(clock: ServerClock, ahead: timedelta, *, took: float = 0.01, at: datetime = HERE) -> timedelta:
    """One answer of a server whose clock is so far ahead."""
    stamped = (at + timedelta(seconds=took / 2) + ahead).replace(microsecond=0)
    clock.observe(format_datetime(stamped, usegmt=True), at, at + timedelta(seconds=took))
    return clock.offset


@pytest.mark.parametrize("ahead", [HOUR, -HOUR, timedelta(days=30), timedelta(seconds=-30)])
def test_it_learns_how_far_the_server_is(ahead: timedelta) -> None:
    assert abs(heard(ServerClock(), ahead) - ahead) <= timedelta(seconds=1)


@given(st.floats(-2, 2), st.floats(0, 1), st.integers(0, 999_999))
def test_it_takes_small_differences_for_none(ahead: float, took: float, micros: int) -> None:
    at = HERE.replace(microsecond=micros)
    assert heard(ServerClock(), timedelta(seconds=ahead), took=took, at=at) == timedelta(0)


def test_it_keeps_one_offset_while_answers_differ_by_a_breath() -> None:
    clock = ServerClock()
    first = heard(clock, HOUR)
    for micros in range(0, 1_000_000, 100_000):
        assert heard(clock, HOUR, at=HERE.replace(microsecond=micros)) == first


def test_it_follows_a_clock_that_was_set_right() -> None:
    clock = ServerClock()
    heard(clock, HOUR)
    assert heard(clock, timedelta(0)) == timedelta(0)


@pytest.mark.parametrize("took", [2.5, 60.0, -1.0])
def test_it_believes_no_answer_that_was_slow_or_that_a_clock_jumped_over(took: float) -> None:
    assert heard(ServerClock(), HOUR, took=took) == timedelta(0)


@pytest.mark.parametrize("date", ["", "yesterday", "Sun, 99 Nov 2026 12:00:00 GMT", "Sun, 29 Nov 2026 13:00:00"])
def test_it_believes_no_header_that_is_none(date: str) -> None:
    clock = ServerClock()
    clock.observe(date, HERE, HERE)
    assert clock.offset == timedelta(0)


def test_it_moves_every_time_of_a_status_and_nothing_else() -> None:
    clock = ServerClock()
    heard(clock, HOUR)
    told = status("n-1", "uid")
    sent = clock.to_server(told)

    moved = clock.offset
    assert sent.reported_at == told.reported_at + moved
    assert sent.conditions[0].last_transition == told.conditions[0].last_transition + moved
    for name in ("retry_at", "started_at", "ready_at", "verified_at", "last_used_at"):
        assert getattr(sent.entries[0], name) == getattr(told.entries[0], name) + moved
    assert (sent.capacity, sent.orphans, sent.entries[0].bytes_done) == (
        told.capacity, told.orphans, told.entries[0].bytes_done,
    )  # fmt: skip
    assert clock.from_server(sent) == told


def test_it_touches_nothing_while_the_clocks_agree() -> None:
    told = status("n-1", "uid")
    assert ServerClock().to_server(told) is told
    assert ServerClock().from_server(told) is told


def test_it_leaves_alone_what_would_leave_the_calendar() -> None:
    assert shifted((datetime.max.replace(tzinfo=UTC), None, "x"), HOUR)[0] == datetime.max.replace(tzinfo=UTC)
