"""What somebody reports of launches over REST, one plain object each: read strictly, and named by field when wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from caches.domain.launches.observations import Observation
from caches.domain.launches.words import Clock, Mark, Observer, Phase

OLDEST = timedelta(days=30)
NEWEST = timedelta(days=1)
MOST_FACTS, LONGEST_FACT = 20, 300
LONGEST = {"cluster": 63, "pod_uid": 100, "container": 63}
MOST_RESTARTS = 1_000_000
FIELDS = frozenset(
    {"cluster", "pod_uid", "container", "restart_count", "observer", "mark", "phase", "at", "seconds", "clock", "facts"}
)


class ReportError(ValueError):
    """One field of one report cannot be what it says."""

    def __init__(self, field: str, code: str, detail: str) -> None:
        super().__init__(f"{field}: {detail}")
        self.field, self.code, self.detail = field, code, detail


@dataclass(frozen=True, slots=True)
class Report:
    """An observation, and the four names of its launch."""

    cluster: str
    pod_uid: str
    container: str
    restart_count: int
    observation: Observation


def report_of(item: object, now: datetime) -> Report:
    """Raises ReportError with the first field that is wrong. ``mark`` is Span where only ``phase`` is given."""
    if not isinstance(item, Mapping):
        raise ReportError("", "invalid", "Must be an object.")
    if unknown := sorted(str(name) for name in set(item) - FIELDS):
        raise ReportError(
            unknown[0][:100], "unknown", f"There is no such field; there are {', '.join(sorted(FIELDS))}."
        )
    names = [_name(item, field) for field in LONGEST]
    restarts = item.get("restart_count", 0)
    if isinstance(restarts, bool) or not isinstance(restarts, int) or not 0 <= restarts <= MOST_RESTARTS:
        raise ReportError("restart_count", "invalid", f"Must be a whole number between 0 and {MOST_RESTARTS}.")
    return Report(names[0], names[1], names[2], restarts, observation_of(item, now))


def observation_of(item: Mapping[str, Any], now: datetime) -> Observation:
    """The observation in a report, without the names of its launch. Raises ReportError."""
    phase = _word(item, "phase", Phase, None)
    mark = _word(item, "mark", Mark, Mark.SPAN if phase is not None else None)
    if mark is None:
        raise ReportError("mark", "required", "Say what was seen: a mark, or a phase with its seconds.")
    observer = _word(item, "observer", Observer, Observer.PUSHED)
    clock = _word(item, "clock", Clock, Clock.NODE)
    assert observer is not None and clock is not None
    at, seconds, facts = _moment(item, now), _seconds(item), _facts(item)
    try:
        return Observation(observer, mark, at, seconds, clock, phase=phase, facts=facts)
    except ValueError as error:
        raise ReportError("seconds" if mark is Mark.SPAN else "at", "invalid", f"It {error}.") from None


def _name(item: Mapping[str, Any], field: str) -> str:
    value = item.get(field)
    if not isinstance(value, str) or not value:
        raise ReportError(field, "required", "Must be text that is not empty.")
    if len(value) > LONGEST[field] or not value.isprintable():
        raise ReportError(field, "invalid", f"Must be at most {LONGEST[field]} printable characters.")
    return value


def _word(item: Mapping[str, Any], field: str, words: Any, default: Any) -> Any:
    value = item.get(field)
    if value is None:
        return default
    try:
        return words(value)
    except ValueError:
        raise ReportError(field, "invalid-choice", f"Must be one of {', '.join(words)}.") from None


def _moment(item: Mapping[str, Any], now: datetime) -> datetime | None:
    value = item.get("at")
    if value is None:
        return None
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else None
        aware = moment.astimezone(UTC) if moment is not None and moment.tzinfo is not None else None
    except (ValueError, OverflowError):
        aware = None
    if aware is None:
        raise ReportError("at", "invalid", "Must be a time with its offset from UTC, for example 2030-01-31T08:00:00Z.")
    if not now - OLDEST <= aware <= now + NEWEST:
        raise ReportError("at", "out-of-range", f"Must lie within the last {OLDEST.days} days.")
    return aware


def _seconds(item: Mapping[str, Any]) -> float | None:
    value = item.get("seconds")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e12:
        raise ReportError("seconds", "invalid", "Must be a number.")
    return float(value)


def _facts(item: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    value = item.get("facts")
    if value is None:
        return ()
    if not isinstance(value, Mapping) or len(value) > MOST_FACTS:
        raise ReportError("facts", "invalid", f"Must be an object of at most {MOST_FACTS} texts.")
    for name, said in value.items():
        if not isinstance(said, str) or not (name + said).isprintable() or len(name) + len(said) > LONGEST_FACT:
            raise ReportError(f"facts.{name}"[:100], "invalid", f"Must be at most {LONGEST_FACT} printable characters.")
    return tuple(sorted((str(name), said) for name, said in value.items() if said))
