"""What holds for every timeline, whatever was observed."""

from __future__ import annotations

import random
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from caches.domain.launches.observations import Observation
from caches.domain.launches.timeline import assemble
from caches.domain.launches.words import PHASES, LaunchState, PhaseState
from tests.domain.launches import observation_lists, whole


@given(observation_lists(), st.randoms(use_true_random=False))
def test_it_does_not_matter_who_comes_first_or_twice(seen: list[Observation], chance: random.Random) -> None:
    mixed = seen + chance.choices(seen, k=len(seen)) if seen else []
    chance.shuffle(mixed)
    assert assemble(mixed) == assemble(seen)


@given(observation_lists())
def test_no_phase_is_negative_and_together_they_are_no_more_than_the_whole(seen: list[Observation]) -> None:
    timeline = assemble(seen)
    measured = [one.seconds for one in timeline.phases if one.seconds is not None]
    assert [one.phase for one in timeline.phases] == list(PHASES)
    assert all(seconds >= 0 for seconds in measured)
    if timeline.total_seconds is not None and timeline.unknown_seconds is not None:
        assert timeline.unknown_seconds >= 0
        assert sum(measured) + timeline.unknown_seconds <= timeline.total_seconds + 1e-6
        assert abs(sum(measured) + timeline.unknown_seconds - timeline.total_seconds) < 1e-6


@given(observation_lists())
def test_every_instant_belongs_to_one_phase(seen: list[Observation]) -> None:
    pieces = sorted(piece for one in assemble(seen).phases for piece in one.pieces)
    assert all(earlier[1] <= later[0] for earlier, later in pairwise(pieces))


@given(observation_lists())
def test_a_phase_has_seconds_only_when_it_was_measured(seen: list[Observation]) -> None:
    timeline = assemble(seen)
    for one in timeline.phases:
        assert (one.seconds is not None) == (one.state is PhaseState.MEASURED)
        assert (one.observer is not None) == (one.state is PhaseState.MEASURED)
    states = [one.state for one in timeline.phases]
    if PhaseState.NOT_REACHED in states:
        assert set(states[states.index(PhaseState.NOT_REACHED) :]) == {PhaseState.NOT_REACHED}


@given(observation_lists())
def test_only_what_was_seen_to_be_ready_has_a_time_to_ready(seen: list[Observation]) -> None:
    timeline = assemble(seen)
    assert (timeline.ready_seconds is None) or timeline.state is LaunchState.READY
    assert (timeline.total_seconds is None) or timeline.state is not LaunchState.STARTING


@given(st.sets(st.integers(0, len(whole()) - 1)), st.randoms(use_true_random=False))
def test_what_is_missing_is_unknown_and_never_wrong(gone: set[int], chance: random.Random) -> None:
    """Whatever observers are silent: a phase of the whole launch has its true length or none."""
    true = {one.phase: one.seconds for one in assemble(whole()).phases}
    left = [one for number, one in enumerate(whole()) if number not in gone]
    chance.shuffle(left)
    for one in assemble(left).phases:
        assert one.seconds is None or one.seconds == true[one.phase], one


@given(st.floats(-86400, 86400, allow_nan=False))
def test_a_node_s_clock_changes_no_phase_that_one_clock_measured(skew: float) -> None:
    timeline = assemble(whole(skew))
    true = assemble(whole())
    for mine, theirs in zip(timeline.phases[1:6], true.phases[1:6], strict=True):
        assert mine.seconds is not None and theirs.seconds is not None
        assert abs(mine.seconds - theirs.seconds) < 1e-3, mine
    assert timeline.total_seconds == 100
