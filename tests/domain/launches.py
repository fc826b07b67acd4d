"""Observations for tests: seconds after one fixed moment, on either clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import strategies as st

from caches.domain.launches.observations import Observation
from caches.domain.launches.words import PHASES, Clock, Mark, Observer, Phase

T0 = datetime(2030, 3, 31, 0, 30, tzinfo=UTC)

_OBSERVERS = {
    Mark.ENSURE_STARTED: Observer.ENSURE,
    Mark.ENSURE_ENDED: Observer.ENSURE,
    Mark.LOAD_STARTED: Observer.RUNTIME_LOG,
    Mark.LOADED: Observer.RUNTIME_LOG,
    Mark.SERVING: Observer.RUNTIME_LOG,
    Mark.READY: Observer.READINESS,
    Mark.FIRST_SUCCESS: Observer.ROUTER,
}
_SERVER = frozenset({Mark.CREATED, Mark.SCHEDULED, Mark.FIRST_SUCCESS})


def after(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def mark(mark: Mark, at: float | None, *, seconds: float | None = None, skew: float = 0.0, **facts: str) -> Observation:
    """``mark`` as its usual observer sees it; ``skew`` is how far the node's clock is ahead."""
    clock = Clock.SERVER if mark in _SERVER else Clock.NODE
    moment = after(at + (skew if clock is Clock.NODE else 0.0)) if at is not None else None
    observer = _OBSERVERS.get(mark, Observer.CLUSTER)
    return Observation(observer, mark, moment, seconds, clock, facts=tuple(sorted(facts.items())))


def span(phase: Phase, seconds: float, at: float | None = None, observer: Observer = Observer.PUSHED) -> Observation:
    moment = after(at) if at is not None else None
    return Observation(observer, Mark.SPAN, moment, seconds, Clock.NODE, phase=phase)


def whole(skew: float = 0.0) -> list[Observation]:
    """A cold start of 100 s that every observer saw: 2, 30, 20, 5 + 8, 25, 6 and 4 seconds."""
    return [
        mark(Mark.CREATED, 0),
        mark(Mark.SCHEDULED, 2),
        mark(Mark.PULLING, 2, skew=skew),
        mark(Mark.PULLED, 32, seconds=30.0, skew=skew),
        mark(Mark.ENSURE_STARTED, 32, skew=skew),
        mark(Mark.ENSURE_ENDED, 52, seconds=20.0, skew=skew, found="miss"),
        mark(Mark.STARTED, 52, skew=skew),
        mark(Mark.LOAD_STARTED, 57, skew=skew),
        mark(Mark.LOADED, 82, skew=skew),
        mark(Mark.SERVING, 90, skew=skew),
        mark(Mark.READY, 96, skew=skew),
        mark(Mark.FIRST_SUCCESS, 100),
    ]


def _any_mark() -> st.SearchStrategy[Observation]:
    return st.builds(
        lambda one, at, seconds, clock, observer: Observation(observer, one, after(at), seconds, clock),
        st.sampled_from([one for one in Mark if one is not Mark.SPAN]),
        st.integers(-20, 300),
        st.none() | st.integers(0, 200).map(float),
        st.sampled_from(Clock),
        st.sampled_from(Observer),
    )


def _any_span() -> st.SearchStrategy[Observation]:
    return st.builds(
        lambda phase, at, seconds, observer: span(phase, seconds, at, observer),
        st.sampled_from(PHASES),
        st.none() | st.integers(-20, 300),
        st.floats(0, 400, allow_nan=False),
        st.sampled_from(Observer),
    )


def observation_lists() -> st.SearchStrategy[list[Observation]]:
    """Anything that observers could say, however contradictory."""
    return st.lists(_any_mark() | _any_span(), max_size=14)
