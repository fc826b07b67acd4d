"""Numbers and times as the planner's sentences print them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


def size_text(count: int) -> str:
    """Bytes for people, in the units of the pages, one digit where it says something: ``300 GiB``, ``1.5 MiB``."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if abs(value) < 1023.95 or unit == "PiB":
            text = f"{value:.1f}".removesuffix(".0")
            return f"{text} {unit}"
        value /= 1024
    raise AssertionError  # the loop always returns


def time_text(moment: datetime) -> str:
    """A moment in UTC to the minute."""
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")


def minute_text(moment: datetime) -> str:
    """The first full minute that is not before the moment: an end that is printed so has come when it is reached."""
    return time_text(moment + timedelta(seconds=59, microseconds=999_999))


def plural(count: int, word: str) -> str:
    """``1 node``, ``3 nodes``."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"
