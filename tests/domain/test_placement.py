"""Which nodes a pin takes."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

from caches.domain.demand import home_weight, required_count, value_key
from caches.domain.planning import plan
from caches.domain.pool_view import Placement, PlacementType
from controlplane.clusters.documents import EntryState, NodeState
from tests.domain.world import LONG_AGO, NOW, count, entry, lines, moved, node, percent, pin, view, waiting


def _zoned(number: int, zones: int) -> list:  # type: ignore[type-arg]
    return [node(f"n{i}", labels={"zone": str(i % zones)}) for i in range(number)]


def test_it_warms_every_node_that_the_selector_takes_and_no_other() -> None:
    nodes = [node("a", labels={"gpu": "h100"}), node("b", labels={"gpu": "l4"}), node("c")]
    assert moved(plan(view(nodes, [pin("m", node_selector={"gpu": "h100"})]), NOW)) == [("a", "m")]


def test_it_rounds_a_percentage_up() -> None:
    assert [required_count(percent(30), n) for n in (0, 1, 3, 10, 11)] == [0, 1, 1, 3, 4]
    assert required_count(Placement(PlacementType.COUNT, 5), 3) == 3
    assert len(plan(view([node(f"n{i}") for i in range(7)], [pin("m", placement=percent(50))]), NOW).moves) == 4


def test_it_spreads_a_count_evenly_over_the_label() -> None:
    made = plan(view(_zoned(12, 3), [pin("m", placement=count(6, "zone"))]), NOW)
    zones = Counter(int(move.node[1:]) % 3 for move in made.moves)
    assert zones == {0: 2, 1: 2, 2: 2}


def test_it_stays_with_nodes_that_hold_or_fetch_the_artifact() -> None:
    nodes = _zoned(9, 3)
    nodes[3] = node("n3", entry("m"), labels={"zone": "0"})
    nodes[6] = node("n6", entry("m", EntryState.DOWNLOADING, on_disk=3), labels={"zone": "0"})
    made = plan(view(nodes, [pin("m", placement=count(3, "zone"))]), NOW)
    assert lines(made, "n3") == {"m": "Ensure Kept"}
    assert [(move.node, move.reason.value) for move in made.moves if move.node in ("n3", "n6")] == [("n6", "InFlight")]
    assert len(made.moves) == 2


def test_it_moves_a_count_to_where_there_is_room() -> None:
    nodes = [node("full", capacity=5), node("roomy"), node("tiny", capacity=9)]
    made = plan(view(nodes, [pin("m", placement=count(1))]), NOW)
    assert moved(made) == [("roomy", "m")]
    assert not made.refusals


def test_it_evicts_for_a_count_only_where_no_node_has_free_room() -> None:
    nodes = [node("used", entry("old", size=95)), node("free")]
    for number in range(8):
        made = plan(view(nodes, [pin(f"m{number}", placement=count(1))]), NOW)
        assert moved(made) == [("free", f"m{number}")]
        assert not made.evictions


def test_it_replaces_a_holder_that_is_down_and_not_one_that_is_only_unheard() -> None:
    down = [node("a", entry("m"), state=NodeState.NOT_READY), node("b"), node("c")]
    assert len(plan(view(down, [pin("m", placement=count(1))]), NOW).moves) == 1
    unheard = [node("a", entry("m"), state=NodeState.UNKNOWN), node("b"), node("c")]
    assert not plan(view(unheard, [pin("m", placement=count(1))]), NOW).moves


def test_it_says_when_fewer_nodes_match_than_a_count_wants() -> None:
    made = plan(view([node("a")], [pin("m", placement=count(3))]), NOW)
    assert moved(made) == [("a", "m")]
    assert any("3 nodes" in note and "only 1" in note for note in made.notes)


def test_it_refuses_as_many_copies_as_a_count_lacks() -> None:
    made = plan(view([node("a"), node("b", capacity=5), node("c", capacity=5)], [pin("m", placement=count(2))]), NOW)
    assert len(made.moves) == 1
    assert len(made.refusals) == 1


def test_it_moves_only_a_new_nodes_share_when_a_node_joins() -> None:
    """The homes of 200 artifacts on ten nodes: an eleventh attracts its share and moves nothing between the others."""

    def home(digest: str, number: int) -> int:
        return min(range(number), key=lambda i: home_weight(digest, f"uid-{i}"))

    before = {f"d{i}": home(f"d{i}", 10) for i in range(200)}
    after = {digest: home(digest, 11) for digest in before}
    changed = [digest for digest in before if before[digest] != after[digest]]
    assert 5 < len(changed) < 40
    assert {after[digest] for digest in changed} == {10}


def test_it_orders_pins_by_priority_then_launch_then_age_then_digest() -> None:
    older, younger = LONG_AGO, LONG_AGO + timedelta(days=1)
    soon, later = NOW + timedelta(hours=1), NOW + timedelta(hours=9)
    pins = [
        pin("f", 100, created_at=older, needed_at=soon),
        pin("e", 500, created_at=younger),
        pin("d", 500, created_at=older),
        pin("c", 500, created_at=younger, needed_at=later),
        pin("b", 500, created_at=younger, needed_at=soon),
        pin("a", 900, created_at=younger),
    ]
    assert [item.digest for item in sorted(pins, key=value_key)] == ["a", "b", "c", "d", "e", "f"]
    assert [digest for _, digest in moved(plan(view([node("n")], pins), NOW))] == ["a", "b", "c", "d", "e", "f"]


def test_it_merges_pins_of_one_digest_by_the_strongest() -> None:
    weak, strong = pin("m", 100, id="weak"), pin("m", 900, id="strong", placement=count(1))
    made = plan(view([node("a"), node("b"), node("c")], [weak, strong]), NOW)
    assert len(made.moves) == 3
    assert [move.pin_id for move in made.moves] == ["strong", "weak", "weak"]


def test_it_lets_an_active_pin_warm_what_another_pin_suspended() -> None:
    pins = [pin("m", 900, id="off", suspended=True), pin("m", 100, id="on", node_selector={"k": "v"})]
    made = plan(view([node("a", labels={"k": "v"}), node("b")], pins), NOW)
    assert moved(made) == [("a", "m")]
    assert waiting(made) == {("b", "m"): "Suspended"}


def test_it_gives_a_lost_node_no_line_and_no_place_in_a_percentage() -> None:
    nodes = [node("a"), node("gone", entry("m"), state=NodeState.LOST)]
    made = plan(view(nodes, [pin("m", placement=percent(100))]), NOW)
    assert moved(made) == [("a", "m")]
    assert "uid-gone" not in made.desired
    assert not made.waits
