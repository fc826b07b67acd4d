"""Capacity as a sum, refusals with numbers, and everything a transfer may have to wait for."""

from __future__ import annotations

from datetime import time, timedelta

import pytest

from caches.domain.planning import plan
from caches.domain.pool_view import DailyWindow
from controlplane.clusters.documents import EntryState, NodeState
from tests.domain.world import GIB, LONG_AGO, NOW, entry, evicted, lines, moved, node, pin, view, waiting

LATER = NOW + timedelta(minutes=5)


def test_it_refuses_300_units_on_a_disk_of_250_with_the_numbers() -> None:
    made = plan(view([node("n", capacity=250)], [pin("m")], {"m": 300}), NOW)
    assert not made.moves
    (refusal,) = made.refusals
    assert refusal.reason == "InsufficientCapacity"
    assert (refusal.need_bytes, refusal.free_bytes, refusal.reserved_bytes) == (300 * GIB, 250 * GIB, 0)
    assert "300 GiB" in refusal.detail and "250 GiB" in refusal.detail
    assert "at least 300 GiB" in refusal.next_step
    assert lines(made, "n") == {}


def test_it_does_not_admit_two_downloads_that_fit_only_alone() -> None:
    made = plan(view([node("n")], [pin("a", 900), pin("b")], {"a": 60, "b": 60}), NOW)
    assert moved(made) == [("n", "a")]
    (refusal,) = made.refusals
    assert (refusal.digest, refusal.need_bytes) == ("b", 60 * GIB)
    assert (refusal.free_bytes, refusal.reserved_bytes) == (100 * GIB, 60 * GIB)


def test_it_counts_the_unwritten_remainder_of_what_is_in_flight() -> None:
    running = entry("a", EntryState.DOWNLOADING, 60, on_disk=50)
    made = plan(view([node("n", running)], [pin("a"), pin("b")], {"b": 41}), NOW)
    (refusal,) = made.refusals
    assert (refusal.need_bytes, refusal.free_bytes, refusal.reserved_bytes) == (41 * GIB, 50 * GIB, 10 * GIB)
    assert not plan(view([node("n", running)], [pin("a"), pin("b")], {"b": 40}), NOW).refusals


def test_it_stays_under_the_high_watermark_with_other_bytes_and_orphans() -> None:
    room = {"high_watermark": 0.8}
    fits = view([node("n", other=20, orphans=10)], [pin("m")], {"m": 50}, with_policy=room)
    assert moved(plan(fits, NOW)) == [("n", "m")]
    over = view([node("n", other=20, orphans=10)], [pin("m")], {"m": 51}, with_policy=room)
    assert "30 GiB lie outside" in plan(over, NOW).refusals[0].next_step


def test_it_asks_for_a_disk_on_which_the_model_would_really_fit() -> None:
    small = view([node("n", other=7)], [pin("m")], {"m": 300}, with_policy={"high_watermark": 0.85})
    step = plan(small, NOW).refusals[0].next_step
    assert "361.2 GiB" in step
    assert not plan(view([node("n", capacity=362, other=7)], [pin("m")], {"m": 300}), NOW).refusals


def test_it_resumes_a_partial_tree_without_counting_it_twice() -> None:
    half = node("n", orphans=50, partials={"m": 50 * GIB})
    made = plan(view([half], [pin("m")], {"m": 100}), NOW)
    assert [(move.digest, move.bytes) for move in made.moves] == [("m", 50 * GIB)]


def test_it_lets_a_smaller_demand_use_room_that_refused_ones_leave() -> None:
    made = plan(view([node("n")], [pin("big", 900), pin("small")], {"big": 120}), NOW)
    assert moved(made) == [("n", "small")]


def test_it_keeps_what_runs_and_lists_every_known_entry() -> None:
    nodes = [node("n", entry("pinned"), entry("loose"), entry("coming", EntryState.QUEUED))]
    made = plan(view(nodes, [pin("pinned"), pin("coming")]), NOW)
    assert lines(made, "n") == {"pinned": "Ensure Kept", "loose": "Ensure Kept", "coming": "Ensure InFlight"}
    assert [move.reason.value for move in made.moves] == ["InFlight"]


def test_it_numbers_the_lines_most_valuable_first_and_evictions_before_all() -> None:
    nodes = [node("n", entry("x", evict_requested=True), entry("loose"), entry("low"), entry("high"))]
    made = plan(view(nodes, [pin("low", 1), pin("high", 9), pin("new", 5)]), NOW)
    ordered = [(item.order, item.digest) for item in made.desired["uid-n"]]
    assert ordered == [(0, "x"), (1, "high"), (2, "new"), (3, "low"), (4, "loose")]


@pytest.mark.parametrize(
    ("state", "kept"),
    [(NodeState.NOT_READY, True), (NodeState.CORDONED, True), (NodeState.UNKNOWN, True)],
)
def test_it_starts_nothing_on_a_node_that_is_not_ready_and_keeps_what_is_there(state: NodeState, kept: bool) -> None:
    made = plan(view([node("n", entry("old"), state=state)], [pin("old"), pin("new")]), NOW)
    assert waiting(made) == {("n", "new"): "NodeNotReady"}
    assert lines(made, "n") == {"old": "Ensure Kept"}
    assert state.value in made.waits[0].detail


def test_it_waits_for_a_node_to_settle_and_for_its_capacity() -> None:
    young = node("n", joined_at=NOW - timedelta(seconds=30))
    made = plan(view([young], [pin("m")], with_policy={"settle": timedelta(minutes=2)}), NOW)
    assert waiting(made) == {("n", "m"): "Settling"}
    assert made.waits[0].until == NOW + timedelta(seconds=90)
    silent = plan(view([node("n", capacity=None)], [pin("m")]), NOW)
    assert waiting(silent) == {("n", "m"): "NodeNotReady"}
    assert "capacity" in silent.waits[0].detail


def test_it_starts_nothing_in_a_paused_pool_and_lets_running_transfers_go_on() -> None:
    nodes = [node("n", entry("run", EntryState.DOWNLOADING))]
    made = plan(view(nodes, [pin("run"), pin("new")], with_policy={"paused": True}), NOW)
    assert waiting(made) == {("n", "new"): "Paused"}
    assert lines(made, "n") == {"run": "Ensure InFlight"}


def test_it_starts_only_inside_the_window_and_says_when_it_opens() -> None:
    night = DailyWindow(time(22), time(6), "UTC")
    made = plan(view([node("n")], [pin("m", window=night)]), NOW)
    assert waiting(made) == {("n", "m"): "Window"}
    assert made.waits[0].until == NOW.replace(hour=22)
    assert moved(plan(view([node("n")], [pin("m", window=night)]), NOW.replace(hour=23))) == [("n", "m")]
    running = node("n", entry("m", EntryState.DOWNLOADING))
    assert lines(plan(view([running], [pin("m", window=night)]), NOW), "n") == {"m": "Ensure InFlight"}


def test_it_withdraws_what_a_suspended_pin_was_fetching_and_protects_what_it_has() -> None:
    nodes = [
        node("ready", entry("m")),
        node("half", entry("m", EntryState.DOWNLOADING, on_disk=5)),
        node("none"),
        node("tight", entry("m"), capacity=15),
    ]
    made = plan(view(nodes, [pin("m", suspended=True), pin("new", 900, node_selector={"no": "node"})]), NOW)
    assert waiting(made) == {("half", "m"): "Suspended", ("none", "m"): "Suspended"}
    assert lines(made, "half") == {}
    assert lines(made, "ready") == {"m": "Ensure Kept"}
    assert not made.evictions and not made.moves


def test_it_frees_the_remainder_of_a_suspended_download_for_others() -> None:
    half = entry("m", EntryState.DOWNLOADING, 80, on_disk=10)
    made = plan(view([node("n", half)], [pin("m", 900, suspended=True), pin("new")], {"new": 90}), NOW)
    assert moved(made) == [("n", "new")]


def test_it_keeps_a_failed_entry_desired_until_its_agent_tries_again() -> None:
    failed = entry("m", EntryState.FAILED, on_disk=4, reason="SourceUnavailable", attempts=3, retry_at=LATER)
    made = plan(view([node("n", failed)], [pin("m")]), NOW)
    assert waiting(made) == {("n", "m"): "RetryLater"}
    assert made.waits[0].until == LATER
    assert "SourceUnavailable after 3 attempts" in made.waits[0].detail
    assert lines(made, "n") == {"m": "Ensure Retry"}
    due = plan(view([node("n", failed)], [pin("m")]), LATER)
    assert [(move.reason.value, move.bytes) for move in due.moves] == [("Retry", 6 * GIB)]


def test_it_starts_no_more_than_the_node_and_the_pool_allow() -> None:
    pins = [pin(f"m{i}", 900 - i) for i in range(4)]
    limits = {"max_downloads_per_node": 2, "max_downloads": 3}
    made = plan(view([node("a"), node("b")], pins, with_policy=limits), NOW)
    assert moved(made) == [("a", "m0"), ("b", "m0"), ("a", "m1")]
    assert waiting(made)[("b", "m1")] == "Pacing"
    assert set(lines(made, "b")) == {"m0"}
    assert made.total_bytes == 8 * 10 * GIB


def test_it_evicts_nothing_for_a_move_that_still_waits_for_its_turn() -> None:
    busy = node("n", entry("run", EntryState.DOWNLOADING), entry("old", size=90))
    limits = {"max_downloads_per_node": 1}
    made = plan(view([busy], [pin("run"), pin("new"), pin("next", 100)], with_policy=limits), NOW)
    assert not evicted(made)
    assert waiting(made)[("n", "new")] == "Pacing"
    assert lines(made, "n")["old"] == "Ensure Kept"


def test_it_takes_a_failed_entrys_slot_only_when_it_is_due() -> None:
    failed = entry("m", EntryState.FAILED, retry_at=LATER)
    world = view([node("n", failed)], [pin("m", 900), pin("new")], with_policy={"max_downloads_per_node": 1})
    assert moved(plan(world, NOW)) == [("n", "new")]
    assert waiting(plan(world, LATER)) == {("n", "new"): "Pacing"}


def test_it_warms_a_new_node_most_valuable_first() -> None:
    joined = node("new", joined_at=NOW - timedelta(minutes=1))
    pins = [pin("a", 1), pin("b", 9), pin("c", 5)]
    made = plan(view([joined], pins, with_policy={"max_downloads_per_node": 2}), NOW)
    assert [(move.digest, move.reason.value) for move in made.moves] == [("b", "NewNode"), ("c", "NewNode")]
    assert waiting(made) == {("new", "a"): "Pacing"}
    later = plan(view([joined], [pin("d", created_at=NOW)]), NOW)
    assert [move.reason.value for move in later.moves] == ["Pinned"]


def test_it_fetches_again_what_is_pinned_while_it_is_being_removed() -> None:
    leaving = entry("m", EntryState.EVICTING)
    assert lines(plan(view([node("n", leaving)], [pin("m")]), NOW), "n") == {"m": "Ensure Pinned"}
    assert lines(plan(view([node("n", leaving)]), NOW), "n") == {"m": "Evict LeastRecentlyUsed"}


def test_it_repairs_and_says_how_much_is_left() -> None:
    broken = entry("m", EntryState.REPAIRING, on_disk=9, ready_at=LONG_AGO)
    made = plan(view([node("n", broken)], [pin("m")]), NOW)
    assert [(move.reason.value, move.bytes) for move in made.moves] == [("Repair", GIB)]
    assert lines(made, "n") == {"m": "Ensure Repair"}


def test_it_plans_nothing_for_a_pin_whose_artifact_is_unknown_and_says_so() -> None:
    made = plan(view([node("n")], [pin("m")], artifacts={}), NOW)
    assert not made.moves
    assert any("pin-m" in note for note in made.notes)
