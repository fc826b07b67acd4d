"""The steps of a rollout, each from facts alone."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caches.domain.gating import Gate, GateState
from caches.domain.rollouts import (
    BEFORE_SWITCH,
    FINAL,
    Kept,
    RolloutFacts,
    RolloutState,
    VersionFacts,
    WorkloadFacts,
    advance,
    may_follow,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
S = RolloutState
OPEN = Gate(GateState.OPEN, "2 nodes ready, 2 required", 2, 2)
CLOSED = Gate(GateState.CLOSED, "1 of 2 ready", 1, 2)
FAILED = Gate(GateState.FAILED, "2 copies are required and only 1 of 2 can become ready: AccessDenied on n-1", 1, 2, 1)
SERVES = WorkloadFacts(current=True, wanted=2, updated=2, available=2, total=2)


def facts(state: RolloutState, **changes: Any) -> RolloutFacts:
    return replace(RolloutFacts(state=state, version=VersionFacts(True), now=NOW), **changes)


@pytest.mark.parametrize(
    ("given_facts", "state", "reason"),
    [
        (facts(S.PREPARING, version=VersionFacts(False)), S.PREPARING, "Registering"),
        (facts(S.PREPARING, version=VersionFacts(False, "No such bucket.")), S.PREPARING, "VersionRefused"),
        (facts(S.WARMING, version=VersionFacts(False, "It was deleted.")), S.WARMING, "VersionRefused"),
        (facts(S.PREPARING, no_room="300 GiB needed, 250 GiB there"), S.WAITING_FOR_ROOM, "InsufficientCapacity"),
        (facts(S.PREPARING, gate=CLOSED), S.WARMING, "Warming"),
        (facts(S.PREPARING), S.SWITCHING, "NothingToWaitFor"),
        (facts(S.PREPARING, gate=OPEN), S.SWITCHING, "GateOpen"),
        (facts(S.WAITING_FOR_ROOM, no_room="x"), S.WAITING_FOR_ROOM, "InsufficientCapacity"),
        (facts(S.WAITING_FOR_ROOM, gate=CLOSED), S.WARMING, "Warming"),
        (facts(S.WAITING_FOR_ROOM, no_room="x", released=True), S.SWITCHING, "Released"),
        (facts(S.WARMING, gate=FAILED), S.WARMING, "GateFailed"),
        (facts(S.WARMING, gate=FAILED, released=True), S.SWITCHING, "Released"),
        (facts(S.WARMING, gate=OPEN), S.SWITCHING, "GateOpen"),
        (facts(S.WARMING, gate=CLOSED, superseded=True), S.SUPERSEDED, "NewerSpec"),
        (facts(S.SWITCHING), S.SWITCHING, "Applying"),
        (facts(S.SWITCHING, workload=replace(SERVES, current=False)), S.SWITCHING, "Applying"),
        (facts(S.SWITCHING, workload=replace(SERVES, updated=1)), S.SWITCHING, "RollingOut"),
        (facts(S.SWITCHING, workload=replace(SERVES, total=3)), S.SWITCHING, "RollingOut"),
        (facts(S.SWITCHING, workload=replace(SERVES, available=1)), S.SWITCHING, "RollingOut"),
        (facts(S.SWITCHING, workload=replace(SERVES, failed="too slow")), S.FAILED, "DeploymentFailed"),
        (facts(S.SWITCHING, workload=SERVES), S.DONE, "Complete"),
        (facts(S.SWITCHING, workload=WorkloadFacts(current=True)), S.DONE, "Complete"),
        (facts(S.SWITCHING, workload=SERVES, hold_seconds=60), S.DONE, "Complete"),
        (facts(S.SWITCHING, workload=SERVES, has_predecessor=True, hold_seconds=60), S.HOLDING, "Held"),
        (facts(S.SWITCHING, workload=SERVES, has_predecessor=True), S.DONE, "Complete"),
        (facts(S.SWITCHING, workload=SERVES, superseded=True), S.SUPERSEDED, "NewerSpec"),
        (facts(S.HOLDING, held_until=NOW + timedelta(seconds=1)), S.HOLDING, "Held"),
        (facts(S.HOLDING, held_until=NOW), S.DONE, "Complete"),
        (facts(S.HOLDING, held_until=NOW + timedelta(seconds=1), released=True), S.DONE, "Complete"),
        # The next rollout begins while this one holds: what it holds stays held until its time.
        (facts(S.HOLDING, held_until=NOW + timedelta(seconds=1), superseded=True), S.HOLDING, "Held"),
        (facts(S.DONE, superseded=True), S.DONE, "Done"),
        (facts(S.DONE, workload=SERVES), S.DONE, "Complete"),
        (facts(S.DONE, workload=replace(SERVES, current=False)), S.DONE, "Done"),
        (facts(S.FAILED, workload=SERVES), S.FAILED, "Failed"),
    ],
)
def test_it_takes_one_step(given_facts: RolloutFacts, state: RolloutState, reason: str) -> None:
    step = advance(given_facts)
    assert (step.state, step.reason) == (state, reason)


def test_a_hold_ends_at_the_time_it_says() -> None:
    step = advance(facts(S.SWITCHING, workload=SERVES, has_predecessor=True, hold_seconds=90))
    assert step.held_until == NOW + timedelta(seconds=90)
    assert "00:01:30 UTC" in step.message


@pytest.mark.parametrize(
    ("kept", "says"),
    [
        (Kept(True, True), "The weights and the image of the version before are kept until 2026-01-01 00:01:30 UTC."),
        (Kept(weights=True), "The weights of the version before are kept until 2026-01-01 00:01:30 UTC."),
        (Kept(image=True), "The image of the version before is kept until 2026-01-01 00:01:30 UTC."),
        (
            Kept(),
            "Nothing of the version before is kept: none of it is pinned. The hold ends at 2026-01-01 00:01:30 UTC.",
        ),
    ],
)
def test_a_hold_says_what_it_keeps(kept: Kept, says: str) -> None:
    begun = advance(facts(S.SWITCHING, workload=SERVES, has_predecessor=True, hold_seconds=90, kept=kept))
    going_on = advance(facts(S.HOLDING, held_until=NOW + timedelta(seconds=90), kept=kept))
    assert begun.message == going_on.message == says


@pytest.mark.parametrize(
    ("work", "says"),
    [
        (
            WorkloadFacts(True, wanted=3, updated=1, available=3, total=4),
            "1 of 3 new replicas made, 3 of the former left; 3 of all 4 serve.",
        ),
        (WorkloadFacts(True, wanted=1, updated=1, total=1), "1 of 1 new replicas made; 0 of all 1 serve."),
    ],
)
def test_a_rollout_tells_the_new_replicas_from_the_former(work: WorkloadFacts, says: str) -> None:
    assert advance(facts(S.SWITCHING, workload=work)).message == says


def test_pods_that_wait_are_the_reason_and_are_named_also_when_it_failed() -> None:
    waits = "Pod chat-1 waits: server: ErrImagePull: no such image."
    work = replace(SERVES, available=1, wait_reason="ImagePullFailed", waits=waits)
    step = advance(facts(S.SWITCHING, workload=work))
    assert (step.state, step.reason) == (S.SWITCHING, "ImagePullFailed") and step.message.endswith(f"serve. {waits}")
    step = advance(facts(S.SWITCHING, workload=replace(work, failed="ReplicaSet chat made no progress")))
    assert (step.state, step.reason) == (S.FAILED, "DeploymentFailed")
    assert step.message == f"ReplicaSet chat made no progress. {waits}"
    done = advance(facts(S.SWITCHING, workload=replace(work, available=2)))
    assert (done.reason, done.message) == ("Complete", "2 of 2 replicas serve."), "a pod too many holds nothing up"


def test_what_is_done_says_its_replicas_again_when_they_change() -> None:
    scaled = replace(SERVES, wanted=3, available=1)
    assert advance(facts(S.DONE, workload=scaled)).message == "2 of 3 new replicas made; 1 serve now."


def test_the_message_names_the_node_that_cannot_get_ready() -> None:
    assert "AccessDenied on n-1." in advance(facts(S.WARMING, gate=FAILED)).message


GATES = st.sampled_from([None, OPEN, CLOSED, FAILED])
FACTS = st.builds(
    RolloutFacts,
    state=st.sampled_from(RolloutState),
    version=st.builds(VersionFacts, known=st.booleans(), refused=st.sampled_from(["", "no"])),
    now=st.just(NOW),
    no_room=st.sampled_from(["", "no room"]),
    gate=GATES,
    released=st.booleans(),
    workload=st.none() | st.builds(WorkloadFacts, current=st.booleans(), wanted=st.integers(0, 2),
                                   updated=st.integers(0, 2), available=st.integers(0, 2), total=st.integers(0, 3)),
    has_predecessor=st.booleans(),
    hold_seconds=st.integers(0, 5),
    held_until=st.none() | st.just(NOW + timedelta(seconds=5)),
    superseded=st.booleans(),
)  # fmt: skip


@given(FACTS)
def test_it_only_takes_steps_that_are_allowed(given_facts: RolloutFacts) -> None:
    step = advance(given_facts)
    assert step.state is given_facts.state or may_follow(given_facts.state, step.state)


@given(FACTS)
def test_nothing_is_switched_before_the_gate_opened(given_facts: RolloutFacts) -> None:
    step = advance(given_facts)
    if given_facts.state in BEFORE_SWITCH and step.state is S.SWITCHING:
        assert given_facts.version.known and not given_facts.version.refused
        assert given_facts.released or given_facts.gate is None or given_facts.gate.state is GateState.OPEN
        assert given_facts.released or not given_facts.no_room


def test_nothing_follows_an_end() -> None:
    assert not [(old, new) for old in FINAL for new in RolloutState if may_follow(old, new)]
    assert may_follow(S.HOLDING, S.ROLLED_BACK) and not may_follow(S.SWITCHING, S.ROLLED_BACK)
