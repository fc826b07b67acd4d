"""The stretch of time that a page is about, as its address says it, and the steps that charts divide it into."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, time, timedelta, tzinfo

_RELATIVE = re.compile(r"now(?:-(\d{1,4})([mhd]))?\Z")
_UNITS = {"m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1)}
LONGEST = timedelta(days=400)
EARLIEST = datetime(2000, 1, 1, tzinfo=UTC)  # before it calendars end, and with them the period before one
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
HOURLY_UP_TO = timedelta(hours=72)


@dataclass(frozen=True, slots=True)
class Part:
    """Whole hours or whole days (UTC) that are counted as such; ``step`` as LaunchCount.step has it."""

    step: str
    since: datetime
    until: datetime


@dataclass(frozen=True, slots=True)
class Period:
    """From ``since`` until before ``until``, both UTC and full hours: counts have no finer edges.

    ``end`` is ``until``, or now where that is in the future: nothing later is counted or listed. ``step`` is what
    charts divide the period into: hours, or days of ``zone``.
    """

    since: datetime
    until: datetime
    step: timedelta
    end: datetime
    zone: tzinfo = UTC
    open: bool = False  # whether it ends now, whenever that is

    @property
    def step_name(self) -> str:
        return "Hour" if self.step == HOUR else "Day"

    @property
    def steps(self) -> list[datetime]:
        """The beginning of each step; the first and the last may be less than a whole day."""
        if self.step == HOUR:
            return [self.since + number * HOUR for number in range((self.until - self.since) // HOUR)]
        first, last = (moment.astimezone(self.zone).date() for moment in (self.since, self.until))
        days = [datetime.combine(first + number * DAY, time(), self.zone) for number in range((last - first).days + 1)]
        midnights = [_up(midnight.astimezone(UTC)) for midnight in days]
        return [self.since, *(moment for moment in midnights if self.since < moment < self.until)]

    def parts(self, uncounted: Collection[datetime] = ()) -> list[Part]:
        """What is to be read for the whole: days wherever all of one is meant, it is over and not among
        ``uncounted``; otherwise hours."""
        first, last = day_of(self.since + DAY - timedelta(microseconds=1)), day_of(self.end)
        parts = [Part("Hour", self.since, min(first, self.until))]
        for number in range((last - first) // DAY):
            day = first + number * DAY
            parts.append(Part("Hour" if day in uncounted else "Day", day, day + DAY))
        return _joined([*parts, Part("Hour", max(parts[-1].until, self.since), self.until)])

    def chart_parts(self, uncounted: Collection[datetime] = ()) -> list[Part]:
        """What is to be read for the steps: days where they are steps as well."""
        whole = self.step == DAY and all(moment == day_of(moment) for moment in self.steps[1:])
        return self.parts(uncounted) if whole else [Part("Hour", self.since, self.until)]

    def before(self) -> Period:
        """The period of the same length that ends where this one begins."""
        return replace(self, since=self.since - (self.until - self.since), until=self.since, end=self.since, open=False)


def moment_of(text: str, now: datetime) -> datetime:
    """``now``, ``now-6h``, ``now-30d`` or a time with its offset from UTC. Raises ValueError."""
    if (found := _RELATIVE.match(text)) is not None:
        return now - int(found[1]) * _UNITS[found[2]] if found[1] else now
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text[:40]!r} is no time; write now-6h, or 2026-01-31T12:00:00Z") from None
    if moment.tzinfo is None:
        raise ValueError("a time without its offset from UTC")
    try:
        return moment.astimezone(UTC)
    except OverflowError as error:
        raise ValueError("a time that no calendar has") from error


def full_moment(text: str, now: datetime) -> datetime:
    """moment_of(), where it is relative at the beginning of its hour (or minute): the same for whoever asks soon."""
    moment, found = moment_of(text, now), _RELATIVE.match(text)
    if found is None or not found[1]:
        return moment
    return moment.replace(second=0, microsecond=0) if found[2] == "m" else hour_of(moment)


def period_of(since: str, until: str, now: datetime, zone: tzinfo = UTC) -> Period:
    """The hours that hold everything between the two, until now at most. Raises ValueError with what is wrong."""
    first, last = moment_of(since, now), min(moment_of(until, now), now)
    if first >= last:
        raise ValueError("it begins after now" if first > now else "it ends before it begins")
    if last - first > LONGEST:
        raise ValueError(f"it is longer than {LONGEST.days} days")
    if first < EARLIEST:
        raise ValueError(f"it begins before {EARLIEST.year}")
    step = HOUR if last - first <= HOURLY_UP_TO else DAY
    ending = _up(last)
    return Period(hour_of(first), ending, step, min(ending, now.astimezone(UTC)), zone, last == now)


def label_of(moment: datetime, zone: tzinfo, step: timedelta) -> str:
    """A tick in ``zone``: the day where steps are days, otherwise the hour, with the day at midnight."""
    local = moment.astimezone(zone)
    if step >= DAY:
        return f"{local:%b} {local.day}"
    return f"{local:%H:%M}" if local.hour else f"{local:%b} {local.day}, {local:%H:%M}"


def _joined(parts: Iterable[Part]) -> list[Part]:
    """Without empty ones; neighbours that are read alike are one."""
    found: list[Part] = []
    for part in parts:
        if found and found[-1].step == part.step:
            found[-1] = replace(found[-1], until=part.until)
        elif part.since < part.until:
            found.append(part)
    return found


def day_of(moment: datetime) -> datetime:
    """The beginning of the day (UTC) that it lies in."""
    return hour_of(moment).replace(hour=0)


def hour_of(moment: datetime) -> datetime:
    """The beginning of the hour (UTC) that it lies in."""
    return moment.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


def _up(moment: datetime) -> datetime:
    down = hour_of(moment)
    return down if down == moment else down + HOUR
