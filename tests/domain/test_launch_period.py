"""Periods as addresses say them: relative, absolute, wrong, and over the hour that clocks repeat."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caches.domain.launches.period import label_of, moment_of, period_of

NOW = datetime(2030, 10, 27, 12, 34, 56, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("now", NOW),
        ("now-90m", NOW - timedelta(minutes=90)),
        ("now-6h", NOW - timedelta(hours=6)),
        ("now-30d", NOW - timedelta(days=30)),
        ("2030-10-27T02:00:00+02:00", datetime(2030, 10, 27, tzinfo=UTC)),
        ("2030-10-27T00:00:00Z", datetime(2030, 10, 27, tzinfo=UTC)),
    ],
)
def test_it_reads_moments(text: str, expected: datetime) -> None:
    assert moment_of(text, NOW) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "yesterday",
        "now-",
        "now-6",
        "now-6y",
        "now+1h",
        "2030-10-27T00:00:00",
        "now-99999d",
        "0001-01-01T00:00:00+23:00",
    ],
)
def test_it_refuses_what_is_no_moment(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        moment_of(text, NOW)


def test_it_says_in_words_what_is_no_time() -> None:
    for text in ("yesterday", "2026-13-01", "x" * 5000):
        with pytest.raises(ValueError, match=r"is no time; write now-6h") as refused:
            moment_of(text, NOW)
        assert "isoformat" not in str(refused.value) and len(str(refused.value)) < 120


def test_it_holds_everything_between_the_two_in_whole_hours() -> None:
    hours = period_of("now-6h", "now", NOW)
    assert (hours.since, hours.until) == (
        NOW.replace(hour=6, minute=0, second=0),
        NOW.replace(hour=13, minute=0, second=0),
    )
    assert (hours.step_name, len(hours.steps)) == ("Hour", 7)
    days = period_of("now-30d", "now", NOW)
    assert (days.step_name, len(days.steps)) == ("Day", 31)
    assert (days.since, days.until) == (hours.until - timedelta(days=30, hours=1), hours.until)
    exact = period_of("2030-10-01T00:00:00Z", "2030-10-02T00:00:00Z", NOW)
    assert (exact.since.day, exact.until.day, exact.end.day, len(exact.steps)) == (1, 2, 2, 24)


@pytest.mark.parametrize(
    ("until", "end"),
    [("11:56", "12:00"), ("12:00", "12:00"), ("12:20", "12:30"), ("12:30", "12:30"), ("12:40", "12:30")],
)
def test_it_ends_with_a_full_hour_or_now(until: str, end: str) -> None:
    now = datetime(2030, 10, 27, 12, 30, tzinfo=UTC)
    found = period_of("2030-10-27T11:50:00Z", f"2030-10-27T{until}:00Z", now)
    assert (f"{found.since:%H:%M}", f"{found.end:%H:%M}") == ("11:00", end)
    assert found.open is (until >= "12:30")


@pytest.mark.parametrize("until", ["now", "2030-10-27T18:00:00Z", "2099-01-01T00:00:00Z"])
def test_it_ends_now_at_the_latest(until: str) -> None:
    assert period_of("now-6h", until, NOW).end == NOW
    with pytest.raises(ValueError, match="begins after now"):
        period_of("2098-01-01T00:00:00Z", "2099-01-01T00:00:00Z", NOW)


def parts(since: str, until: str, *uncounted: datetime) -> list[tuple[str, str, str]]:
    found = period_of(since, until, NOW).parts(uncounted)
    return [(part.step, f"{part.since:%m-%dT%H}", f"{part.until:%m-%dT%H}") for part in found]


def test_days_that_are_over_are_read_as_such_and_the_edges_by_hours() -> None:
    month = ("Hour", "09-27T12", "09-28T00"), ("Day", "09-28T00", "10-27T00"), ("Hour", "10-27T00", "10-27T13")
    assert parts("now-30d", "now") == [*month]
    assert parts("2030-10-01T00:00Z", "2030-10-03T00:00Z") == [("Day", "10-01T00", "10-03T00")]
    assert parts("2030-10-01T00:00Z", "2030-10-01T23:59Z") == [("Day", "10-01T00", "10-02T00")]
    assert parts("2030-10-01T06:00Z", "2030-10-02T06:00Z") == [("Hour", "10-01T06", "10-02T06")]
    assert parts("now-1h", "now") == [("Hour", "10-27T11", "10-27T13")]


def test_a_day_that_waits_to_be_counted_is_read_by_hours() -> None:
    waits = [datetime(2030, 10, 2, tzinfo=UTC), datetime(2030, 10, 26, tzinfo=UTC)]
    assert parts("2030-10-01T00:00Z", "now", *waits) == [
        ("Day", "10-01T00", "10-02T00"),
        ("Hour", "10-02T00", "10-03T00"),
        ("Day", "10-03T00", "10-26T00"),
        ("Hour", "10-26T00", "10-27T13"),
    ]


@given(st.integers(0, 24 * 60 * 40), st.integers(1, 24 * 60 * 40), st.sets(st.integers(0, 60)))
def test_every_hour_is_read_once_whatever_the_period(ago: int, length: int, waiting: set[int]) -> None:
    last = NOW - timedelta(minutes=ago)
    period = period_of((last - timedelta(minutes=length)).isoformat(), last.isoformat(), NOW)
    midnight = NOW.replace(hour=0, minute=0, second=0)
    found = period.parts([midnight - timedelta(days=number) for number in waiting])
    assert (found[0].since, found[-1].until) == (period.since, period.until)
    assert all(one.until == other.since and one.step != other.step for one, other in pairwise(found))
    for part in found:
        assert part.since < part.until
        if part.step == "Day":
            assert (part.since.hour, part.until.hour) == (0, 0)
            assert part.until <= NOW


@pytest.mark.parametrize(
    ("zone", "labels", "starts"),
    [
        ("Europe/Zurich", ["Oct 24", "Oct 25", "Oct 26", "Oct 27", "Oct 28"], [7, 22, 22, 22, 23]),  # clocks go back
        ("America/New_York", ["Oct 24", "Oct 25", "Oct 26", "Oct 27", "Oct 28"], [7, 4, 4, 4, 4]),
        ("Asia/Kolkata", ["Oct 24", "Oct 25", "Oct 26", "Oct 27", "Oct 28"], [7, 19, 19, 19, 19]),  # half past
    ],
)
def test_days_are_those_of_the_zone(zone: str, labels: list[str], starts: list[int]) -> None:
    here = ZoneInfo(zone)
    days = period_of("2030-10-24T07:00Z", "2030-10-28T12:00Z", datetime(2030, 11, 5, tzinfo=UTC), here)
    assert [label_of(step, here, days.step) for step in days.steps] == labels
    assert [step.hour for step in days.steps] == starts
    assert {part.step for part in days.chart_parts()} == {"Hour"}


def test_the_period_before_has_the_same_length() -> None:
    period = period_of("now-7d", "now", NOW)
    before = period.before()
    assert before.until == period.since
    assert len(before.steps) == len(period.steps)


@pytest.mark.parametrize(("since", "until"), [("now", "now"), ("now-1h", "now-2h"), ("now-401d", "now")])
def test_it_refuses_what_is_no_period(since: str, until: str) -> None:
    with pytest.raises(ValueError, match="it "):
        period_of(since, until, NOW)


LATER = NOW + timedelta(days=5)


def test_a_day_that_has_an_hour_twice_has_twenty_five_steps_in_their_order() -> None:
    zone = ZoneInfo("Europe/Zurich")
    first = datetime(2030, 10, 27, tzinfo=zone).astimezone(UTC)
    period = period_of(first.isoformat(), datetime(2030, 10, 28, tzinfo=zone).isoformat(), LATER, zone)
    assert len(period.steps) == 25
    labels = [label_of(step, zone, period.step) for step in period.steps]
    assert labels[:5] == ["Oct 27, 00:00", "01:00", "02:00", "02:00", "03:00"]
    spring = period_of("2030-03-30T23:00:00+00:00", "2030-03-31T22:00:00+00:00", NOW)
    assert len(spring.steps) == 23


@pytest.mark.parametrize("zone", ["UTC", "America/Lima", "Pacific/Kiritimati"])
@pytest.mark.parametrize(
    ("since", "until"),
    [("0001-01-01T00:00:00Z", "0001-01-02T00:00:00Z"), ("1999-12-31T23:59:59Z", "2000-01-02T00:00:00Z")],
)
def test_a_period_where_calendars_end_is_refused(since: str, until: str, zone: str) -> None:
    """The one before it, or its days in a zone west of Greenwich, no calendar has."""
    with pytest.raises(ValueError, match="begins before 2000"):
        period_of(since, until, NOW, ZoneInfo(zone))


@pytest.mark.parametrize("zone", ["America/Lima", "Pacific/Kiritimati", "Asia/Kathmandu"])
def test_the_earliest_period_has_steps_and_one_before_it(zone: str) -> None:
    first = period_of("2000-01-01T00:00:00Z", "2000-02-01T00:00:00Z", NOW, ZoneInfo(zone))
    assert first.before().until == first.since and first.before().before().since.year == 1999
    assert first.steps[0] == first.since and len(first.steps) in (31, 32)
    assert all(first.since <= step < first.until for step in first.steps)
    assert [part.since for part in first.chart_parts()] == [first.since]
