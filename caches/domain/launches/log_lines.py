"""Lines of a container's log: without colours, and with the time that each can be placed at."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

MOST_BYTES = 1024 * 1024
MOST_CHARACTERS = 1000  # of one line

_COLOURS = re.compile(r"(?:\x1b|#033)\[[0-9;?]*[A-Za-z]")
_CRI = re.compile(
    r"(?P<at>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?P<part>\.\d+)?(?P<zone>Z|[+-]\d\d:\d\d) (?:std(?:out|err) [FP] )?"
)
_JSON_TIME = re.compile(r'"timestamp":\s*"(?P<at>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?P<part>\.\d+)?(?P<zone>Z)"')
_EPOCH = re.compile(r"\btimestamp=(?P<at>\d{10})\b")

# A runtime's own stamps: without a zone, so that only their differences say something.
_OWN: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], datetime]], ...] = (
    (
        re.compile(r"\[(\d{4})-(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)(?: [A-Z][A-Z0-9 ]*)?\]"),
        lambda found: datetime(*(int(part) for part in found.groups())),  # type: ignore[arg-type]  # six numbers
    ),
    (
        re.compile(r"\[(\d\d)/(\d\d)/(\d{4})-(\d\d):(\d\d):(\d\d)\]"),
        lambda found: datetime(
            int(found[3]), int(found[1]), int(found[2]), int(found[4]), int(found[5]), int(found[6])
        ),
    ),
    (
        re.compile(r"\b(?:INFO|WARNING|DEBUG|ERROR) (\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)\b"),
        lambda found: datetime(2000, *(int(part) for part in found.groups())),  # type: ignore[arg-type]  # five numbers
    ),
)
_ELAPSED = re.compile(r"^(\d{1,4})\.(\d\d)\.(\d{3})\.(\d{3}) [A-Z] ")


@dataclass(frozen=True, slots=True)
class Line:
    """``at`` where the line says a moment of the calendar, ``stamp`` what the runtime's own clock shows without a zone,
    ``elapsed`` what it counts from the start of its process."""

    text: str
    at: datetime | None = None
    stamp: datetime | None = None
    elapsed: timedelta | None = None


def lines_of(data: bytes) -> Iterator[Line]:
    """The first MOST_BYTES, line by line; a progress bar's carriage returns end lines too."""
    for raw in re.split(r"[\r\n]+", data[:MOST_BYTES].decode("utf-8", "replace")):
        text = _COLOURS.sub("", raw[: 2 * MOST_CHARACTERS])[:MOST_CHARACTERS]
        if text.strip():
            yield _line(text)


def placed(lines: Sequence[Line]) -> Sequence[Line]:
    """Lines that only count at their moments of the calendar, where one line says both: it ties the count to it."""
    tie = next((one for one in lines if one.at is not None and one.elapsed is not None), None)
    if tie is None or tie.at is None or tie.elapsed is None:
        return lines
    try:
        return [
            replace(one, at=tie.at + (one.elapsed - tie.elapsed)) if one.at is None and one.elapsed is not None else one
            for one in lines
        ]
    except OverflowError:  # a moment at the end of the calendar
        return lines


def _line(text: str) -> Line:
    at = None
    if (found := _CRI.match(text)) is not None:
        at, text = _moment(found), text[found.end() :]
    elif (found := _JSON_TIME.search(text)) is not None:
        at = _moment(found)
    elif (found := _EPOCH.search(text)) is not None:
        at = datetime.fromtimestamp(int(found["at"]), UTC)
    counted = _ELAPSED.match(text)
    elapsed = None
    if counted is not None:
        minutes, seconds, milli, micro = (int(part) for part in counted.groups())
        elapsed = timedelta(minutes=minutes, seconds=seconds, milliseconds=milli, microseconds=micro)
    return Line(text, at, _stamp(text), elapsed)


def _moment(found: re.Match[str]) -> datetime | None:
    part = (found["part"] or "")[:7]
    zone = "+00:00" if found["zone"] == "Z" else found["zone"]
    try:
        return datetime.fromisoformat(f"{found['at']}{part}{zone}").astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _stamp(text: str) -> datetime | None:
    for pattern, read in _OWN:
        if (found := pattern.search(text)) is not None:
            try:
                return read(found)
            except ValueError:
                return None
    return None
