"""Daily windows in a time zone: is one open, and when does it open or close next. Days with a clock change included.

A wall time that a clock jumping forward leaves out counts as the moment as long after the jump. Where the clock falls
back, a window starts at the first and ends at the last occurrence of its wall times.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from caches.domain.pool_view import DailyWindow


@lru_cache(maxsize=256)
def _zone(name: str) -> ZoneInfo | None:
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, TypeError, KeyError):  # ZoneInfoNotFoundError is a KeyError
        return None


def _instant(day: date, wall: time, zone: ZoneInfo, *, last: bool) -> datetime:
    first = datetime.combine(day, wall.replace(tzinfo=None, fold=0), zone).astimezone(UTC)
    if not last:
        return first
    return max(first, datetime.combine(day, wall.replace(tzinfo=None, fold=1), zone).astimezone(UTC))


def _spans(window: DailyWindow, zone: ZoneInfo, now: datetime) -> list[tuple[datetime, datetime]]:
    """The windows of yesterday to the day after tomorrow as (start, end) in UTC; zero-length ones left out."""
    today = now.astimezone(zone).date()
    spans = []
    for offset in range(-1, 4):
        day = today + timedelta(days=offset)
        end_day = day if window.end > window.start else day + timedelta(days=1)
        start = _instant(day, window.start, zone, last=False)
        end = _instant(end_day, window.end, zone, last=True)
        if end > start:
            spans.append((start, end))
    return spans


def is_open(window: DailyWindow | None, now: datetime) -> bool:
    """Whether transfers may start now. No window is always open; an unknown time zone is never open.

    A window whose start equals its end is the whole day.
    """
    if window is None:
        return True
    zone = _zone(window.time_zone)
    if zone is None:
        return False
    return any(start <= now < end for start, end in _spans(window, zone, now))


def opens_at(window: DailyWindow | None, now: datetime) -> datetime | None:
    """The next opening after now (UTC), now itself where it is open, None where it never opens."""
    if is_open(window, now):
        return now
    assert window is not None
    zone = _zone(window.time_zone)
    if zone is None:
        return None
    return min((start for start, _ in _spans(window, zone, now) if start > now), default=None)
