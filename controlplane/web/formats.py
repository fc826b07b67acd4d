"""How values read on pages: bytes in GiB, durations as "3 min 12 s", ages as words. Pure; None reads as an em dash."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import pairwise

NOTHING = "—"
_UNITS = (("TiB", 1024**4), ("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024))
_COUNTS = (("T", 10**12), ("B", 10**9), ("M", 10**6), ("K", 10**3))
_SPANS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))


def bytes_text(count: float | None) -> str:
    """1536 → "1.5 KiB"; three significant digits, so that columns of them can be compared."""
    if count is None:
        return NOTHING
    for unit, size in _UNITS:
        if abs(count) >= size:
            value = count / size
            return f"{value:.0f} {unit}" if value >= 100 else f"{value:.1f} {unit}"
    return f"{count:.0f} B"


def bytes_exact(count: float | None) -> str:
    """The figure behind bytes_text, for titles: "1,536 bytes"."""
    return NOTHING if count is None else f"{count:,.0f} bytes"


def number_text(count: float) -> str:
    """20969472 → "21.0 M"; three significant digits as bytes_text has, in thousands, millions, billions, trillions."""
    for unit, size in _COUNTS:
        if abs(count) >= 0.9995 * size:
            value = count / size
            return f"{value:.0f} {unit}" if abs(value) >= 99.95 else f"{value:.1f} {unit}"
    return f"{count:.0f}"


def rate_text(bytes_per_second: float | None) -> str:
    return NOTHING if bytes_per_second is None else f"{bytes_text(bytes_per_second)}/s"


def duration_text(seconds: float | None) -> str:
    """192 → "3 min 12 s"; the two largest units; under ten seconds with one decimal, under 0.1 in ms."""
    if seconds is None:
        return NOTHING
    if seconds < 0:
        return f"−{duration_text(-seconds)}"  # noqa: RUF001  # a minus sign, not a hyphen
    if 0.0005 <= seconds < 0.0995:
        return f"{1000 * seconds:.0f} ms"  # a short phase is not none
    if seconds < 10:
        return f"{seconds:.1f} s".replace(".0 s", " s")
    left = round(seconds)
    parts: list[tuple[int, str]] = []
    for unit, size in _SPANS:
        if left >= size or parts:
            parts.append((left // size, unit))
            left %= size
    return " ".join(f"{number} {unit}" for number, unit in parts[:2] if number or len(parts) == 1)


def age_text(at: datetime | None, now: datetime) -> str:
    """ "4 s ago" or "in 1 h 59 min": what is to come in two units from an hour on; "now" within a second."""
    if at is None:
        return NOTHING
    gap = now - at
    if abs(gap) < timedelta(seconds=1):
        return "now"
    seconds = abs(gap).total_seconds()
    if gap > timedelta(0):
        return f"{_coarse(seconds)} ago"
    return f"in {_coming(seconds)}"


def _coming(seconds: float) -> str:
    """Nearly two hours are not one; minutes stand alone, as seconds beside them would jitter on every page."""
    for (unit, size), (less, part) in pairwise(_SPANS[:-1]):
        if seconds >= size:
            left = int(seconds % size // part)
            return f"{int(seconds // size)} {unit}" + (f" {left} {less}" if left else "")
    return _coarse(seconds)


def _coarse(seconds: float) -> str:
    """One unit: pages refresh it every second."""
    for unit, size in _SPANS:
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return "1 s"


def moment_text(at: datetime | None) -> str:
    """Absolute, for titles: "2026-09-01 12:03:41 UTC"."""
    return NOTHING if at is None else f"{at:%Y-%m-%d %H:%M:%S} UTC"


def iso_text(at: datetime | None) -> str:
    """RFC 3339 with Z, for exports and datetime attributes; "" for None."""
    return "" if at is None else f"{at:%Y-%m-%dT%H:%M:%S.%f}Z"


def percent_text(part: float, whole: float) -> str:
    """Never "100 %" while something is missing; nothing to have reads as an em dash."""
    if whole <= 0:
        return NOTHING
    value = int(100 * part / whole)
    return f"{min(value, 99) if part < whole else value} %"


def reference_text(text: str) -> str:
    """The name of an image, or of anything else; of a digest in it the first twelve digits."""
    name, at, found = text.partition("@")
    algorithm, colon, digits = found.partition(":")
    return f"{name}@{algorithm}:{digits[:12]}…" if at and colon and len(digits) > 12 else text


def plural(count: int, one: str, many: str = "") -> str:
    """1 node, 2 nodes."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def sentence_text(text: str) -> str:
    """ "It waits" → "It waits."; what ends already stays."""
    return text if not text or text[-1] in ".!?…" else f"{text}."
