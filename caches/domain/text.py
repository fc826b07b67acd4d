"""Numbers and times as the planner's sentences print them."""

from __future__ import annotations

from datetime import UTC, datetime


def size_text(count: int) -> str:
    """Bytes for people, decimal units, one digit where it says something: ``300 GB``, ``1.5 MB``, ``12 B``."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB", "TB", "PB"):
        if abs(value) < 999.95 or unit == "PB":
            text = f"{value:.1f}".removesuffix(".0")
            return f"{text} {unit}"
        value /= 1000
    raise AssertionError  # the loop always returns


def time_text(moment: datetime) -> str:
    """A moment in UTC to the minute."""
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")


def plural(count: int, word: str) -> str:
    """``1 node``, ``3 nodes``."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"
