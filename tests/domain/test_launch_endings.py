"""A run ended by the time that the next one of its container began, whoever failed to see it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caches.domain.launches.bounds import TOLERATED
from caches.domain.launches.endings import NOT_SEEN, is_inferred, told_its_end, with_end
from caches.domain.launches.observations import Observation
from caches.domain.launches.timeline import assemble
from caches.domain.launches.words import Clock, LaunchState, Mark
from tests.domain.launches import after, mark, observation_lists

BEGUN = [mark(Mark.CREATED, 0), mark(Mark.STARTED, 10)]


def ended(at: float, clock: Clock, reason: str) -> Observation:
    return replace(mark(Mark.ENDED, at, reason=reason), clock=clock)


@pytest.mark.parametrize(
    ("more", "state", "total"), [([mark(Mark.READY, 20)], LaunchState.READY, 20), ([], LaunchState.ENDED, 300)]
)
def test_a_run_that_nobody_saw_end_had_ended_when_the_next_one_began(
    more: list[Observation], state: LaunchState, total: float
) -> None:
    seen = [*BEGUN, *more]
    line = assemble(with_end(seen, after(300)))
    assert (line.state, line.ended_at, line.end_reason, line.total_seconds) == (state, after(300), NOT_SEEN, total)
    assert assemble(with_end(seen, None)) == assemble(seen), "what has no later run goes on"


@pytest.mark.parametrize(
    ("at", "clock", "found"),
    [
        (290, Clock.NODE, (290, "OOMKilled")),
        (900, Clock.NODE, (900, "OOMKilled")),  # by a clock of its own, which may be off: it is about this run
        (290, Clock.SERVER, (290, "OOMKilled")),
        (300 + TOLERATED.total_seconds(), Clock.SERVER, (302, "OOMKilled")),  # two of the cluster's whole seconds
        (303, Clock.SERVER, (300, NOT_SEEN)),  # the pod's end, of which another run is part
    ],
)
def test_who_saw_it_end_is_believed_unless_that_is_about_a_later_run(
    at: float, clock: Clock, found: tuple[float, str]
) -> None:
    line = assemble(with_end([*BEGUN, mark(Mark.READY, 20), ended(at, clock, "OOMKilled")], after(300)))
    assert (line.ended_at, line.end_reason) == (after(found[0]), found[1])


def test_only_its_node_tells_the_end_of_a_run_beyond_doubt() -> None:
    assert told_its_end([*BEGUN, ended(9, Clock.NODE, "")])
    assert not told_its_end([*BEGUN, ended(9, Clock.SERVER, "Deleted")])


def test_an_end_that_is_told_from_before_the_beginning_is_none() -> None:
    seen = [*BEGUN, mark(Mark.SCHEDULED, 1), ended(-90, Clock.NODE, "")]
    assert not told_its_end(seen)
    assert assemble(with_end(seen, after(300))).ended_at == after(300)


def test_where_the_clock_of_the_node_lags_a_run_ended_no_earlier_than_it_began() -> None:
    """The next run's begin is in the words of the node, not moved onto the control plane's clock."""
    seen = [mark(Mark.CREATED, 0), mark(Mark.STARTED, -295), ended(900, Clock.SERVER, "Deleted")]
    line = assemble(with_end(seen, after(-250)))
    assert (line.state, line.ended_at, line.end_reason) == (LaunchState.ENDED, after(0), NOT_SEEN)


def test_a_restart_that_is_told_later_than_the_next_one_ended_when_it_began() -> None:
    seen = [replace(mark(Mark.RESTARTED, 310), clock=Clock.SERVER)]
    line = assemble(with_end(seen, after(300)))
    assert (line.state, line.ended_at, line.end_reason) == (LaunchState.ENDED, after(310), NOT_SEEN)


@given(observation_lists(), st.integers(-400, 400))
def test_what_has_a_later_run_has_ended_whatever_else_was_told(seen: list[Observation], next_began: int) -> None:
    told = seen if told_its_end(seen) else with_end(seen, after(next_began))
    assert assemble(told).ended_at is not None
    assert with_end(told, after(next_began)) == told or told_its_end(seen)


def test_the_end_that_follows_is_told_from_one_that_was_seen() -> None:
    told = with_end(BEGUN, after(300))
    assert [is_inferred(one) for one in told] == [False, False, True]
    assert not is_inferred(ended(300, Clock.SERVER, "Deleted"))


@given(observation_lists())
def test_nothing_but_its_end_follows_from_a_later_run(seen: list[Observation]) -> None:
    told = with_end(seen, after(1000))
    assert [one for one in told if one.mark is not Mark.ENDED] == [one for one in seen if one.mark is not Mark.ENDED]
    assert any(one.mark is Mark.ENDED for one in told)
    assert with_end(told, after(1000)) == told
