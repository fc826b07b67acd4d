"""A pin's status: how many nodes shall hold it, do, and failed; when it will be warm; and the conditions in words."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from caches.models import Pin, PoolLoop
from caches.selectors.pins import PinCondition, PinStatus, pin_get, pin_statuses, pins_list
from controlplane.clusters.documents import EntryState
from controlplane.clusters.models import NodePool
from controlplane.errors import Missing
from tests import factories

HOUR = timedelta(hours=1)


def status_of(now: datetime, pin: Pin) -> PinStatus:
    return pin_statuses(list(pins_list().filter(pk=pin.pk)), now=now)[pin.pk]


def warm(now: datetime, pin: Pin) -> PinCondition:
    [condition] = [one for one in status_of(now, pin).conditions if one.type == "Warm"]
    return condition


def admitted(now: datetime, pin: Pin) -> PinCondition:
    [condition] = [one for one in status_of(now, pin).conditions if one.type == "Admitted"]
    return condition


def copies(pool: NodePool, pin: Pin, *states: EntryState, **fields: Any) -> None:
    for state in states:
        factories.entry(on=factories.node(of=pool), of=factories.version_of(pin).artifact, state=state, **fields)


def test_no_pins_have_no_statuses(now: datetime) -> None:
    assert pin_statuses([], now=now) == {}


def test_a_pin_without_a_matching_node_is_not_warm_and_has_no_estimate(now: datetime) -> None:
    pool = factories.pool()
    pin = factories.pin(pools=(pool,), node_selector={"zone": "nowhere"})
    factories.node(of=pool)
    found = status_of(now, pin)
    assert (found.target, found.ready, found.failed, found.eta_seconds) == (0, 0, 0, None)
    assert warm(now, pin) == PinCondition("Warm", "False", "NoNodes", "No node of its pools matches the pin.", None)


def test_a_count_without_a_matching_node_says_so_too(now: datetime) -> None:
    pin = factories.pin(placement_type="Count", placement_value=3)
    found = status_of(now, pin)
    assert (found.target, found.eta_seconds, warm(now, pin).reason) == (3, None, "NoNodes")


def test_every_node_ready_is_warm(now: datetime) -> None:
    pool = factories.pool()
    pin = factories.pin(pools=(pool,))
    copies(pool, pin, EntryState.READY, EntryState.READY)
    found = status_of(now, pin)
    assert (found.target, found.ready, found.eta_seconds) == (2, 2, 0.0)
    assert warm(now, pin).message == "2 of 2 nodes are warm."
    assert (warm(now, pin).status, warm(now, pin).reason) == ("True", "AllReady")


def test_a_count_beyond_the_nodes_is_never_warm(now: datetime) -> None:
    pool = factories.pool()
    pin = factories.pin(pools=(pool,), placement_type="Count", placement_value=3)
    copies(pool, pin, EntryState.READY)
    found = status_of(now, pin)
    assert (found.target, found.ready, found.eta_seconds) == (3, 1, None)
    assert (warm(now, pin).status, warm(now, pin).message) == ("False", "1 of 3 nodes are warm, 0 failed.")


def test_too_many_copies_in_one_pool_do_not_make_up_for_another(now: datetime) -> None:
    full, bare = factories.pool(), factories.pool()
    pin = factories.pin(pools=(full, bare), placement_type="Count", placement_value=1)
    copies(full, pin, EntryState.READY, EntryState.READY)
    factories.node(of=bare)
    found = status_of(now, pin)
    assert (found.target, found.ready, warm(now, pin).status) == (2, 1, "False")


@pytest.mark.parametrize(("nodes", "percent", "target"), [(3, 50, 2), (4, 50, 2), (3, 1, 1), (3, 100, 3), (10, 91, 10)])
def test_a_percentage_counts_whole_nodes(now: datetime, nodes: int, percent: int, target: int) -> None:
    pool = factories.pool()
    pin = factories.pin(pools=(pool,), placement_type="Percent", placement_value=percent)
    for _ in range(nodes):
        factories.node(of=pool)
    assert status_of(now, pin).target == target


def test_a_silent_copy_may_be_there_and_is_never_called_ready(now: datetime) -> None:
    pool = factories.pool()
    pin = factories.pin(pools=(pool,))
    copies(pool, pin, EntryState.READY)
    silent = factories.node(of=pool, reported_at=now - HOUR)
    factories.entry(on=silent, of=factories.version_of(pin).artifact)
    assert status_of(now, pin).ready == 1
    assert warm(now, pin) == PinCondition("Warm", "Unknown", "NodesSilent", "1 node has not reported lately.", None)
    factories.entry(on=factories.node(of=pool, ready=None), of=factories.version_of(pin).artifact)
    assert warm(now, pin).message == "2 nodes have not reported lately."
    factories.node(of=pool)
    assert (warm(now, pin).status, warm(now, pin).reason) == ("False", "Warming")


def test_a_failure_is_named(now: datetime) -> None:
    pool = factories.pool()
    pin = factories.pin(pools=(pool,))
    copies(pool, pin, EntryState.FAILED, EntryState.DOWNLOADING)
    assert (warm(now, pin).reason, warm(now, pin).message) == ("Failed", "0 of 2 nodes are warm, 1 failed.")


def test_one_node_reads_as_one_node(now: datetime) -> None:
    pool = factories.pool()
    pin = factories.pin(pools=(pool,))
    copies(pool, pin, EntryState.READY)
    assert warm(now, pin).message == "1 of 1 node is warm."


def test_a_failure_of_a_copy_that_the_count_gave_up_is_not_the_pins(now: datetime) -> None:
    pool = factories.pool()
    pin = factories.pin(pools=(pool,), placement_type="Count", placement_value=1)
    copies(pool, pin, EntryState.FAILED, desired="")
    copies(pool, pin, EntryState.QUEUED)
    found = status_of(now, pin)
    assert (found.failed, warm(now, pin).reason) == (0, "Warming")


def test_a_suspended_pin_says_so_unless_it_is_warm(now: datetime) -> None:
    pool = factories.pool()
    pin = factories.pin(pools=(pool,), suspended=True)
    copies(pool, pin, EntryState.READY)
    assert warm(now, pin).reason == "AllReady"
    factories.node(of=pool)
    assert (warm(now, pin).reason, warm(now, pin).last_transition) == ("Suspended", pin.updated_at)


def test_warm_since_the_last_node_became_ready_but_never_before_the_pin(now: datetime) -> None:
    pool = factories.pool()
    pin = factories.pin(pools=(pool,))
    copies(pool, pin, EntryState.READY, state_since=now - 2 * HOUR)
    assert warm(now, pin).last_transition == pin.created_at
    later = pin.created_at + HOUR
    copies(pool, pin, EntryState.READY, state_since=later)
    assert warm(now, pin).last_transition == later


@pytest.mark.parametrize(
    ("etas", "missing_node", "eta"),
    [
        ([10.0], False, 10.0),
        ([10.0, 90.5], False, 90.5),
        ([10.0, None], False, None),  # one is not measured
        ([None], False, None),
        ([10.0], True, None),  # one has not begun
        ([0.0], False, 0.0),
    ],
)
def test_the_last_download_says_when_it_is_warm(
    now: datetime, etas: list[float | None], missing_node: bool, eta: float | None
) -> None:
    pool = factories.pool()
    pin = factories.pin(pools=(pool,))
    for seconds in etas:
        copies(pool, pin, EntryState.DOWNLOADING, eta_seconds=seconds)
    if missing_node:
        factories.node(of=pool)
    assert status_of(now, pin).eta_seconds == eta


def test_a_silent_download_estimates_nothing(now: datetime) -> None:
    pool = factories.pool()
    pin = factories.pin(pools=(pool,))
    silent = factories.node(of=pool, reported_at=now - HOUR)
    factories.entry(on=silent, of=factories.version_of(pin).artifact, state=EntryState.DOWNLOADING, eta_seconds=10.0)
    assert status_of(now, pin).eta_seconds is None


def test_lost_nodes_and_their_copies_are_no_targets(now: datetime) -> None:
    pool = factories.pool()
    pin = factories.pin(pools=(pool,))
    factories.entry(on=factories.node(of=pool, lost_at=now), of=factories.version_of(pin).artifact)
    factories.node(of=pool)
    assert (status_of(now, pin).target, status_of(now, pin).ready) == (1, 0)


def refusal(pin: Pin, node: str) -> dict[str, Any]:
    detail = f"needs 1 GiB on {node}"
    return {"pin_id": str(pin.pk), "node": node, "reason": "InsufficientCapacity", "detail": detail, "artifact": "m v"}


@pytest.mark.parametrize(
    ("count", "message"),
    [
        (1, "needs 1 GiB on n0"),
        (2, "needs 1 GiB on n0 (and 1 more node)"),
        (4, "needs 1 GiB on n0 (and 3 more nodes)"),
    ],
)
def test_the_planners_refusals_are_told_in_words(now: datetime, count: int, message: str) -> None:
    pool = factories.pool()
    pin, other = factories.pin(pools=(pool,)), factories.pin(pools=(pool,))
    plan = {"refusals": [refusal(other, "x"), *(refusal(pin, f"n{number}") for number in range(count))]}
    PoolLoop.objects.create(pool=pool, plan=plan)
    found = admitted(now, pin)
    assert (found.status, found.reason, found.message) == ("False", "InsufficientCapacity", message)


def test_a_refusal_in_another_pool_of_the_pin_counts_too(now: datetime) -> None:
    first, second, foreign = factories.pool(), factories.pool(), factories.pool()
    pin, other = factories.pin(pools=(first, second)), factories.pin(pools=(foreign,))
    PoolLoop.objects.create(pool=first, plan={"refusals": []})
    PoolLoop.objects.create(pool=second, plan={"refusals": [refusal(pin, "n1")]})
    PoolLoop.objects.create(pool=foreign, plan=None)
    assert (admitted(now, pin).status, admitted(now, other).status) == ("False", "True")


@pytest.mark.parametrize(
    ("targets", "seen"),
    [
        (None, {"both", "second"}),
        (frozenset({"lab"}), {"both", "second"}),
        (frozenset({"lab.first"}), {"both"}),
        (frozenset({"lab.second"}), {"both", "second"}),
        (frozenset({"lab.first", "lab.second"}), {"both", "second"}),
        (frozenset({"lab.third"}), set()),
        (frozenset(), set()),
    ],
)
def test_a_pin_is_seen_once_by_whoever_sees_one_of_its_pools(now: datetime, targets: Any, seen: set[str]) -> None:
    lab = factories.cluster(name="lab")
    first, second = factories.pool(of=lab, name="first"), factories.pool(of=lab, name="second")
    factories.pin(of=factories.version(model="both"), pools=(first, second))
    factories.pin(of=factories.version(model="second"), pools=(second,))
    found = [factories.version_of(pin).model.name for pin in pins_list(targets=targets)]
    assert sorted(found) == sorted(seen)


def test_a_removed_or_unseen_pin_is_not_there(now: datetime) -> None:
    removed, there = factories.pin(removed_at=now), factories.pin()
    assert pin_get(pin_id=there.pk).pk == there.pk
    for pin_id, targets in ((removed.pk, None), (there.pk, frozenset({"elsewhere"})), (uuid4(), None)):
        with pytest.raises(Missing) as refused:
            pin_get(pin_id=pin_id, targets=targets)
        assert (refused.value.code, refused.value.status) == ("pin:user:not-found", 404)


def test_statuses_cost_the_same_for_one_pin_and_for_many(now: datetime, django_assert_num_queries: Any) -> None:
    pools = [factories.pool() for _ in range(3)]
    for _ in range(6):
        pin = factories.pin(pools=tuple(pools))
        for pool in pools:
            copies(pool, pin, EntryState.READY)
    few, many = list(pins_list()[:1]), list(pins_list())
    for pins in (few, many):
        with django_assert_num_queries(3):
            assert len(pin_statuses(pins, now=now)) == len(pins)
