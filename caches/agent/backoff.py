"""When a failed entry is tried again: sooner for what passes by itself, later for what somebody must change."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from caches.agent.tuning import Tuning


def retry_at(
    *,
    attempts: int,
    transient: bool,
    now: datetime,
    tuning: Tuning,
    chance: Callable[[], float],
    not_before: datetime | None = None,
) -> datetime:
    """The time after ``attempts`` failures (1 for the first). ``chance`` gives [0, 1); a source may ask for later."""
    first = tuning.transient_first_seconds if transient else tuning.permanent_first_seconds
    most = tuning.transient_most_seconds if transient else tuning.permanent_most_seconds
    wait = min(most, first * 2.0 ** min(attempts - 1, 30))
    wait *= 1 - tuning.backoff_jitter * chance()
    at = now + timedelta(seconds=wait)
    return max(at, not_before) if not_before else at


def pause_seconds(*, fruitless: int, tuning: Tuning) -> float:
    """The wait before the same range is asked for again, after ``fruitless`` answers in a row without a byte."""
    return min(tuning.range_pause_most_seconds, tuning.range_pause_seconds * 2.0 ** min(max(0, fruitless - 1), 30))
