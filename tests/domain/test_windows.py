"""Daily windows, over midnight and over clock changes."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta

from hypothesis import given
from hypothesis import strategies as st

from caches.domain.pool_view import DailyWindow
from caches.domain.windows import is_open, opens_at

BERLIN = "Europe/Berlin"


def _utc(year: int, month: int, day: int, hour: int = 0, minute: int = 0) -> datetime:
    return datetime(year, month, day, hour, minute, tzinfo=UTC)


def test_it_is_open_from_its_start_up_to_and_without_its_end() -> None:
    window = DailyWindow(time(9), time(17), "UTC")
    assert not is_open(window, _utc(2026, 1, 5, 8, 59))
    assert is_open(window, _utc(2026, 1, 5, 9))
    assert is_open(window, _utc(2026, 1, 5, 16, 59))
    assert not is_open(window, _utc(2026, 1, 5, 17))


def test_it_wraps_midnight_when_it_ends_before_it_starts() -> None:
    window = DailyWindow(time(22), time(6), BERLIN)
    assert is_open(window, _utc(2026, 1, 5, 21, 30))  # 22:30 in Berlin
    assert is_open(window, _utc(2026, 1, 6, 4, 59))
    assert not is_open(window, _utc(2026, 1, 6, 5))
    assert opens_at(window, _utc(2026, 1, 6, 5)) == _utc(2026, 1, 6, 21)


def test_it_is_always_open_without_a_window_and_all_day_when_start_equals_end() -> None:
    whole = DailyWindow(time(7), time(7), BERLIN)
    for hour in range(24):
        assert is_open(None, _utc(2026, 3, 29, hour))
        assert is_open(whole, _utc(2026, 3, 29, hour))


def test_it_is_never_open_in_a_time_zone_that_nobody_knows() -> None:
    window = DailyWindow(time(0), time(23), "Mars/Olympus")
    assert not is_open(window, _utc(2026, 1, 1))
    assert opens_at(window, _utc(2026, 1, 1)) is None


def test_it_follows_local_time_across_the_clock_change() -> None:
    window = DailyWindow(time(3), time(5), BERLIN)
    assert opens_at(window, _utc(2026, 3, 28, 12)) == _utc(2026, 3, 29, 1)  # summer time from here on
    assert opens_at(window, _utc(2026, 3, 27, 12)) == _utc(2026, 3, 28, 2)
    assert opens_at(window, _utc(2026, 10, 24, 12)) == _utc(2026, 10, 25, 2)


def test_it_starts_after_the_gap_when_the_clock_jumps_over_its_start() -> None:
    window = DailyWindow(time(2, 30), time(4), BERLIN)
    assert opens_at(window, _utc(2026, 3, 29, 0)) == _utc(2026, 3, 29, 1, 30)  # 03:30 summer time
    assert is_open(window, _utc(2026, 3, 29, 1, 45)) and not is_open(window, _utc(2026, 3, 29, 2))


def test_it_stays_open_up_to_an_end_that_the_clock_jumps_over() -> None:
    window = DailyWindow(time(1, 30), time(2, 30), BERLIN)
    assert is_open(window, _utc(2026, 3, 29, 0, 45))
    assert not is_open(window, _utc(2026, 3, 29, 1, 30))


def test_it_spans_the_hour_that_comes_twice() -> None:
    window = DailyWindow(time(2, 15), time(2, 45), BERLIN)
    assert is_open(window, _utc(2026, 10, 25, 0, 20))  # 02:20 the first time
    assert is_open(window, _utc(2026, 10, 25, 1, 40))  # 02:40 the second time
    assert not is_open(window, _utc(2026, 10, 25, 1, 45))


@given(
    st.times(),
    st.times(),
    st.sampled_from([BERLIN, "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "Pacific/Apia", "UTC"]),
    st.datetimes(datetime(2025, 1, 1), datetime(2027, 12, 31)),
)
def test_it_opens_when_it_says_and_was_closed_until_then(start: time, end: time, zone: str, moment: datetime) -> None:
    window = DailyWindow(start, end, zone)
    now = moment.replace(tzinfo=UTC)
    opening = opens_at(window, now)
    assert opening is not None
    assert now <= opening <= now + timedelta(days=3)
    assert is_open(window, opening)
    if opening > now:
        assert not is_open(window, now)
        assert not is_open(window, opening - timedelta(microseconds=1))
