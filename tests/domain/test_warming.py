"""When a tainted node may have work: what is pinned there soon is there, or cannot be helped."""

from __future__ import annotations

from dataclasses import replace
from datetime import time, timedelta
from typing import Any

import pytest

from caches.domain.planning import plan
from caches.domain.pool_view import DailyWindow, EntryView, NodeView, PinView, PoolView
from caches.domain.warming import warm_nodes
from controlplane.clusters.documents import EntryState, NodeState
from tests.domain.world import NOW, entry, node, pin, view

CLOSED = DailyWindow(time(1), time(2), "UTC")


def warm(a: NodeView, pins: list[PinView], **fields: Any) -> bool:
    world: PoolView = view([a, node("other")], pins, **fields)
    return a.uid in warm_nodes(plan(world, NOW), world.nodes)


def failing(attempts: int, *, due: bool) -> EntryView:
    retry_at = NOW + timedelta(seconds=-1 if due else 60)
    return entry("m", EntryState.FAILED, attempts=attempts, retry_at=retry_at, reason="SourceUnavailable")


def test_a_node_without_pins_is_warm() -> None:
    assert warm(node("a"), [])


def test_a_node_whose_pins_are_ready_is_warm_whatever_others_lack() -> None:
    assert warm(node("a", entry("m")), [pin("m")])


@pytest.mark.parametrize("state", [EntryState.QUEUED, EntryState.DOWNLOADING, EntryState.REPAIRING])
def test_it_waits_for_what_arrives(state: EntryState) -> None:
    assert not warm(node("a", entry("m", state)), [pin("m")])


def test_it_waits_for_every_pin() -> None:
    assert not warm(node("a", entry("m")), [pin("m"), pin("n")])


def test_it_waits_for_a_transfer_whose_turn_comes_later() -> None:
    busy = node("a", entry("m", EntryState.DOWNLOADING))
    assert not warm(busy, [pin("m", 900), pin("n")], with_policy={"max_downloads_per_node": 1})


def test_it_waits_until_a_new_node_has_settled_and_reported() -> None:
    assert not warm(node("a", joined_at=NOW), [pin("m")], with_policy={"settle": timedelta(seconds=30)})
    assert not warm(node("a", capacity=None), [pin("m")])


@pytest.mark.parametrize("state", [state for state in NodeState if state is not NodeState.READY])
def test_a_node_that_is_not_ready_is_not_warm(state: NodeState) -> None:
    ready = node("a", entry("m"))
    assert not warm_nodes(plan(view([ready], [pin("m")]), NOW), [replace(ready, state=state)])


def test_it_does_not_wait_for_what_has_no_room() -> None:
    assert warm(node("a"), [pin("m")], sizes={"m": 500})


def test_it_does_not_wait_for_a_window_or_a_suspended_pin_or_a_paused_pool() -> None:
    assert warm(node("a"), [pin("m", window=CLOSED)])
    assert warm(node("a"), [pin("m", suspended=True)])
    assert warm(node("a"), [pin("m")], with_policy={"paused": True})


@pytest.mark.parametrize("due", [True, False])
@pytest.mark.parametrize(("attempts", "expected"), [(1, False), (2, False), (3, True), (9, True)])
def test_it_gives_up_on_a_copy_that_fails_again_and_again(attempts: int, expected: bool, due: bool) -> None:
    assert warm(node("a", failing(attempts, due=due)), [pin("m")]) is expected


def test_leftovers_that_no_pin_wants_hold_nothing_up() -> None:
    assert warm(node("a", entry("m"), entry("old", EntryState.REPAIRING)), [pin("m")])


def test_each_node_is_judged_by_its_own_copies() -> None:
    """What fails for good on one node is awaited on another."""
    helpless, hopeful = node("a", failing(3, due=True)), node("b", failing(1, due=True))
    done, waiting = node("c", entry("m")), node("d")
    nodes = [helpless, hopeful, done, waiting]
    assert warm_nodes(plan(view(nodes, [pin("m")]), NOW), nodes) == {helpless.uid, done.uid}
