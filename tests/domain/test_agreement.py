"""Plan, dry run, forecast and explanation are one decision: whoever asks whichever way hears the same."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import time, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from caches.domain.coverage import of_artifact
from caches.domain.pacing import hold_back, pace_plans
from caches.domain.planning import explain, forecast, plan
from caches.domain.plans import Check, EvictReason, MoveReason, Plan, Protection, WaitReason
from caches.domain.pool_view import DailyWindow, PoolView, SharedLimits
from caches.domain.states import is_in_flight, is_present
from controlplane.clusters.documents import Action, EntryState, NodeState
from tests.domain.fleet import DIGESTS, pools
from tests.domain.world import NOW

few = settings(max_examples=60, deadline=None)
GOING_ON = (MoveReason.IN_FLIGHT, MoveReason.REPAIR, MoveReason.RETRY)
STOPS = {
    WaitReason.WINDOW: {"The window is open"},
    WaitReason.PACING: {"It is its turn"},
    WaitReason.PAUSED: {"The pool is not paused"},
    WaitReason.NODE_NOT_READY: {"The node is ready", "It fits on the disk"},
    WaitReason.SETTLING: {"The node has settled"},
    WaitReason.RETRY_LATER: {"No failure stands in the way"},
    WaitReason.SUSPENDED: {"The pin is not suspended"},
}


def stop(checks: tuple[Check, ...]) -> str:
    """The first check that did not pass and was asked."""
    failing = (item for item in checks if item.passed is not True and "not asked" not in item.detail)
    return next((item.check for item in failing), "")


@st.composite
def places(draw: st.DrawFn) -> tuple[PoolView, str, str]:
    """A pool, sometimes paused or with a window on every pin, and one artifact on one of its nodes."""
    world = draw(pools())
    if draw(st.integers(0, 5)) == 0:
        world = replace(world, policy=replace(world.policy, paused=True))
    if draw(st.integers(0, 3)) == 0:
        night = DailyWindow(time(22), time(6), "UTC")
        world = replace(world, pins=tuple(replace(pin, window=night) for pin in world.pins))
    return world, draw(st.sampled_from(world.nodes)).uid, draw(st.sampled_from(DIGESTS))


@settings(max_examples=80, deadline=None)
@given(places())
def test_an_explanation_ends_where_the_plan_stopped(place: tuple[PoolView, str, str]) -> None:
    world, uid, digest = place
    made, checks = plan(world, NOW), explain(world, digest, uid, NOW)
    node = next(node for node in world.nodes if node.uid == uid)
    entry = next((item for item in node.entries if item.digest == digest), None)
    if node.state is NodeState.LOST:
        assert stop(checks) == "The node is in the pool"
        return
    if entry is not None and entry.state is EntryState.READY:
        assert checks[-1].passed is True
        return
    assert checks[-1].passed is not True
    if entry is not None and (is_in_flight(entry.state) or is_present(entry.state)):
        return
    refused = [item for item in made.refusals if (item.node_uid, item.digest) == (uid, digest)]
    waits = [item for item in made.waits if (item.node_uid, item.digest) == (uid, digest)]
    moves = [item for item in made.moves if (item.node_uid, item.digest) == (uid, digest)]
    if refused:
        assert stop(checks) == "It fits on the disk"
        assert refused[0].detail in next(item.detail for item in checks if item.check == "It fits on the disk")
    elif waits:
        assert stop(checks) in STOPS[waits[0].reason], (waits[0], checks)
    elif [move for move in moves if move.reason not in GOING_ON]:
        assert stop(checks) == "The bytes are there"
    elif not moves:
        lines = {item.digest for item in made.desired[uid] if item.action is Action.ENSURE and item.pin_id}
        assert digest in lines or stop(checks) not in ("", "The bytes are there"), checks


@few
@given(pools())
def test_a_forecast_begins_with_what_the_plan_evicts_and_names_every_entry_once(world: PoolView) -> None:
    made = plan(world, NOW)
    for node in world.nodes:
        rows = forecast(world, node.uid, NOW)
        there = {item.digest for item in node.entries if item.state not in (EntryState.ABSENT, EntryState.LOST)}
        if node.state is NodeState.LOST:
            assert rows == ()
            continue
        assert sorted(row.digest for row in rows) == sorted(there)
        assert [row.rank for row in rows] == list(range(1, len(rows) + 1))
        going = {item.digest: item for item in made.evictions if item.node_uid == node.uid and item.digest in there}
        assert {row.digest for row in rows[: len(going)]} == set(going)
        for row in rows[: len(going)]:
            assert (row.reason, row.detail, row.protected_by) == (
                going[row.digest].reason,
                going[row.digest].detail,
                None,
            )
        free = [row.protected_by is None for row in rows]
        assert free == sorted(free, reverse=True), "what is protected comes last"
        for row in rows[len(going) :]:
            if row.digest in (node.in_use or ()) and node.state is NodeState.READY:
                assert row.protected_by is Protection.IN_USE
            if row.protected_by is None and row.reason is EvictReason.LRU:
                assert node.in_use is not None and node.state is NodeState.READY


@few
@given(pools())
def test_asking_changes_nothing_and_the_same_question_has_the_same_answer(world: PoolView) -> None:
    before = repr(world)
    made = plan(world, NOW)
    forecast(world, world.nodes[0].uid, NOW)
    explain(world, DIGESTS[0], world.nodes[0].uid, NOW)
    assert plan(world, NOW) == made and repr(world) == before


@few
@given(pools(), st.integers(0, 2**32))
def test_time_alone_starts_no_eviction_of_what_is_pinned(world: PoolView, seed: int) -> None:
    """An hour later more may be out of grace or settled, but nobody's pin lost its claim to a pin of equal value."""
    later = NOW + timedelta(minutes=random.Random(seed).randrange(600))
    alike = replace(world, pins=tuple(replace(pin, priority=500) for pin in world.pins))
    for item in plan(alike, later).evictions:
        assert item.reason is not EvictReason.PRIORITY or any(
            pin.digest == item.digest and pin.placement.type.value != "All" for pin in alike.pins
        )


def key(made: Plan) -> set[tuple[str, str]]:
    return {(move.node_uid, move.digest) for move in made.moves}


@few
@given(pools(), pools(), st.one_of(st.none(), st.integers(0, 6)), st.one_of(st.none(), st.integers(0, 4)))
def test_pacing_only_ever_defers(one: PoolView, two: PoolView, most: int | None, at_store: int | None) -> None:
    plans = (plan(one, NOW), plan(two, NOW))
    limits = SharedLimits(
        max_downloads=most, max_downloads_by_connection={} if at_store is None else {"store": at_store}
    )
    paced = pace_plans(plans, limits)
    moves = [move for each in paced for move in each.moves]
    going_on = [move for move in moves if move.reason in GOING_ON]
    fresh = [move for move in moves if move.reason not in GOING_ON]
    for limit in (most, at_store):
        assert limit is None or not fresh or len(moves) <= max(limit, len(going_on))
    for before, after in zip(plans, paced, strict=True):
        assert key(after) <= key(before)
        deferred = key(before) - key(after)
        assert {(item.node_uid, item.digest) for item in after.waits[len(before.waits) :]} == deferred
        assert {(item.node_uid, item.digest) for item in after.evictions} <= {
            (item.node_uid, item.digest) for item in before.evictions
        }
        agree(after)
    kept = [move.priority for move in fresh]
    lost = [move.priority for number in (0, 1) for move in plans[number].moves
            if (move.node_uid, move.digest) not in key(paced[number])]  # fmt: skip
    assert not kept or not lost or min(kept) >= max(lost), "the more valuable come first over all pools"


def agree(made: Plan) -> None:
    """The lines say what the lists say, each once and numbered through."""
    for uid, lines in made.desired.items():
        assert [item.order for item in lines] == list(range(len(lines)))
        actions = [item.action for item in lines]
        assert actions == sorted(actions, key=lambda action: action is Action.ENSURE), "evictions before all"
        assert len({item.digest for item in lines}) == len(lines)
        evict = {item.digest for item in lines if item.action is Action.EVICT}
        assert evict == {item.digest for item in made.evictions if item.node_uid == uid}
    for move in made.moves:
        line = next(item for item in made.desired[move.node_uid] if item.digest == move.digest)
        assert (line.action, line.order) == (Action.ENSURE, move.order)


@few
@given(pools(), st.integers(0, 2**32))
def test_what_is_held_back_stays_and_so_does_what_needs_its_room(world: PoolView, seed: int) -> None:
    made = plan(world, NOW)
    chance = random.Random(seed)
    leaving = [(item.node_uid, item.digest) for item in made.evictions if chance.random() < 0.5]
    after = hold_back(made, leaving)
    agree(after)
    assert not {(item.node_uid, item.digest) for item in after.evictions} & set(leaving)
    for uid, digest in leaving:
        assert digest in {item.digest for item in after.desired[uid] if item.action is Action.ENSURE}
    waiting = {(item.node_uid, item.digest) for item in after.waits if item.reason is WaitReason.EVICTION}
    assert waiting == key(made) - key(after)
    assert hold_back(made, []) == made


@few
@given(pools())
def test_coverage_is_never_more_than_is_asked_for_and_never_counts_the_unknown(world: PoolView) -> None:
    for digest in {pin.digest for pin in world.pins}:
        found = of_artifact(world, digest)
        assert 0 <= found.ready + found.unknown <= found.required
        assert 0 <= found.bytes_ready <= found.bytes_arrived <= found.bytes_required
        assert found.fraction is None or 0 <= found.fraction <= 1
        assert found.complete is (found.required > 0 and found.ready == found.required)
        blind = replace(world, nodes=tuple(replace(node, state=NodeState.UNKNOWN) for node in world.nodes
                                           if node.state is not NodeState.LOST))  # fmt: skip
        assert of_artifact(blind, digest).ready == 0
        copies = sum(item.digest == digest for node in world.nodes for item in node.entries)
        assert found.ready <= copies
