"""What must be true of every plan, whatever the pool looks like."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from caches.domain.demand import selects
from caches.domain.planning import plan
from caches.domain.plans import EvictReason, MoveReason, Plan, WaitReason
from caches.domain.pool_view import NodeView, PlacementType, PoolView
from caches.domain.states import is_in_flight, is_present
from controlplane.clusters.documents import Action, EntryState, NodeState
from tests.domain.fleet import arrived, booked, limit, pools, told
from tests.domain.world import NOW

thrifty = settings(max_examples=80, deadline=None)
_GOING_ON = (MoveReason.IN_FLIGHT, MoveReason.REPAIR)


def _node(world: PoolView, uid: str) -> NodeView:
    return next(node for node in world.nodes if node.uid == uid)


def _state(node: NodeView, digest: str) -> EntryState:
    return next((item.state for item in node.entries if item.digest == digest), EntryState.ABSENT)


def _fresh(made: Plan) -> list[tuple[str, str]]:
    return [(move.node, move.digest) for move in made.moves if move.reason not in _GOING_ON]


@thrifty
@given(pools())
def test_it_never_plans_over_capacity(world: PoolView) -> None:
    made = plan(world, NOW)
    for uid in {move.node_uid for move in made.moves if move.reason not in _GOING_ON and move.bytes > 0}:
        node = _node(world, uid)
        assert booked(world, node, made) <= limit(world, node)


@thrifty
@given(pools())
def test_it_never_evicts_what_is_in_use_held_or_cannot_be_judged(world: PoolView) -> None:
    held = {hold.digest for hold in world.holds}
    for item in plan(world, NOW).evictions:
        node = _node(world, item.node_uid)
        if _state(node, item.digest) is EntryState.EVICTING:
            continue  # its files are going already
        assert node.state is NodeState.READY or (node.state is NodeState.CORDONED and item.reason is EvictReason.MANUAL)
        assert node.in_use is not None
        assert item.digest not in node.in_use
        assert item.digest not in held


@thrifty
@given(pools())
def test_it_displaces_a_pinned_entry_only_for_a_strictly_higher_priority(world: PoolView) -> None:
    made = plan(world, NOW)
    priority = {pin.digest: pin.priority for pin in world.pins}
    for item in made.evictions:
        node = _node(world, item.node_uid)
        everywhere = [
            pin
            for pin in world.pins
            if pin.digest == item.digest
            and pin.placement.type is PlacementType.ALL
            and selects(pin.node_selector, node.labels)
        ]
        if everywhere and _state(node, item.digest) is not EntryState.EVICTING:
            assert item.reason is EvictReason.PRIORITY
            assert priority[item.room_for] > everywhere[0].priority


@thrifty
@given(pools())
def test_it_evicts_for_a_move_no_more_than_the_move_needs(world: PoolView) -> None:
    made = plan(world, NOW)
    for item in made.evictions:
        if item.reason not in (EvictReason.LRU, EvictReason.PRIORITY) or not item.room_for:
            continue
        assert (item.node_uid, item.room_for) in {(move.node_uid, move.digest) for move in made.moves} or any(
            line.digest == item.room_for and line.action is Action.ENSURE for line in made.desired[item.node_uid]
        )


@thrifty
@given(pools())
def test_it_changes_nothing_when_it_plans_its_own_result(world: PoolView) -> None:
    first = told(world, plan(world, NOW))
    again = plan(first, NOW)
    assert _fresh(again) == [pair for pair in _fresh(again) if pair in _retries(first)]
    assert again.evictions == ()


def _retries(world: PoolView) -> set[tuple[str, str]]:
    return {
        (node.name, item.digest) for node in world.nodes for item in node.entries if item.state is EntryState.FAILED
    }


@thrifty
@given(pools())
def test_it_comes_to_rest_when_transfers_end(world: PoolView) -> None:
    for _ in range(40):
        made = plan(world, NOW)
        following = arrived(told(world, made))
        if following == world:
            break
        world = following
    else:
        raise AssertionError("still changing after 40 rounds")
    assert not [move for move in made.moves if move.reason not in (*_GOING_ON, MoveReason.RETRY)]


@thrifty
@given(pools(), st.data())
def test_it_never_covers_less_of_a_pin_whose_priority_is_raised(world: PoolView, data: st.DataObject) -> None:
    if not world.pins:
        return
    chosen = data.draw(st.sampled_from(world.pins))
    raised = replace(chosen, priority=chosen.priority + data.draw(st.sampled_from([1, 400, 1000])))
    other = replace(world, pins=tuple(raised if pin == chosen else pin for pin in world.pins))
    assert _covered(plan(other, NOW), chosen.digest) >= _covered(plan(world, NOW), chosen.digest)


def _covered(made: Plan, digest: str) -> int:
    """Nodes that have it, get it or will get it in turn."""
    lines = {
        (uid, item.digest)
        for uid, items in made.desired.items()
        for item in items
        if item.action is Action.ENSURE and item.digest == digest
    }
    turns = {
        (item.node_uid, digest) for item in made.waits if item.digest == digest and item.reason is WaitReason.PACING
    }
    return len(lines | turns)


@thrifty
@given(pools(), st.randoms(use_true_random=False))
def test_it_does_not_depend_on_the_order_of_its_input(world: PoolView, chance: random.Random) -> None:
    def mixed(items: tuple) -> tuple:  # type: ignore[type-arg]
        return tuple(chance.sample(items, len(items)))

    other = replace(
        world,
        nodes=tuple(replace(node, entries=mixed(node.entries)) for node in mixed(world.nodes)),
        pins=mixed(world.pins),
        holds=mixed(world.holds),
        artifacts=dict(mixed(tuple(world.artifacts.items()))),
    )
    assert plan(other, NOW) == plan(world, NOW)


@thrifty
@given(pools())
def test_every_line_has_a_reason_and_the_lists_agree_with_the_lines(world: PoolView) -> None:
    made = plan(world, NOW)
    lines = {(uid, item.digest): item for uid, items in made.desired.items() for item in items}
    assert all(item.reason for item in lines.values())
    for uid, items in made.desired.items():
        assert [item.order for item in items] == list(range(len(items)))
        assert len({item.digest for item in items}) == len(items)
        assert _node(world, uid).state is not NodeState.LOST
    for move in made.moves:
        line = lines[(move.node_uid, move.digest)]
        assert (line.action, line.reason, line.order) == (Action.ENSURE, move.reason.value, move.order)
    evict = {key for key, item in lines.items() if item.action is Action.EVICT}
    assert evict == {(item.node_uid, item.digest) for item in made.evictions}
    said = [item.detail for item in made.evictions]
    said += [item.detail for item in made.waits] + [item.detail for item in made.refusals]
    assert all(said)
    for wait in made.waits:
        assert wait.reason is WaitReason.RETRY_LATER or wait.bytes >= 0
        assert (wait.node_uid, wait.digest) not in {(move.node_uid, move.digest) for move in made.moves}


@thrifty
@given(pools())
def test_every_refusal_has_numbers_that_add_up(world: PoolView) -> None:
    made = plan(world, NOW)
    for refusal in made.refusals:
        assert refusal.need_bytes > refusal.free_bytes - refusal.reserved_bytes
        assert refusal.free_bytes >= 0
        assert refusal.reserved_bytes >= 0
        assert refusal.next_step
        assert not any(item.room_for == refusal.digest and item.node == refusal.node for item in made.evictions)


@thrifty
@given(pools())
def test_everything_known_that_exists_is_kept_unless_it_goes(world: PoolView) -> None:
    made = plan(world, NOW)
    for node in world.nodes:
        lines = {item.digest for item in made.desired.get(node.uid, ())}
        for item in node.entries:
            if node.state is not NodeState.LOST and is_present(item.state):
                assert item.digest in lines
            suspended = any(pin.digest == item.digest and pin.suspended for pin in world.pins)
            # Where the end was announced, what is on its way is stopped.
            stays = node.state not in (NodeState.LOST, NodeState.TERMINATING)
            if stays and is_in_flight(item.state) and not suspended:
                assert item.digest in lines
