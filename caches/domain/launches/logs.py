"""A runtime's start-up log, read once: initialising, loading, serving. Unknown formats say nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from caches.domain.launches.log_lines import Line, lines_of, placed
from caches.domain.launches.log_tables import TABLES, RuntimeTable
from caches.domain.launches.observations import LONGEST_SECONDS, Observation
from caches.domain.launches.words import Clock, Mark, Observer, Phase


@dataclass(frozen=True, slots=True)
class Moment:
    mark: Mark
    line: Line
    seconds: float | None = None


@dataclass(slots=True)
class LogReading:
    """``runtime`` is "" for a log that no table knows; ``moments`` in the order of the log."""

    runtime: str = ""
    moments: list[Moment] = field(default_factory=list)
    unclear: bool = False


def log_observations(data: bytes) -> list[Observation]:
    """What the log says, as observations on the node's clock; empty for what is not known for certain."""
    lines = placed(list(lines_of(data)))
    table = runtime_of(lines)
    if table is None:
        return []
    reading = _read(lines, table)
    facts = (("runtime", table.name),)
    usable = [one for one in reading.moments if not (reading.unclear and one.mark is not Mark.SERVING)]
    if usable and all(one.line.at is not None for one in usable):
        return [
            Observation(Observer.RUNTIME_LOG, one.mark, one.line.at, one.seconds, Clock.NODE, facts=facts)
            for one in usable
        ]
    return _lengths(usable, table, facts)


def runtime_of(lines: Sequence[Line]) -> RuntimeTable | None:
    """The table that knows the log, None for a runtime that no table knows."""
    return next((table for table in TABLES if any(table.known_by.search(line.text) for line in lines)), None)


def _read(lines: Sequence[Line], table: RuntimeTable) -> LogReading:
    reading = LogReading(table.name)
    for line in lines:
        if table.serving.search(line.text):
            reading.moments.append(Moment(Mark.SERVING, line))
            break
        if table.unclear is not None and table.unclear.search(line.text):
            reading.unclear = True
        if (seconds := _seconds_of(line, table.loaded)) is not None:
            if not (table.first_loaded_only and any(one.mark is Mark.LOADED for one in reading.moments)):
                reading.moments.append(Moment(Mark.LOADED, line, seconds if seconds >= 0 else None))
        elif any(pattern.search(line.text) for pattern in table.load_started):
            reading.moments.append(Moment(Mark.LOAD_STARTED, line))
    return reading


def _seconds_of(line: Line, patterns: Sequence[re.Pattern[str]]) -> float | None:
    """None: not such a line; -1: one that does not say how long."""
    for pattern in patterns:
        if (found := pattern.search(line.text)) is not None:
            said = float(found["seconds"]) if "seconds" in pattern.groupindex else -1.0
            return said if said <= LONGEST_SECONDS else -1.0
    return None


def _lengths(moments: Sequence[Moment], table: RuntimeTable, facts: tuple[tuple[str, str], ...]) -> list[Observation]:
    """Of a log without moments of the calendar: lengths alone, from what it says or from its own clock."""
    begun = next((one.line for one in moments if one.mark is Mark.LOAD_STARTED), None)
    ended = next((one.line for one in reversed(moments) if one.mark is Mark.LOADED), None)
    serving = next((one.line for one in moments if one.mark is Mark.SERVING), None)
    said = [one.seconds for one in moments if one.mark is Mark.LOADED and one.seconds is not None]
    load = max(said) if said else _apart(begun, ended)
    found = [] if load is None else [_span(Phase.WEIGHTS_LOAD, load, facts)]
    if table.stamps_from_start and begun is not None and begun.elapsed is not None:
        after = _apart(ended, serving)
        if after is not None:
            found.append(_span(Phase.INITIALISATION, begun.elapsed.total_seconds() + after, facts))
    return found


def _span(phase: Phase, seconds: float, facts: tuple[tuple[str, str], ...]) -> Observation:
    return Observation(Observer.RUNTIME_LOG, Mark.SPAN, None, seconds, Clock.NODE, phase=phase, facts=facts)


def _apart(start: Line | None, end: Line | None) -> float | None:
    """Seconds between two lines on one clock of the runtime's; None where there is none, or it went backwards."""
    if start is None or end is None:
        return None
    apart: timedelta | None = None
    if start.elapsed is not None and end.elapsed is not None:
        apart = end.elapsed - start.elapsed
    elif start.stamp is not None and end.stamp is not None:
        apart = end.stamp - start.stamp
    return apart.total_seconds() if apart is not None and apart >= timedelta() else None
