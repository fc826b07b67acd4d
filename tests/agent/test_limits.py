"""Token bucket, request gate, backoff and the order of scrubs: pure enough for a clock of their own."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caches.agent.backoff import pause_seconds, retry_at
from caches.agent.entry import Rate
from caches.agent.limits import RequestGate, Stopped, TokenBucket
from caches.agent.scrub import ScrubState, next_scrub
from caches.agent.tuning import Tuning
from controlplane.clusters.documents import Action, ArtifactKind, DesiredEntry

NOW = datetime(2026, 11, 29, tzinfo=UTC)
TUNING = Tuning()


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> bool:
        self.now += seconds
        return False


@given(bites=st.lists(st.integers(1, 10_000), min_size=1, max_size=50), rate=st.integers(100, 5000))
def test_it_holds_the_rate_for_any_bites(bites: list[int], rate: int) -> None:
    clock = Clock()
    bucket = TokenBucket(rate, clock)
    for bite in bites:
        bucket.take(bite, clock.wait)
    assert clock.now - 100.0 == pytest.approx(sum(bites) / rate, rel=1e-6)


def test_it_takes_a_changed_rate_at_once_also_while_somebody_waits() -> None:
    clock = Clock()
    bucket = TokenBucket(10, clock)

    def lift(seconds: float) -> bool:
        bucket.set_rate(None)
        return clock.wait(seconds)

    bucket.take(10_000, lift)
    assert clock.now < 101
    bucket.take(10**9, clock.wait)
    bucket.set_rate(1000)
    bucket.take(1000, clock.wait)
    assert clock.now < 103


def test_it_leaves_the_bucket_when_it_is_stopped() -> None:
    with pytest.raises(Stopped):
        TokenBucket(1, Clock()).take(100, lambda seconds: True)


def test_it_lets_only_so_many_requests_pass_and_none_while_paused() -> None:
    gate, stopped = RequestGate(2), threading.Event()
    with gate.request(stopped.is_set), gate.request(stopped.is_set):
        assert gate.busy == 2
        stopped.set()
        with pytest.raises(Stopped), gate.request(stopped.is_set):
            pass
        stopped.clear()
        gate.change(limit=3, paused=False)
        with gate.request(stopped.is_set):
            assert gate.busy == 3
    assert gate.busy == 0
    gate.change(limit=3, paused=True)
    stopped.set()
    with pytest.raises(Stopped), gate.request(stopped.is_set):
        pass


@pytest.mark.parametrize(
    ("transient", "attempts", "seconds"),
    [(True, 1, 5), (True, 2, 10), (True, 20, 600), (False, 1, 60), (False, 3, 240), (False, 99, 3600)],
)
def test_it_backs_off_and_stops_growing(transient: bool, attempts: int, seconds: float) -> None:
    def at(luck: float) -> float:
        when = retry_at(attempts=attempts, transient=transient, now=NOW, tuning=TUNING, chance=lambda: luck)
        return (when - NOW).total_seconds()

    assert at(0.0) == seconds
    assert at(0.999) == pytest.approx(seconds * 0.8, rel=0.01)


def test_it_waits_as_long_as_the_source_asked() -> None:
    later = NOW + timedelta(hours=2)
    at = retry_at(attempts=1, transient=True, now=NOW, tuning=TUNING, chance=lambda: 0.0, not_before=later)
    assert at == later
    assert [pause_seconds(fruitless=n, tuning=TUNING) for n in (0, 1, 2, 3, 99)] == [0.5, 0.5, 1.0, 2.0, 8.0]


def test_it_measures_the_rate_over_a_window() -> None:
    rate = Rate(10)
    assert Rate(10).value is None
    for second in range(20):
        rate.note(float(second), second * 100 if second < 10 else 1000 + (second - 10) * 500)
    assert 400 < (rate.value or 0) <= 500
    rate.clear()
    assert rate.value is None


def _state(digest: str, *, age: float | None = None, asked: int = 0, done: int = 0) -> ScrubState:
    line = DesiredEntry(digest, ArtifactKind.WEIGHTS, Action.ENSURE, "c", "file:///x", 1, 0, verify_round=asked)
    return ScrubState(line, None if age is None else NOW - timedelta(seconds=age), done)


def test_it_scrubs_what_was_asked_for_first_and_then_the_longest_unread() -> None:
    fresh, old, older = _state("fresh", age=10), _state("old", age=200), _state("older", age=300)
    asked = _state("asked", age=1, asked=2, done=1)
    assert next_scrub([fresh, old, older, asked], 100, NOW) == "asked"
    assert next_scrub([fresh, old, older], 100, NOW) == "older"
    assert next_scrub([fresh, old, older, _state("never")], 100, NOW) == "never"
    assert next_scrub([fresh, _state("done", age=1, asked=2, done=2)], 100, NOW) is None
