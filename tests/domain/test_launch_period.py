"""Periods as addresses say them: relative, absolute, wrong, and over the hour that clocks repeat."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from caches.domain.launch_period import label_of, moment_of, period_of

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


def test_it_holds_everything_between_the_two_in_whole_steps() -> None:
    hours = period_of("now-6h", "now", NOW)
    assert (hours.since, hours.until) == (
        NOW.replace(hour=6, minute=0, second=0),
        NOW.replace(hour=13, minute=0, second=0),
    )
    assert (hours.step_name, len(hours.steps)) == ("Hour", 7)
    days = period_of("now-30d", "now", NOW)
    assert (days.step_name, len(days.steps), days.until.hour) == ("Day", 31, 0)
    exact = period_of("2030-10-01T00:00:00Z", "2030-10-02T00:00:00Z", NOW)
    assert (exact.since.day, exact.until.day, len(exact.steps)) == (1, 2, 24)


def test_the_period_before_has_the_same_length() -> None:
    period = period_of("now-7d", "now", NOW)
    before = period.before()
    assert before.until == period.since
    assert len(before.steps) == len(period.steps)


@pytest.mark.parametrize(("since", "until"), [("now", "now"), ("now-1h", "now-2h"), ("now-401d", "now")])
def test_it_refuses_what_is_no_period(since: str, until: str) -> None:
    with pytest.raises(ValueError, match="it "):
        period_of(since, until, NOW)


def test_a_day_that_has_an_hour_twice_has_twenty_five_steps_in_their_order() -> None:
    zone = ZoneInfo("Europe/Zurich")
    first = datetime(2030, 10, 27, tzinfo=zone).astimezone(UTC)
    period = period_of(first.isoformat(), datetime(2030, 10, 28, tzinfo=zone).isoformat(), NOW)
    assert len(period.steps) == 25
    labels = [label_of(step, zone, period.step) for step in period.steps]
    assert labels[:5] == ["Oct 27, 00:00", "01:00", "02:00", "02:00", "03:00"]
    spring = period_of("2030-03-30T23:00:00+00:00", "2030-03-31T22:00:00+00:00", NOW)
    assert len(spring.steps) == 23
