"""Limits that span pools, and times from measured transfers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from caches.domain.planning import pace, plan
from caches.domain.plans import Plan
from caches.domain.pool_view import PoolView, SharedLimits, Throughput
from controlplane.clusters.documents import EntryState
from tests.domain.world import GIB, NOW, artifact, entry, evicted, lines, measured, moved, node, pin, view, waiting


def _pool(name: str, priority: int, *names: str) -> Plan:
    world = view([node(item) for item in names], [pin("m", priority)])
    return plan(replace(world, pool=name), NOW)


def test_it_changes_nothing_without_limits() -> None:
    plans = (_pool("a", 500, "a1", "a2"),)
    assert pace(plans, SharedLimits()) == plans


def test_it_gives_the_cluster_to_the_most_valuable_moves_of_all_pools() -> None:
    low, high = pace([_pool("a", 100, "a1", "a2"), _pool("b", 900, "b1", "b2")], SharedLimits(max_downloads=3))
    assert moved(high) == [("b1", "m"), ("b2", "m")]
    assert moved(low) == [("a1", "m")]
    assert waiting(low) == {("a2", "m"): "Pacing"}
    assert lines(low, "a2") == {}
    assert low.total_bytes == 20 * GIB


def test_it_limits_each_source_by_itself() -> None:
    world = view([node("n")], [pin("x"), pin("y"), pin("z")])
    facts = {name: artifact(name, connection="slow" if name != "z" else "fast") for name in "xyz"}
    (made,) = pace([plan(replace(world, artifacts=facts), NOW)], SharedLimits({"slow": 1}))
    assert moved(made) == [("n", "x"), ("n", "z")]
    assert "1 of 1 transfers from slow" in made.waits[0].detail
    assert [item.order for item in made.desired["uid-n"]] == [0, 1]


def test_it_counts_running_transfers_first_and_never_stops_them() -> None:
    running = [node(f"n{i}", entry("old", EntryState.DOWNLOADING)) for i in range(3)]
    world = view([*running, node("new")], [pin("old", 1), pin("m", 900)])
    (made,) = pace([plan(world, NOW)], SharedLimits(max_downloads=2))
    assert [move.reason.value for move in made.moves] == ["InFlight"] * 3
    assert all(lines(made, f"n{i}") == {"old": "Ensure InFlight"} for i in range(3))


def test_it_undoes_the_evictions_that_only_a_deferred_move_needed() -> None:
    full = node("n", entry("old", size=90), entry("asked", evict_requested=True))
    before = plan(view([full], [pin("m")], {"m": 50}), NOW)
    assert ("n", "old") in evicted(before)
    (made,) = pace([before], SharedLimits(max_downloads=0))
    assert evicted(made) == [("n", "asked")]
    assert lines(made, "n") == {"asked": "Evict Manual", "old": "Ensure Kept"}


def _timed(rate: float | None, samples: int, **policy: object) -> PoolView:
    world = view([node(f"n{i}") for i in range(4)], [pin("m")], with_policy=policy)
    return replace(world, throughput={"store": Throughput(rate, samples)})


def test_it_estimates_nothing_that_was_not_measured() -> None:
    made = plan(_timed(None, 0), NOW)
    assert (made.estimated_seconds, made.estimate_basis) == (None, 0)
    assert made.moves[0].estimated_seconds is None
    half = replace(_timed(GIB, 3), artifacts={"m": artifact("m", connection="new")})
    assert plan(half, NOW).estimated_seconds is None


@pytest.mark.parametrize(
    ("policy", "seconds"),
    [
        ({}, 10),  # four nodes at once, 10 GiB each at 1 GiB/s
        ({"max_downloads": 2}, 20),  # two at a time
        ({"max_downloads": 1}, 40),
        ({"node_bytes_per_second": GIB // 2, "max_downloads_per_node": 1}, 20),  # capped at half the rate
        ({"node_bytes_per_second": 2 * GIB, "max_downloads_per_node": 2}, 10),  # the cap does not bite
    ],
)
def test_it_estimates_from_the_measured_rate_the_caps_and_the_slots(policy: dict[str, object], seconds: float) -> None:
    made = plan(_timed(GIB, 7, **policy), NOW)
    assert made.estimated_seconds == pytest.approx(seconds)
    assert made.estimate_basis == 7
    assert made.total_bytes == 40 * GIB


def test_it_estimates_what_is_left_of_running_transfers_and_the_way_back() -> None:
    nodes = [node("n", entry("run", EntryState.DOWNLOADING, on_disk=4), entry("x", evict_requested=True))]
    made = plan(view(nodes, [pin("run")], throughput=measured(GIB)), NOW)
    assert made.estimated_seconds == pytest.approx(6)
    assert made.evictions[0].restore_seconds == pytest.approx(10)
    assert made.total_bytes == 6 * GIB
