"""The stretch of time that a page is about, as its address says it, and the steps that charts divide it into."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

_RELATIVE = re.compile(r"now(?:-(\d{1,4})([mhd]))?\Z")
_UNITS = {"m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1)}
LONGEST = timedelta(days=400)
HOURLY_UP_TO = timedelta(hours=72)


@dataclass(frozen=True, slots=True)
class Period:
    """From ``since`` until before ``until``, both UTC and both at an edge of a step: counts have no finer edges."""

    since: datetime
    until: datetime
    step: timedelta

    @property
    def step_name(self) -> str:
        """As LaunchCount.step has it."""
        return "Hour" if self.step == timedelta(hours=1) else "Day"

    @property
    def steps(self) -> list[datetime]:
        """The beginning of each step."""
        count = -((self.since - self.until) // self.step)
        return [self.since + number * self.step for number in range(count)]

    def before(self) -> Period:
        """The period of the same length that ends where this one begins."""
        return Period(self.since - (self.until - self.since), self.since, self.step)


def moment_of(text: str, now: datetime) -> datetime:
    """``now``, ``now-6h``, ``now-30d`` or a time with its offset from UTC. Raises ValueError."""
    if (found := _RELATIVE.match(text)) is not None:
        return now - int(found[1]) * _UNITS[found[2]] if found[1] else now
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError("a time without its offset from UTC")
    try:
        return moment.astimezone(UTC)
    except OverflowError as error:
        raise ValueError("a time that no calendar has") from error


def period_of(since: str, until: str, now: datetime) -> Period:
    """The steps that hold everything between the two. Raises ValueError with what is wrong."""
    first, last = moment_of(since, now), moment_of(until, now)
    if first >= last:
        raise ValueError("it ends before it begins")
    if last - first > LONGEST:
        raise ValueError(f"it is longer than {LONGEST.days} days")
    step = timedelta(hours=1) if last - first <= HOURLY_UP_TO else timedelta(days=1)
    return Period(_down(first, step), _up(last, step), step)


def label_of(moment: datetime, zone: ZoneInfo, step: timedelta) -> str:
    """A tick: the hour in ``zone``, or the day (UTC) where the steps are days."""
    local = moment.astimezone(zone)
    if step >= timedelta(days=1):
        return f"{moment:%b} {moment.day}"
    return f"{local:%H:%M}" if local.hour else f"{local:%b} {local.day}, {local:%H:%M}"


def _down(moment: datetime, step: timedelta) -> datetime:
    whole = moment.replace(minute=0, second=0, microsecond=0)
    return whole.replace(hour=0) if step >= timedelta(days=1) else whole


def _up(moment: datetime, step: timedelta) -> datetime:
    down = _down(moment, step)
    return down if down == moment else down + step
