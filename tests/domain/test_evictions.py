"""What may go, in which order, and what never does."""

from __future__ import annotations

from datetime import timedelta

import pytest

from caches.domain.planning import forecast, plan
from caches.domain.plans import EvictReason, Protection
from caches.domain.pool_view import EntryView, HoldView
from controlplane.clusters.documents import Action, EntryState, NodeState
from tests.domain.world import GIB, NOW, count, entry, evicted, hold, lines, moved, node, pin, view, waiting

HOUR = timedelta(hours=1)


def _used(digest: str, hours_ago: float, size: int = 30) -> EntryView:
    return entry(digest, size=size, last_used_at=NOW - HOUR * hours_ago)


def test_it_evicts_the_least_recently_used_that_no_pin_wants() -> None:
    full = node("n", _used("old", 9), _used("older", 20), _used("young", 2))
    made = plan(view([full], [pin("m", 1)], {"m": 40}), NOW)
    assert evicted(made) == [("n", "older")]
    (move,) = made.moves
    assert move.after_evictions
    assert made.evictions[0].reason is EvictReason.LRU
    assert made.evictions[0].room_for == "m"
    assert lines(made, "n") == {
        "older": "Evict LeastRecentlyUsed",
        "m": "Ensure Pinned",
        "old": "Ensure Kept",
        "young": "Ensure Kept",
    }


def test_it_counts_a_never_used_entry_from_when_it_became_ready() -> None:
    full = node("n", _used("used", 5, 50), entry("fresh", size=50, ready_at=NOW - HOUR * 2))
    assert evicted(plan(view([full], [pin("m")], {"m": 40}), NOW)) == [("n", "used")]


def test_it_evicts_the_smallest_sufficient_set() -> None:
    full = node("n", _used("a", 9, 5), _used("b", 8, 60), _used("c", 7, 35))
    assert evicted(plan(view([full], [pin("m")], {"m": 60}), NOW)) == [("n", "b")]
    assert evicted(plan(view([full], [pin("m")], {"m": 65}), NOW)) == [("n", "a"), ("n", "b")]


def test_it_gives_back_the_most_recently_used_of_what_it_does_not_need() -> None:
    full = node("n", _used("a", 9, 30), _used("b", 8, 30), _used("c", 7, 40))
    assert evicted(plan(view([full], [pin("m")], {"m": 70}), NOW)) == [("n", "a"), ("n", "c")]


def test_it_gives_the_slot_of_an_evicted_repair_to_the_next_transfer() -> None:
    broken = node("n", entry("x", EntryState.REPAIRING, 90))
    made = plan(
        view([broken], [pin("m")], {"m": 50}, with_policy={"max_downloads_per_node": 1, "max_downloads": 1}), NOW
    )
    assert waiting(made) == {("n", "m"): "Pacing"}  # a transfer that waits for the slot evicts nothing
    relieved = view([broken], [pin("m")], {"m": 50}, with_policy={"max_downloads_per_node": 1, "high_watermark": 0.85})
    assert moved(plan(relieved, NOW)) == [("n", "m")]


def test_it_protects_a_surplus_copy_in_grace_no_better_than_a_claimed_one() -> None:
    nodes = [node("a", entry("low", size=60)), node("b", entry("low", size=60, last_used_at=NOW))]
    made = plan(view(nodes, [pin("low", 100, placement=count(1)), pin("m", 900)], {"m": 60}), NOW)
    assert evicted(made) == [("a", "low"), ("b", "low")]
    assert moved(made) == [("a", "m"), ("b", "m")]


def test_it_evicts_nothing_when_everything_together_would_not_suffice() -> None:
    full = node("n", _used("loose", 9, 30), entry("pinned", size=60))
    made = plan(view([full], [pin("pinned"), pin("m")], {"m": 50}), NOW)
    assert not made.evictions
    (refusal,) = made.refusals
    assert (refusal.need_bytes, refusal.free_bytes, refusal.reserved_bytes) == (50 * GIB, 10 * GIB, 0)
    assert "30 GiB" in refusal.detail
    assert "60 GiB pinned" in refusal.next_step


def test_it_displaces_a_lower_priority_pin_only_when_nothing_unpinned_suffices() -> None:
    full = node("n", entry("low", size=60), _used("loose", 9, 30))
    small = plan(view([full], [pin("low", 100), pin("m", 900)], {"m": 40}), NOW)
    assert evicted(small) == [("n", "loose")]
    large = plan(view([full], [pin("low", 100), pin("m", 900)], {"m": 60}), NOW)
    assert [(item.digest, item.reason) for item in large.evictions] == [("low", EvictReason.PRIORITY)]
    assert "lower priority 100" in large.evictions[0].detail
    assert [item.digest for item in large.refusals] == ["low"]


def test_it_never_displaces_a_pin_of_the_same_priority() -> None:
    full = node("n", entry("same", size=60))
    made = plan(view([full], [pin("same", 500), pin("m", 500, needed_at=NOW)], {"m": 60}), NOW)
    assert not made.evictions
    assert [item.digest for item in made.refusals] == ["m"]


def test_it_displaces_the_least_valuable_pins_first() -> None:
    full = node("n", entry("p1", size=30), entry("p2", size=30), entry("p3", size=30))
    pins = [pin("p1", 300), pin("p2", 100), pin("p3", 200), pin("m", 900)]
    assert evicted(plan(view([full], pins, {"m": 60}), NOW)) == [("n", "p2"), ("n", "p3")]


def test_it_moves_a_displaced_count_to_another_node() -> None:
    nodes = [node("n", entry("low", size=60), labels={"big": "1"}), node("spare")]
    pins = [pin("low", 100, placement=count(1)), pin("m", 900, node_selector={"big": "1"})]
    made = plan(view(nodes, pins, {"m": 60}), NOW)
    assert evicted(made) == [("n", "low")]
    assert moved(made) == [("n", "m"), ("spare", "low")]


@pytest.mark.parametrize("priority", [100, None])
def test_it_never_evicts_what_is_in_use_or_held(priority: int | None) -> None:
    pins = [pin("m", 900)] + ([pin("x", priority)] if priority is not None else [])
    used = node("n", entry("x", size=60), in_use=frozenset({"x"}))
    assert not plan(view([used], pins, {"m": 60}), NOW).evictions
    kept = view([node("n", entry("x", size=60))], pins, {"m": 60}, holds=(hold("x", NOW + HOUR),))
    assert not plan(kept, NOW).evictions
    assert evicted(plan(kept, NOW + HOUR)) == [("n", "x")]


def test_it_holds_an_artifact_only_on_the_nodes_of_the_hold() -> None:
    nodes = [node("a", entry("x", size=60)), node("b", entry("x", size=60))]
    made = plan(view(nodes, [pin("m")], {"m": 60}, holds=(hold("x", None, "uid-a"),)), NOW)
    assert evicted(made) == [("b", "x")]


def test_it_leaves_an_entry_alone_while_it_is_in_grace() -> None:
    world = view([node("n", _used("x", 0.1, 60))], [pin("m")], {"m": 60})
    assert [item.digest for item in plan(world, NOW).refusals] == ["m"]
    assert evicted(plan(world, NOW + timedelta(minutes=10))) == [("n", "x")]


def test_it_evicts_nothing_where_consumers_are_unknown_and_says_so() -> None:
    blind = node("a-3", entry("x", size=60, evict_requested=True), entry("u", EntryState.DOWNLOADING), in_use=None)
    made = plan(view([blind], [pin("m")], {"m": 60}), NOW)
    assert not made.evictions
    assert "node a-3: consumers unknown, nothing is evicted" in made.notes
    assert lines(made, "a-3") == {"x": "Ensure Kept", "u": "Ensure InFlight"}


@pytest.mark.parametrize("state", [NodeState.NOT_READY, NodeState.UNKNOWN, NodeState.CORDONED])
def test_it_evicts_nothing_by_itself_on_a_node_that_is_not_ready(state: NodeState) -> None:
    made = plan(view([node("n", entry("x", size=90), other=20, state=state)]), NOW)
    assert not made.evictions
    assert any(state.value in note for note in made.notes)


def test_it_lets_a_person_clear_a_cordoned_node() -> None:
    cordoned = node("n", entry("x", evict_requested=True), state=NodeState.CORDONED)
    assert evicted(plan(view([cordoned]), NOW)) == [("n", "x")]


def test_it_evicts_at_a_persons_request_although_nothing_needs_the_room_and_grace_runs() -> None:
    made = plan(view([node("n", entry("x", evict_requested=True, ready_at=NOW))]), NOW)
    assert [(item.digest, item.reason, item.bytes) for item in made.evictions] == [("x", EvictReason.MANUAL, 10 * GIB)]


def test_it_refuses_a_request_to_evict_what_a_pin_wants_and_says_so() -> None:
    made = plan(view([node("n", entry("x", evict_requested=True))], [pin("x")]), NOW)
    assert not made.evictions
    assert any("x v1 was asked to go and stays, protected by Pinned" in note for note in made.notes)


def test_it_relieves_pressure_down_to_the_low_watermark_and_no_further() -> None:
    entries = [_used("a", 9, 10), _used("b", 8, 10), _used("c", 7, 10), entry("p", size=40)]
    world = view([node("n", *entries, other=32)], [pin("p")])
    made = plan(world, NOW)  # 102 used of 100, low watermark 80
    assert [(item.digest, item.reason) for item in made.evictions] == [
        ("a", EvictReason.PRESSURE),
        ("b", EvictReason.PRESSURE),
        ("c", EvictReason.PRESSURE),
    ]
    assert not plan(view([node("n", *entries, other=30)], [pin("p")]), NOW).evictions


def test_it_never_evicts_a_pin_for_pressure_and_says_how_much_is_too_much() -> None:
    made = plan(view([node("n", entry("p", size=60), other=50)], [pin("p")]), NOW)
    assert not made.evictions
    assert any("10 GiB too much" in note for note in made.notes)


def test_it_evicts_an_unfinished_download_that_no_pin_wants_any_more() -> None:
    half = entry("x", EntryState.DOWNLOADING, on_disk=4)
    broken = entry("y", EntryState.FAILED, on_disk=4)
    gone = entry("z", EntryState.ABSENT)
    made = plan(view([node("n", half, broken, gone)]), NOW)
    assert [(item.digest, item.reason) for item in made.evictions] == [
        ("x", EvictReason.UNFINISHED),
        ("y", EvictReason.UNFINISHED),
    ]
    assert "z" not in lines(made, "n")


def test_it_lets_a_download_go_on_that_a_waiting_consumer_asked_for() -> None:
    slow_way = node("n", entry("x", EntryState.DOWNLOADING), in_use=frozenset({"x"}))
    assert lines(plan(view([slow_way]), NOW), "n") == {"x": "Ensure InFlight"}


def test_it_clears_a_partial_tree_that_nobody_wants_and_keeps_a_suspended_one() -> None:
    left = node("n", orphans=8, partials={"gone": 5 * GIB, "mine": 3 * GIB})
    made = plan(view([left], [pin("mine", suspended=True)], {"gone": 10}), NOW)
    assert [(item.digest, item.bytes) for item in made.evictions] == [("gone", 5 * GIB)]


def test_it_prefers_what_was_told_to_go_already() -> None:
    told = entry("b", size=50, last_used_at=NOW - HOUR, desired=Action.EVICT)
    full = node("n", _used("a", 9, 50), told)
    assert evicted(plan(view([full], [pin("m")], {"m": 40}), NOW)) == [("n", "b")]


def test_it_keeps_the_room_for_a_stronger_pin_until_weaker_transfers_have_ended() -> None:
    running = node("n", entry("low", EntryState.DOWNLOADING, 60))
    pins = [pin("low", 100), pin("next", 200), pin("m", 900)]
    made = plan(view([running], pins, {"m": 90, "next": 30}), NOW)
    assert waiting(made) == {("n", "m"): "Pacing", ("n", "next"): "Pacing"}
    assert lines(made, "n") == {"low": "Ensure InFlight"}
    ended = node("n", entry("low", size=60))
    assert evicted(plan(view([ended], pins, {"m": 90, "next": 30}), NOW)) == [("n", "low")]


def test_it_does_not_keep_an_entry_on_room_that_is_only_promised() -> None:
    """d3 displaces d4; d5 waits for its turn and will displace d6; until then d6 is there, so d4 cannot stay."""
    held = [entry("d6", size=90), entry("d4", size=40), entry("d2", size=20), entry("d0", size=5)]
    pins = [pin("d2", 900), pin("d6", 100), pin("d4", 100)] + [pin(name, 500) for name in ("d0", "d1", "d3", "d5")]
    world = view(
        [node("n", *held, capacity=180)],
        pins,
        {"d1": 10, "d3": 30, "d5": 60},
        with_policy={"max_downloads_per_node": 2},
    )
    made = plan(world, NOW)
    assert moved(made) == [("n", "d1"), ("n", "d3")]
    assert evicted(made) == [("n", "d4")]
    assert waiting(made) == {("n", "d5"): "Pacing", ("n", "d4"): "Pacing"}
    assert lines(made, "n")["d6"] == "Ensure Kept"


def test_it_forecasts_in_the_order_in_which_entries_would_go_and_the_protected_last() -> None:
    entries = [
        entry("asked", evict_requested=True),
        _used("old", 9, 10),
        _used("young", 2, 10),
        entry("grace", ready_at=NOW),
        entry("low"),
        entry("high"),
        entry("held"),
        entry("used"),
    ]
    world = view(
        [node("n", *entries, in_use=frozenset({"used"}))],
        [pin("high", 900), pin("low", 100)],
        holds=(HoldView("held", "rollback of demo", NOW + HOUR),),
    )
    rows = forecast(world, "uid-n", NOW)
    assert [(row.rank, row.digest, row.protected_by) for row in rows] == [
        (1, "asked", None),
        (2, "old", None),
        (3, "young", None),
        (4, "grace", Protection.GRACE),
        (5, "low", Protection.PINNED),
        (6, "high", Protection.PINNED),
        (7, "held", Protection.HELD),
        (8, "used", Protection.IN_USE),
    ]
    assert "rollback of demo" in rows[6].detail
    assert rows[0].reason is EvictReason.MANUAL
    assert forecast(world, "uid-other", NOW) == ()


def test_it_forecasts_what_the_next_plan_then_does() -> None:
    world = view([node("n", *[_used(f"d{i}", 20 - i, 20) for i in range(5)])], sizes={"m": 50})
    expected = [row.digest for row in forecast(world, "uid-n", NOW)][:3]
    with_pin = view(world.nodes, [pin("m")], {"m": 50})
    assert [digest for _, digest in evicted(plan(with_pin, NOW))] == expected


def test_it_forecasts_nothing_to_go_where_references_are_unknown() -> None:
    world = view([node("n", entry("x"), in_use=None)])
    assert [row.protected_by for row in forecast(world, "uid-n", NOW)] == [Protection.REFERENCES_UNKNOWN]
