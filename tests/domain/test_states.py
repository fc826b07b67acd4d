"""What states mean and which may be observed after which."""

from __future__ import annotations

import pytest

from caches.domain.states import (
    STEPS,
    is_in_flight,
    is_moving_bytes,
    is_permanent,
    is_present,
    may_follow,
)
from controlplane.clusters.documents import EntryState, Reason


def test_every_state_has_its_steps_and_every_one_but_lost_can_be_lost() -> None:
    assert set(STEPS) == set(EntryState)
    assert all(EntryState.LOST in STEPS[state] for state in EntryState if state is not EntryState.LOST)
    assert STEPS[EntryState.LOST] == frozenset()


def test_it_publishes_only_after_verifying() -> None:
    assert {state for state in EntryState if EntryState.READY in STEPS[state]} == {
        EntryState.VERIFYING,
        EntryState.REPAIRING,
        EntryState.EVICTING,
    }


def test_an_observation_may_skip_steps_that_nobody_saw() -> None:
    assert may_follow(EntryState.ABSENT, EntryState.READY)
    assert may_follow(EntryState.READY, EntryState.DOWNLOADING)
    assert may_follow(EntryState.FAILED, EntryState.FAILED)


@pytest.mark.parametrize("state", [state for state in EntryState if state is not EntryState.LOST])
def test_nothing_is_observed_of_a_lost_incarnation(state: EntryState) -> None:
    assert not may_follow(EntryState.LOST, state)
    assert may_follow(state, EntryState.LOST)


def test_each_state_is_of_one_kind() -> None:
    present = {state for state in EntryState if is_present(state)}
    in_flight = {state for state in EntryState if is_in_flight(state)}
    assert present == {EntryState.READY, EntryState.REPAIRING}
    assert in_flight == {EntryState.QUEUED, EntryState.DOWNLOADING, EntryState.VERIFYING}
    assert {state for state in EntryState if is_moving_bytes(state)} == in_flight | {EntryState.REPAIRING}


def test_it_knows_which_failures_repeat() -> None:
    assert {reason for reason in Reason if is_permanent(reason)} == {
        Reason.INVALID_REQUEST,
        Reason.ACCESS_DENIED,
        Reason.SOURCE_CHANGED,
        Reason.INTEGRITY_MISMATCH,
        Reason.CANCELED,
    }
    assert not is_permanent("SomethingNew")
    assert is_permanent("AccessDenied")
