"""One byte, one copy, one microsecond to either side of every border."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caches.domain.demand import required_count
from caches.domain.eviction import Candidate, smallest_set
from caches.domain.planning import plan
from caches.domain.plans import Plan
from caches.domain.pool_view import EntryView, NodeView, Placement, PlacementType, PoolView
from caches.domain.text import plural, size_text
from controlplane.clusters.documents import EntryState
from tests.domain.world import GIB, NOW, count, entry, evicted, hold, moved, node, pin, view, waiting


def sized(world: PoolView, digest: str, size: int) -> PoolView:
    """The pool with one artifact of exactly so many bytes."""
    return replace(world, artifacts={**world.artifacts, digest: replace(world.artifacts[digest], size_bytes=size)})


def with_node(world: PoolView, **fields: object) -> PoolView:
    return replace(world, nodes=tuple(replace(each, **fields) for each in world.nodes))  # type: ignore[arg-type]


def single(world: PoolView) -> Plan:
    return plan(world, NOW)


@pytest.mark.parametrize("over", [0, 1])
@pytest.mark.parametrize(
    ("world", "size"),
    [
        (view([node("n")], [pin("m")]), 100 * GIB),
        (view([node("n", other=30, orphans=5)], [pin("m")]), 65 * GIB),
        (view([node("n", entry("kept"))], [pin("m"), pin("kept")]), 90 * GIB),
        (view([node("n", entry("run", EntryState.DOWNLOADING, 40, on_disk=9))], [pin("m"), pin("run", 900)]), 60 * GIB),
        (view([node("n", entry("run", EntryState.QUEUED, 40))], [pin("m"), pin("run", 900)]), 60 * GIB),
        (view([node("n", entry("run", EntryState.VERIFYING, 40))], [pin("m"), pin("run", 900)]), 60 * GIB),
        (view([node("n", entry("used"), in_use=frozenset({"used"}))], [pin("m")]), 90 * GIB),
        (view([node("n", entry("fail", EntryState.FAILED, 40, on_disk=15))], [pin("m"), pin("fail", 900)]), 60 * GIB),
        (view([node("n", entry("loose"))], [pin("m")]), 100 * GIB),
        (view([node("n", entry("low"), entry("high"))], [pin("m"), pin("low", 499), pin("high", 500)]), 90 * GIB),
        (view([node("n", orphans=20, partials={"m": 20 * GIB})], [pin("m")]), 100 * GIB),
        (view([node("n", entry("m", EntryState.FAILED, 50, on_disk=20))], [pin("m")]), 100 * GIB),
        (view([node("n")], [pin("m")], with_policy={"high_watermark": 0.5}), 50 * GIB),
    ],
    ids=[
        "empty disk", "others' bytes", "kept", "running", "queued", "verifying", "in use", "failed", "unpinned goes",
        "weaker goes", "own partial tree", "own failed bytes", "watermark",
    ],
)  # fmt: skip
def test_it_fits_to_the_byte(world: PoolView, size: int, over: int) -> None:
    made = single(sized(world, "m", size + over))
    refused = [item for item in made.refusals if item.digest == "m"]
    assert bool(refused) is bool(over)
    assert ("n", "m") in moved(made) or over
    for item in refused:
        could_go = sum(e.bytes_on_disk for e in world.nodes[0].entries if e.digest in ("loose", "low"))
        assert item.need_bytes == item.free_bytes - item.reserved_bytes + could_go + 1


@pytest.mark.parametrize(
    ("spare", "goes"), [(0, []), (1, ["old"]), (10 * GIB, ["old"]), (10 * GIB + 1, ["old", "new"])]
)
def test_it_evicts_for_the_last_byte_and_not_before(spare: int, goes: list[str]) -> None:
    nodes = [
        node(
            "n",
            entry("old", last_used_at=NOW - timedelta(days=2)),
            entry("new", last_used_at=NOW - timedelta(days=1)),
        )
    ]
    world = sized(view(nodes, [pin("m")]), "m", 80 * GIB + spare)
    assert sorted(digest for _, digest in evicted(single(world))) == sorted(goes)


@pytest.mark.parametrize(
    ("used", "goes"),
    [(85 * GIB, False), (85 * GIB + 1, True)],
)
def test_pressure_begins_above_the_high_watermark(used: int, goes: bool) -> None:
    world = view([node("n", entry("loose"))], with_policy={"high_watermark": 0.85, "low_watermark": 0.80})
    world = with_node(world, other_bytes=used - 10 * GIB)
    assert bool(evicted(single(world))) is goes


@pytest.mark.parametrize(
    ("ago", "goes"), [(timedelta(minutes=10), True), (timedelta(minutes=10, microseconds=-1), False)]
)
@pytest.mark.parametrize("fact", ["last_used_at", "ready_at"])
def test_grace_ends_to_the_microsecond(ago: timedelta, goes: bool, fact: str) -> None:
    facts: dict[str, Any] = {fact: NOW - ago}
    world = sized(view([node("n", entry("loose", **facts))], [pin("m")]), "m", 95 * GIB)
    assert bool(evicted(single(world))) is goes
    assert bool(single(world).refusals) is not goes


@pytest.mark.parametrize(("left", "held"), [(timedelta(microseconds=1), True), (timedelta(0), False)])
def test_a_hold_ends_to_the_microsecond(left: timedelta, held: bool) -> None:
    world = sized(view([node("n", entry("loose"))], [pin("m")], holds=(hold("loose", NOW + left),)), "m", 95 * GIB)
    assert bool(evicted(single(world))) is not held


@pytest.mark.parametrize(
    ("ago", "starts"), [(timedelta(minutes=2), True), (timedelta(minutes=2, microseconds=-1), False)]
)
def test_a_node_has_settled_to_the_microsecond(ago: timedelta, starts: bool) -> None:
    world = view([node("n", joined_at=NOW - ago)], [pin("m")], with_policy={"settle": timedelta(minutes=2)})
    assert bool(moved(single(world))) is starts
    assert waiting(single(world)) == ({} if starts else {("n", "m"): "Settling"})


@pytest.mark.parametrize(
    ("per_node", "pool", "starts"), [(0, 9, 0), (1, 9, 2), (2, 9, 4), (9, 3, 3), (9, 1, 1), (9, 0, 0)]
)
def test_it_starts_exactly_as_many_as_both_limits_allow(per_node: int, pool: int, starts: int) -> None:
    pins = [pin(digest, 900 - number) for number, digest in enumerate("abc")]
    limits = {"max_downloads_per_node": per_node, "max_downloads": pool}
    made = single(view([node("n"), node("o")], pins, with_policy=limits))
    assert len(made.moves) == starts
    assert len(made.moves) + len(made.waits) == 6 and set(waiting(made).values()) <= {"Pacing"}
    assert not {item.digest for item in made.moves} & {"c"} or starts > 4, "the most valuable first"


def test_a_node_over_its_watermark_already_takes_nothing_and_loses_nothing_that_is_wanted() -> None:
    full = node("n", entry("kept", size=120), capacity=100)
    made = single(view([full], [pin("kept"), pin("m", 900)], {"m": 1}))
    assert not made.moves or evicted(made) == [("n", "kept")]
    alone = single(view([full], [pin("kept"), pin("m", 400)], {"m": 1}))
    assert not alone.moves and not alone.evictions
    (refusal,) = alone.refusals
    assert (refusal.free_bytes, refusal.need_bytes) == (0, GIB)


@pytest.mark.parametrize("size", [0, 1])
def test_an_artifact_of_no_bytes_needs_no_room(size: int) -> None:
    world = sized(view([node("n", entry("kept", size=100))], [pin("m"), pin("kept", 900)]), "m", size)
    made = single(world)
    assert bool(made.refusals) is bool(size)
    assert [move.bytes for move in made.moves] == ([] if size else [0])


@given(st.integers(0, 60), st.integers(0, 150))
def test_a_share_is_rounded_up_and_never_more_than_there_are(matching: int, value: int) -> None:
    share = required_count(Placement(PlacementType.PERCENT, value), matching)
    assert 0 <= share <= matching
    assert share * 100 >= min(value, 100) * matching
    assert share == 0 or (share - 1) * 100 < value * matching
    assert required_count(Placement(PlacementType.COUNT, value), matching) == min(value, matching)
    assert required_count(Placement(PlacementType.ALL, value), matching) == matching


@settings(max_examples=200)
@given(st.lists(st.integers(0, 30), max_size=8), st.integers(-5, 120))
def test_the_smallest_set_suffices_and_every_member_is_needed(sizes: list[int], shortage: int) -> None:
    candidates = [
        Candidate(EntryView(f"d{number}", EntryState.READY, size, size, None), size, None)
        for number, size in enumerate(sizes)
    ]
    chosen = smallest_set(candidates, shortage)
    if chosen is None:
        assert sum(sizes) < shortage
        return
    freed = sum(item.bytes for item in chosen)
    assert freed >= shortage
    assert all(freed - item.bytes < shortage for item in chosen)
    assert [item.entry.digest for item in chosen] == sorted(item.entry.digest for item in chosen), "kept in their order"


@given(st.integers(-(2**62), 2**62))
def test_sizes_read_as_the_nearest_tenth_of_their_unit(number: int) -> None:
    text, unit = size_text(number).split(" ")
    factor = 1024 ** ["B", "KiB", "MiB", "GiB", "TiB", "PiB"].index(unit)
    assert abs(float(text) * factor - number) <= 0.051 * factor
    assert abs(float(text)) < 1024 or unit == "PiB"
    assert not text.endswith(".0")


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (1024**2 - 1, "1 MiB"),
        (-2048, "-2 KiB"),
    ],
)
def test_sizes_at_the_borders_of_units(number: int, text: str) -> None:
    assert size_text(number) == text


@pytest.mark.parametrize(("number", "text"), [(0, "0 nodes"), (1, "1 node"), (2, "2 nodes"), (-1, "-1 nodes")])
def test_one_is_singular_and_nothing_else_is(number: int, text: str) -> None:
    assert plural(number, "node") == text


def zones(*names: str) -> list[NodeView]:
    return [node(f"{name}{number}", labels={"zone": name}) for name in names for number in range(4)]


@pytest.mark.parametrize("wanted", range(0, 13))
def test_a_spread_count_differs_by_one_between_zones_at_most(wanted: int) -> None:
    made = single(view(zones("a", "b", "c"), [pin("m", placement=count(wanted, "zone"))]))
    chosen = [name[0] for name, _ in moved(made)]
    per_zone = [chosen.count(name) for name in "abc"]
    assert sum(per_zone) == wanted and max(per_zone) - min(per_zone) <= 1


def test_a_spread_fills_the_zones_that_have_room_when_others_are_used_up() -> None:
    nodes = [*zones("a")[:1], *zones("b"), node("plain")]
    made = single(view(nodes, [pin("m", placement=count(5, "zone"))]))
    chosen = sorted(name for name, _ in moved(made))
    assert "a0" in chosen and "plain" in chosen and len(chosen) == 5
