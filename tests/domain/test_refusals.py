"""What a refusal for room says: the numbers that add up, and until when where nothing but time is in the way."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from caches.domain.planning import plan
from caches.domain.pool_view import EntryView
from tests.domain.world import LONG_AGO, NOW, entry, hold, node, pin, view

MINUTE = timedelta(minutes=1)
GRACE = {"evict_grace": timedelta(minutes=10)}


def fresh(digest: str, minutes: float, size: int = 60, **fields: Any) -> EntryView:
    """Ready and never used, since so many minutes."""
    return entry(digest, size=size, ready_at=NOW - minutes * MINUTE, **fields)


def test_it_says_until_when_the_grace_keeps_the_room() -> None:
    made = plan(view([node("n", fresh("x", 3.5))], [pin("m")], {"m": 60}, with_policy=GRACE), NOW)
    (refusal,) = made.refusals
    assert refusal.until == NOW + 6.5 * MINUTE
    assert refusal.detail == (
        "needs 60 GiB; 40 GiB are free under the high watermark of 100% of 100 GiB, 0 B of them are reserved; "
        "until 2026-03-04 12:06:30 UTC the eviction grace or a hold keeps what would make the room"
    )
    assert refusal.next_step == (
        "Wait until 2026-03-04 12:06:30 UTC: enough may go on n then. Or: Free 20 GiB on n (there are 60 GiB used or "
        "ready too recently), raise this pin's priority, or choose other nodes."
    )


@pytest.mark.parametrize(
    ("entries", "need", "holds", "minutes"),
    [
        ((fresh("x", 3),), 60, (), 7),
        ((fresh("x", 3, 30), fresh("y", 8, 30)), 60, (), 2),  # the one whose grace ends first is enough
        ((fresh("x", 3, 30), fresh("y", 8, 30)), 80, (), 7),  # both are needed
        ((fresh("x", 3, 30), entry("y", size=60)), 90, (), 7),  # what may go now is not enough by itself
        ((entry("x", size=60),), 60, (hold("x", NOW + 90 * MINUTE),), 90),
        ((fresh("x", 3),), 60, (hold("x", NOW + 5 * MINUTE),), 7),  # the grace outlasts the hold
        ((entry("x", size=60),), 60, (hold("x", NOW + MINUTE), hold("x", NOW + 9 * MINUTE)), 9),
        ((entry("x", size=60),), 60, (hold("x", NOW + MINUTE), hold("x", None, "uid-other")), 1),
    ],
)
def test_waiting_really_makes_the_room(entries: tuple[EntryView, ...], need: int, holds: Any, minutes: int) -> None:
    world = view([node("n", *entries)], [pin("m")], {"m": need}, holds=holds, with_policy=GRACE)
    (refusal,) = plan(world, NOW).refusals
    assert refusal.until == NOW + minutes * MINUTE
    assert plan(world, refusal.until - MINUTE / 60).refusals
    assert not plan(world, refusal.until).refusals


@pytest.mark.parametrize(
    ("entries", "need", "holds", "fields"),
    [
        ((fresh("x", 3),), 300, (), {}),  # no disk for it, whatever goes
        ((fresh("x", 3, 30), entry("u", size=50)), 90, (), {"in_use": frozenset({"u"})}),
        ((fresh("x", 3),), 60, (), {"in_use": None}),
        ((fresh("p", 3),), 60, (), {}),  # a pin of the same priority wants it there
        ((entry("x", size=60),), 60, (hold("x", None),), {}),
        ((entry("x", size=60),), 60, (hold("x", NOW + MINUTE), hold("x", None)), {}),
        ((fresh("x", 3),), 60, (), {"other": 50}),
    ],
)
def test_it_does_not_advise_to_wait_where_that_would_not_help(
    entries: tuple[EntryView, ...], need: int, holds: Any, fields: Any
) -> None:
    pins = [pin("m", created_at=LONG_AGO + MINUTE), pin("p", node_selector={"never": "1"})]
    if any(item.digest == "p" for item in entries):
        pins = [pin("m", created_at=LONG_AGO + MINUTE), pin("p")]
    made = plan(view([node("n", *entries, **fields)], pins, {"m": need}, holds=holds, with_policy=GRACE), NOW)
    (refusal,) = [one for one in made.refusals if one.digest == "m"]
    assert refusal.until is None and "until" not in refusal.detail and not refusal.next_step.startswith("Wait")


def test_a_weaker_pin_that_is_held_goes_when_its_hold_ends() -> None:
    pins = [pin("m", 900), pin("x", 100)]
    world = view([node("n", fresh("x", 1))], pins, {"m": 60}, holds=(hold("x", NOW + 5 * MINUTE),), with_policy=GRACE)
    (refusal,) = plan(world, NOW).refusals
    assert refusal.until == NOW + 5 * MINUTE  # grace does not protect what a weaker pin wants
    assert not [one for one in plan(world, refusal.until).refusals if one.digest == "m"]
