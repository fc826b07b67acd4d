"""How far this machine's clock is from the API server's, learnt from the Date header of its answers.

Every time that crosses the API server is in the server's time, so that a node whose clock is wrong by an hour neither
looks silent nor alive for ever. A difference of a few seconds is within what the header can tell and counts as none.
"""

from __future__ import annotations

import dataclasses
import threading
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

T = TypeVar("T")
TOLERANCE_SECONDS = 3.0
SLOW_ANSWER_SECONDS = 2.0  # says too little about when it was stamped


class ServerClock:
    """``offset`` is the server's time minus this machine's, in whole seconds; 0 while they agree."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._offset = 0.0

    @property
    def offset(self) -> timedelta:
        return timedelta(seconds=self._offset)

    def observe(self, date: str, sent: datetime, received: datetime) -> None:
        """One answer's Date header and this machine's times around it."""
        if not 0 <= (received - sent).total_seconds() <= SLOW_ANSWER_SECONDS:
            return
        try:
            stamped = parsedate_to_datetime(date)
        except (TypeError, ValueError):
            return
        if stamped.tzinfo is None:
            return
        middle = sent + (received - sent) / 2
        offset = (stamped - middle).total_seconds() + 0.5  # the header has no fractions
        with self._lock:
            if abs(offset) <= TOLERANCE_SECONDS:
                self._offset = 0.0
            elif abs(offset - self._offset) > TOLERANCE_SECONDS:
                self._offset = float(round(offset))

    def now(self) -> datetime:
        """The server's time now."""
        return datetime.now(UTC) + self.offset

    def to_server(self, document: T) -> T:
        """A document with every time of this machine as the server's."""
        return shifted(document, self.offset) if self._offset else document

    def from_server(self, document: T) -> T:
        """A document with every time of the server as this machine's."""
        return shifted(document, -self.offset) if self._offset else document


def shifted(value: T, by: timedelta) -> T:
    """A copy of a document with every time in it moved; a time that would leave the calendar stays."""
    changed: Any = value
    if isinstance(value, datetime):
        try:
            changed = value + by
        except OverflowError:
            changed = value
    elif isinstance(value, tuple):
        changed = tuple(shifted(item, by) for item in value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        moved = {name: shifted(item, by) for name, item in fields.items()}
        changed = dataclasses.replace(value, **{n: item for n, item in moved.items() if item is not fields[n]})
    return changed  # type: ignore[no-any-return]
