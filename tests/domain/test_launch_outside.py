"""Spans that are said to lie outside their launch: no evidence of it, and never a phase of no time."""

from __future__ import annotations

import pytest

from caches.domain.launches.observations import Observation
from caches.domain.launches.spans import outside_of
from caches.domain.launches.timeline import assemble
from caches.domain.launches.words import Mark, Observer, Phase, PhaseState
from tests.domain.launches import mark, span, whole

LOAD, FIRST, PULL = Phase.WEIGHTS_LOAD, Phase.FIRST_REQUEST, Phase.IMAGE_PULL
LOG, PUSHED, CLUSTER = Observer.RUNTIME_LOG, Observer.PUSHED, Observer.CLUSTER


def without(*marks: Mark) -> list[Observation]:
    return [one for one in whole() if one.mark not in marks]


@pytest.mark.parametrize(
    ("seen", "pushed", "seconds", "observer"),
    [
        (whole(), span(LOAD, 0.5, 336), 25, LOG),  # four minutes after it was ready
        (whole(), span(LOAD, 0.5, 99.5), 25, LOG),  # before its first request, and after it was ready
        (whole(), span(LOAD, 5, -3), 25, LOG),
        (whole(), span(PULL, 5, 400), 30, CLUSTER),
        (whole(), span(LOAD, 0, 400), 25, LOG),
        (whole(), span(LOAD, 20, 85), 20, PUSHED),
        (whole(), span(LOAD, 0, 85), 0, PUSHED),  # within it, and no time
        (whole(), span(LOAD, 5, 102.5), 5, PUSHED),  # clocks that are a little apart: its length counts
        (whole(), span(PULL, 5, -1.5), 5, PUSHED),
        (without(Mark.FIRST_SUCCESS), span(LOAD, 0.5, 336), 25, LOG),
        (without(Mark.READY), span(LOAD, 0.5, 336), 25, LOG),
        (without(Mark.LOAD_STARTED), span(LOAD, 0.5, 336), None, None),
        (without(Mark.CREATED, Mark.SCHEDULED), span(LOAD, 20, 80), 20, PUSHED),  # where it began nobody knows
        ([mark(Mark.CREATED, 0), mark(Mark.STARTED, 5)], span(LOAD, 5, 336), 5, PUSHED),  # it goes on
        ([mark(Mark.RESTARTED, 100), mark(Mark.READY, 130)], span(LOAD, 9, 60), None, None),  # of the run before
        (whole(), span(FIRST, 3, 99), 3, PUSHED),  # after it was ready by nature
        (whole(), span(FIRST, 1, 336), 4, Observer.ROUTER),
        (without(Mark.FIRST_SUCCESS), span(FIRST, 1, 97.5), None, None),  # counted until it was ready
        (without(Mark.FIRST_SUCCESS), span(FIRST, 3), 0, PUSHED),  # no place on the clock, and no room
    ],
)
def test_a_span_outside_the_launch_leaves_the_phase_to_whoever_else_measured_it(
    seen: list[Observation], pushed: Observation, seconds: float | None, observer: Observer | None
) -> None:
    timeline = assemble([*seen, pushed])
    [found] = [one for one in timeline.phases if one.phase is pushed.phase]
    assert (found.seconds, found.observer) == (seconds, observer)
    assert outside_of([*seen, pushed]) == (frozenset() if observer is PUSHED else {pushed})


def test_of_several_spans_those_within_count() -> None:
    early, late = span(LOAD, 5, 70), span(LOAD, 9, 336)
    timeline = assemble([*whole(), early, late])
    assert timeline.seconds(LOAD) == 5 and outside_of([*whole(), early, late]) == {late}


def test_a_node_s_clock_is_moved_before_its_spans_are_judged() -> None:
    late = Observation(PUSHED, Mark.SPAN, span(LOAD, 20, 3600 + 80).at, 20, phase=LOAD, clock=whole(3600)[3].clock)
    timeline = assemble([*whole(3600), late])
    assert timeline.phases[4].observer is PUSHED and timeline.seconds(LOAD) == 20


def test_a_launch_that_ended_did_not_get_to_what_is_said_of_later() -> None:
    seen = [mark(Mark.CREATED, 0), mark(Mark.STARTED, 5), mark(Mark.ENDED, 60)]
    timeline = assemble([*seen, span(LOAD, 5, 336)])
    assert (timeline.reached, timeline.phases[4].state) == (Phase.INITIALISATION, PhaseState.NOT_REACHED)


def test_a_first_request_that_somebody_measured_was_reached_although_its_time_is_not_counted() -> None:
    timeline = assemble([*without(Mark.FIRST_SUCCESS), span(FIRST, 1, 336)])
    assert (timeline.reached, timeline.phases[-1].state, timeline.total_seconds) == (FIRST, PhaseState.UNKNOWN, 96)
