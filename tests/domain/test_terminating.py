"""A node whose end was announced: nothing more is sent there, and its substitute comes first."""

from __future__ import annotations

import pytest

from caches.domain.planning import explain, plan
from caches.domain.plans import Plan, WaitReason
from controlplane.clusters.documents import Action, EntryState, NodeState
from tests.domain.world import NOW, count, entry, evicted, moved, node, pin, view

ENDS = NodeState.TERMINATING


def lines(made: Plan, uid: str) -> dict[str, Action]:
    return {item.digest: item.action for item in made.desired[uid]}


def test_it_starts_nothing_on_a_node_that_ends() -> None:
    made = plan(view([node("a", state=ENDS), node("b")], [pin("m")]), NOW)
    assert moved(made) == [("b", "m")]
    assert [(wait.node, wait.reason) for wait in made.waits] == [("a", WaitReason.NODE_NOT_READY)]
    assert "Terminating" in made.waits[0].detail


@pytest.mark.parametrize("state", [EntryState.QUEUED, EntryState.DOWNLOADING])
def test_it_stops_what_runs_there_and_says_why(state: EntryState) -> None:
    running = entry("m", state, on_disk=4)
    made = plan(view([node("a", running, state=ENDS)], [pin("m")]), NOW)
    assert lines(made, "uid-a") == {}
    assert moved(made) == [] and evicted(made) == []
    assert "announced" in made.waits[0].detail


def test_it_warms_the_substitute_of_a_download_that_was_stopped() -> None:
    running = entry("m", EntryState.DOWNLOADING, on_disk=9)
    made = plan(view([node("a", running, state=ENDS), node("b")], [pin("m", placement=count(1))]), NOW)
    assert moved(made) == [("b", "m")]
    assert lines(made, "uid-a") == {}


def test_it_warms_the_substitute_of_a_ready_copy() -> None:
    nodes = [node("a", entry("m"), state=ENDS), node("b"), node("c", entry("m"))]
    made = plan(view(nodes, [pin("m", placement=count(2))]), NOW)
    assert moved(made) == [("b", "m")]


def test_a_ready_copy_on_it_stays_as_long_as_the_node_does() -> None:
    made = plan(view([node("a", entry("m"), state=ENDS), node("b", entry("m"))], [pin("m")]), NOW)
    assert lines(made, "uid-a") == {"m": Action.ENSURE}
    assert evicted(made) == []


def test_it_evicts_nothing_there_for_anybodys_room() -> None:
    full = node("a", entry("old", size=90), state=ENDS)
    made = plan(view([full], [pin("m")], {"m": 50}), NOW)
    assert evicted(made) == [] and made.refusals == ()


def test_what_it_stopped_goes_on_when_the_notice_is_taken_back() -> None:
    running = entry("m", EntryState.DOWNLOADING, on_disk=4)
    made = plan(view([node("a", running)], [pin("m")]), NOW)
    assert lines(made, "uid-a") == {"m": Action.ENSURE}


def test_its_stopped_transfers_take_nobodys_turn() -> None:
    running = entry("m", EntryState.DOWNLOADING, on_disk=4)
    nodes = [node("a", running, state=ENDS), node("b")]
    made = plan(view(nodes, [pin("m")], with_policy={"max_downloads": 1}), NOW)
    assert moved(made) == [("b", "m")]


def test_the_rule_chain_names_the_state() -> None:
    checks = explain(view([node("a", state=ENDS)], [pin("m")]), "m", "uid-a", NOW)
    failed = next(check for check in checks if check.passed is False)
    assert "Terminating" in failed.detail
