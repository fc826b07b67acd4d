"""Windows on the days when clocks change and around midnight, told in UTC."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caches.domain.pool_view import DailyWindow
from caches.domain.windows import is_open, opens_at

BERLIN, NEW_YORK, LORD_HOWE, APIA, KATHMANDU, SAO = (
    "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia", "Asia/Kathmandu", "America/Sao_Paulo",
)  # fmt: skip


MOMENTS = st.datetimes(datetime(2026, 1, 1), datetime(2027, 1, 1))


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def window(text: str, zone: str) -> DailyWindow:
    start, end = (time.fromisoformat(part) for part in text.split("-"))
    return DailyWindow(start, end, zone)


# zone, window, an instant while it is closed, the next opening, the closing after that
OPENINGS = [
    ("UTC", "22:00-06:00", "2026-03-04T12:00", "2026-03-04T22:00", "2026-03-05T06:00"),
    ("UTC", "22:00-06:00", "2026-12-31T21:59:59", "2026-12-31T22:00", "2027-01-01T06:00"),
    ("UTC", "00:00-00:01", "2026-03-04T00:01", "2026-03-05T00:00", "2026-03-05T00:01"),
    ("UTC", "23:59-00:00", "2026-03-04T00:00", "2026-03-04T23:59", "2026-03-05T00:00"),
    ("UTC", "06:00-22:00", "2028-02-29T22:00", "2028-03-01T06:00", "2028-03-01T22:00"),
    # Berlin: forward on 2026-03-29 at 01:00 UTC, back on 2026-10-25 at 01:00 UTC
    (BERLIN, "22:00-06:00", "2026-03-28T12:00", "2026-03-28T21:00", "2026-03-29T04:00"),
    (BERLIN, "22:00-06:00", "2026-03-29T12:00", "2026-03-29T20:00", "2026-03-30T04:00"),
    (BERLIN, "22:00-06:00", "2026-10-24T12:00", "2026-10-24T20:00", "2026-10-25T05:00"),
    (BERLIN, "01:00-02:00", "2026-03-28T12:00", "2026-03-29T00:00", "2026-03-29T01:00"),
    (BERLIN, "02:30-05:00", "2026-03-28T12:00", "2026-03-29T01:30", "2026-03-29T03:00"),
    (BERLIN, "02:00-03:00", "2026-10-24T12:00", "2026-10-25T00:00", "2026-10-25T02:00"),
    (BERLIN, "00:30-01:30", "2026-10-24T12:00", "2026-10-24T22:30", "2026-10-24T23:30"),
    # New York: forward on 2026-03-08 at 07:00 UTC, back on 2026-11-01 at 06:00 UTC
    (NEW_YORK, "20:00-04:00", "2026-03-07T12:00", "2026-03-08T01:00", "2026-03-08T08:00"),
    (NEW_YORK, "20:00-04:00", "2026-10-31T12:00", "2026-11-01T00:00", "2026-11-01T09:00"),
    # Lord Howe changes by half an hour: forward on 2026-10-04 at 15:30 UTC the day before
    (LORD_HOWE, "01:00-04:00", "2026-10-03T10:00", "2026-10-03T14:30", "2026-10-03T17:00"),
    # Sao Paulo has no summer time any more
    (SAO, "00:00-06:00", "2026-10-17T12:00", "2026-10-18T03:00", "2026-10-18T09:00"),
    # beside the date line, and on a quarter of an hour
    (APIA, "22:00-06:00", "2026-06-01T18:00", "2026-06-02T09:00", "2026-06-02T17:00"),
    (KATHMANDU, "00:00-06:00", "2026-06-01T12:00", "2026-06-01T18:15", "2026-06-02T00:15"),
]


@pytest.mark.parametrize(("zone", "text", "closed", "opening", "closing"), OPENINGS)
def test_it_opens_and_closes_to_the_microsecond(zone: str, text: str, closed: str, opening: str, closing: str) -> None:
    made, tick = window(text, zone), timedelta(microseconds=1)
    assert not is_open(made, utc(closed))
    assert opens_at(made, utc(closed)) == utc(opening)
    assert not is_open(made, utc(opening) - tick) and is_open(made, utc(opening))
    assert is_open(made, utc(closing) - tick) and not is_open(made, utc(closing))


@pytest.mark.parametrize(
    ("zone", "text", "day", "hours"),
    [
        (BERLIN, "00:00-12:00", "2026-03-29", 11),
        (BERLIN, "00:00-12:00", "2026-03-30", 12),
        (BERLIN, "00:00-12:00", "2026-10-25", 13),
        (BERLIN, "02:00-03:00", "2026-03-29", 0),
        (BERLIN, "02:00-03:00", "2026-10-25", 2),
        (NEW_YORK, "01:00-03:00", "2026-03-08", 1),
        (NEW_YORK, "01:00-03:00", "2026-11-01", 3),
        (LORD_HOWE, "00:00-06:00", "2026-10-04", 5.5),
        (LORD_HOWE, "00:00-06:00", "2026-04-05", 6.5),
    ],
)
def test_a_window_has_the_hours_that_the_clock_on_the_wall_shows(zone: str, text: str, day: str, hours: float) -> None:
    made = window(text, zone)
    start = utc(f"{day}T00:00") - timedelta(hours=14)
    open_minutes = sum(
        is_open(made, start + timedelta(minutes=15 * step)) * 15
        for step in range(4 * 40)
        if (start + timedelta(minutes=15 * step)).astimezone(__import__("zoneinfo").ZoneInfo(zone)).date().isoformat()
        == day
    )
    assert open_minutes == hours * 60


@settings(max_examples=60)
@given(st.times(), st.sampled_from([BERLIN, LORD_HOWE, "UTC"]), MOMENTS)
def test_a_window_and_the_rest_of_the_day_are_never_closed_at_once(start: time, zone: str, moment: datetime) -> None:
    """Together they are the whole day, so that nothing is left out where the clock changes."""
    end = time((start.hour + 9) % 24, start.minute)
    start = start.replace(second=0, microsecond=0)
    one, other = DailyWindow(start, end, zone), DailyWindow(end, start, zone)
    assert is_open(one, moment.replace(tzinfo=UTC)) or is_open(other, moment.replace(tzinfo=UTC))


@settings(max_examples=60)
@given(
    st.times(),
    st.times(),
    st.sampled_from([BERLIN, NEW_YORK, APIA]),
    MOMENTS,
)
def test_the_zone_of_the_question_does_not_matter(start: time, end: time, zone: str, moment: datetime) -> None:
    made, now = DailyWindow(start, end, zone), moment.replace(tzinfo=UTC)
    there = now.astimezone(ZoneInfo(KATHMANDU))
    assert is_open(made, now) is is_open(made, there)
    assert opens_at(made, now) == opens_at(made, there)


@pytest.mark.parametrize(
    ("name", "sound"),
    [("UTC", True), (BERLIN, True), ("Etc/GMT+5", True), ("", False), (" ", False), ("Mars/Base", False),
     ("../../etc/passwd", False), ("/etc/localtime", False), ("UTC\0", False), ("Europe", False), ("x" * 5000, False)],
)  # fmt: skip
def test_it_says_which_zones_are_none(name: str, sound: bool) -> None:
    made = DailyWindow(time(1), time(2), name)
    assert (opens_at(made, utc("2026-01-01T00:00")) is not None) is sound
    assert sound or not is_open(made, utc("2026-01-01T01:30"))
