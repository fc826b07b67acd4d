"""Numbers and times as the planner's sentences print them."""

from __future__ import annotations

from datetime import UTC, datetime


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


def second_text(moment: datetime) -> str:
    """A moment in UTC to the second, as titles on pages have it: nobody comes a minute too soon for an end."""
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def plural(count: int, word: str) -> str:
    """``1 node``, ``3 nodes``."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"
