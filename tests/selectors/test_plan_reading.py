"""A plan as people read it: one line for each node, what has to go first, and a time only where one was measured."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from caches.domain.plans import (
    DesiredItem,
    Eviction,
    EvictReason,
    Move,
    MoveReason,
    Plan,
    Refusal,
    Wait,
    WaitReason,
)  # fmt: skip
from caches.selectors.why import Preview, named, pin_fits
from controlplane.clusters.documents import Action

LATER = datetime(2026, 9, 1, 22, tzinfo=UTC)


def move(uid: str, seconds: float | None = 4.0, digest: str = "d", **changes: Any) -> Move:
    values: dict[str, Any] = {
        "node": f"node-{uid}", "node_uid": uid, "digest": digest, "artifact": "m v", "bytes": 10, "source": "s",
        "estimated_seconds": seconds, "order": 1, "reason": MoveReason.PINNED, "pin_id": "p",
    }  # fmt: skip
    return Move(**(values | changes))


def wait(uid: str, reason: WaitReason = WaitReason.WINDOW, size: int = 10) -> Wait:
    return Wait(f"node-{uid}", uid, "d", "m v", reason, "later", LATER, bytes=size)


def refusal(uid: str) -> Refusal:
    return Refusal(f"node-{uid}", uid, "d", "m v", "InsufficientCapacity", "no room", 30, 20, 5, "add a disk")


def eviction(uid: str, room_for: str = "d") -> Eviction:
    return Eviction(f"node-{uid}", uid, "old", "old v1", 7, EvictReason.LRU, "not used", None, None, room_for=room_for)


def kept(pin_id: str = "p", action: Action = Action.ENSURE, digest: str = "d") -> tuple[DesiredItem, ...]:
    return (DesiredItem(digest, action, 1, "Kept", pin_id),)


def read(*plans: Plan) -> Preview:
    return pin_fits(plans, "d", [f"lab.{plan.pool}" for plan in plans])


def test_no_plan_and_an_empty_plan_have_no_lines() -> None:
    for preview in (read(), read(Plan("gpu"))):
        assert (preview.nodes, preview.bytes, preview.seconds, preview.basis) == ((), 0, None, 0)
        assert (preview.evictions, preview.refused, preview.notes) == ((), 0, ())


@pytest.mark.parametrize(
    ("plan", "verdict", "size"),
    [
        (Plan("gpu", moves=(move("a"),)), "Fits", 10),
        (Plan("gpu", moves=(move("a"),), evictions=(eviction("a"),)), "Evicts", 10),
        (Plan("gpu", moves=(move("a", after_evictions=True),)), "Evicts", 10),
        (Plan("gpu", moves=(move("a"),), evictions=(eviction("a", room_for="other"),)), "Fits", 10),
        (Plan("gpu", moves=(move("a"),), evictions=(eviction("b"),)), "Fits", 10),
        (Plan("gpu", waits=(wait("a"),)), "Waits", 10),
        (Plan("gpu", waits=(wait("a"),), evictions=(eviction("a"),)), "Evicts", 10),
        (Plan("gpu", refusals=(refusal("a"),)), "CannotFit", 0),
        (Plan("gpu", refusals=(refusal("a"),), evictions=(eviction("a"),)), "CannotFit", 0),
        (Plan("gpu", desired={"a": kept()}), "Kept", 0),
    ],
)
def test_each_node_has_one_verdict(plan: Plan, verdict: str, size: int) -> None:
    preview = read(plan)
    assert [(fit.node_uid, fit.verdict) for fit in preview.nodes] == [("a", verdict)]
    assert (preview.bytes, preview.counted(verdict), preview.counted("Other")) == (size, 1, 0)


@pytest.mark.parametrize("desired", [kept(pin_id=""), kept(digest="other")])
def test_what_no_pin_wants_there_or_is_something_else_is_no_line(desired: tuple[DesiredItem, ...]) -> None:
    assert read(Plan("gpu", desired={"a": desired})).nodes == ()


def test_nodes_of_one_name_in_two_pools_stay_two_lines_in_order() -> None:
    west, east = Plan("west", moves=(move("w", node="n1"),)), Plan("east", moves=(move("e", node="n1"), move("f")))
    preview = read(west, east)
    assert [(fit.pool, fit.node) for fit in preview.nodes] == [
        ("lab.east", "n1"),
        ("lab.east", "node-f"),
        ("lab.west", "n1"),
    ]


def test_pools_are_named_by_the_plans_where_nothing_else_names_them() -> None:
    assert [fit.pool for fit in pin_fits([Plan("gpu", moves=(move("a"),))], "d").nodes] == ["gpu"]


def test_a_kept_node_is_named_by_whoever_knows_its_name_and_sorted_by_it() -> None:
    preview = read(Plan("gpu", moves=(move("b", node="m"),), desired={"uid-z": kept(), "uid-y": kept()}))
    assert [fit.node for fit in preview.nodes] == ["m", "uid-y", "uid-z"]
    assert [fit.node for fit in named(preview, {"uid-z": "a", "b": "m"}).nodes] == ["a", "m", "uid-y"]


@pytest.mark.parametrize(
    ("plans", "seconds"),
    [
        ([Plan("a", moves=(move("a"),), estimated_seconds=9.0)], 9.0),
        ([Plan("a", moves=(move("a"),), estimated_seconds=9.0), Plan("b", estimated_seconds=0.0)], 9.0),
        # What another pool does meanwhile is none of this pin's time.
        ([Plan("a", moves=(move("a"),), estimated_seconds=9.0), Plan("b", estimated_seconds=600.0)], 9.0),
        (
            [
                Plan("a", moves=(move("a"),), estimated_seconds=9.0),
                Plan("b", moves=(move("b"),), estimated_seconds=60.0),
            ],
            60.0,
        ),
        # Nothing was measured for one pool, so nothing is known of the whole.
        ([Plan("a", moves=(move("a"),), estimated_seconds=9.0), Plan("b", moves=(move("b", None),))], None),
        ([Plan("a", moves=(move("a", 4.0), move("b", 7.0)))], 7.0),
        ([Plan("a", moves=(move("a", 4.0), move("b", None)))], None),
        # A wait for its window takes no time of its own, and not no time at all.
        ([Plan("a", waits=(wait("a"),), estimated_seconds=0.0)], None),
        ([Plan("a", moves=(move("b"),), waits=(wait("a"),), estimated_seconds=4.0)], 4.0),
        ([Plan("a", waits=(wait("a", WaitReason.PACING),), estimated_seconds=12.0)], 12.0),
        ([Plan("a", waits=(wait("a", WaitReason.PACING),))], None),
        ([Plan("a", refusals=(refusal("a"),), estimated_seconds=0.0)], None),
        ([Plan("a", desired={"a": kept()}, estimated_seconds=0.0)], None),
    ],
)
def test_the_time_is_that_of_the_slowest_pool_and_unknown_as_a_whole_where_one_is(
    plans: list[Plan], seconds: float | None
) -> None:
    assert read(*plans).seconds == seconds


def test_the_basis_and_the_notes_are_those_of_all_pools() -> None:
    preview = read(Plan("a", estimate_basis=3, notes=("one",)), Plan("b", estimate_basis=7, notes=("two", "three")))
    assert (preview.basis, preview.notes) == (7, ("one", "two", "three"))


def test_what_has_to_go_is_listed_for_this_artifact_only() -> None:
    plan = Plan("gpu", moves=(move("a"), move("b")), evictions=(eviction("a"), eviction("b", room_for="other")))
    assert [one.node_uid for one in read(plan).evictions] == ["a"]
