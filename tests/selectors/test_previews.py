"""Why something is not warm, what goes next, and what would happen: asked of the planner, and nothing is written."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from caches.domain.plans import Check, MoveReason
from caches.models import CacheEntry, ModelVersion
from caches.selectors import previews
from caches.selectors.pool_view import pool_view
from caches.selectors.previews import node_forecast, pool_update_preview, unpin_preview, why_not_warm
from controlplane.clusters.documents import EntryState
from controlplane.clusters.models import Node, NodePool
from tests import factories
from tests.factories import MIB

HOUR = timedelta(hours=1)


@pytest.fixture
def version(now: datetime) -> ModelVersion:
    return factories.version(model="llama", version="v1")


def verdicts(version: ModelVersion, targets: Any = None) -> dict[tuple[str, str], bool | None]:
    return {(one.pool, one.node): one.warm for one in why_not_warm(version, targets=targets)}


def pool_named(cluster: str, name: str = "gpu") -> NodePool:
    return factories.pool(of=factories.cluster(name=cluster), name=name)


def test_a_version_that_nobody_pins_or_that_has_no_bytes_has_no_chain(version: ModelVersion) -> None:
    factories.entry(of=version.artifact)
    assert why_not_warm(version) == ()
    assert why_not_warm(factories.version(artifact=None)) == ()


@pytest.mark.parametrize(
    ("node", "state", "warm"),
    [
        ({}, EntryState.READY, True),
        ({}, EntryState.DOWNLOADING, False),
        ({}, EntryState.FAILED, False),
        ({}, None, False),
        ({"reported_at": None}, EntryState.READY, None),
        ({"ready": False}, None, False),
        ({"labels": {}}, None, False),
    ],
)
def test_it_says_of_each_node_whether_it_is_warm_and_why(
    version: ModelVersion, node: dict[str, Any], state: EntryState | None, warm: bool | None
) -> None:
    pool = pool_named("lab")
    factories.pin(of=version, pools=(pool,), node_selector=pool.selector)
    on = factories.node(of=pool, name="n1", **node)
    if state is not None:
        factories.entry(on=on, of=version.artifact, state=state)
    [found] = why_not_warm(version)
    assert (found.pool, found.node, found.node_id) == ("lab.gpu", "n1", on.pk)
    assert found.checks and all(check.detail for check in found.checks)
    if warm is None:
        assert found.warm is not True  # unknown is never warm
    else:
        assert found.warm == warm, found.checks


@pytest.mark.parametrize(
    ("passed", "warm"), [([True, True], True), ([True, None], None), ([None, False], False), ([False], False)]
)
def test_one_broken_link_breaks_the_chain_and_an_unknown_one_leaves_it_open(
    passed: list[bool | None], warm: bool | None
) -> None:
    assert previews._verdict([Check("x", one, "y") for one in passed]) is warm


def test_every_pool_that_pins_it_is_asked_and_no_other(version: ModelVersion) -> None:
    east, west, other = pool_named("east"), pool_named("west"), pool_named("other")
    factories.pin(of=version, pools=(east, west))
    for pool in (east, west, other):
        factories.node(of=pool, name="n1")
    assert verdicts(version) == {("east.gpu", "n1"): False, ("west.gpu", "n1"): False}
    assert set(verdicts(version, frozenset({"west"}))) == {("west.gpu", "n1")}
    assert verdicts(version, frozenset({"nowhere"})) == {}


def test_a_pin_of_another_version_with_the_same_bytes_is_a_reason_too(version: ModelVersion) -> None:
    twin = factories.version(artifact=version.artifact)
    pool = pool_named("lab")
    factories.pin(of=twin, pools=(pool,))
    factories.entry(on=factories.node(of=pool, name="n1"), of=version.artifact)
    assert verdicts(version) == {("lab.gpu", "n1"): True}


def test_a_removed_pin_is_no_reason(version: ModelVersion, now: datetime) -> None:
    pool = pool_named("lab")
    factories.pin(of=version, pools=(pool,), removed_at=now)
    factories.node(of=pool)
    assert why_not_warm(version) == ()


def test_a_predecessor_of_the_same_name_is_not_asked(version: ModelVersion, now: datetime) -> None:
    pool = pool_named("lab")
    factories.pin(of=version, pools=(pool,))
    gone = factories.node(of=pool, name="n1", lost_at=now)
    factories.entry(on=gone, of=version.artifact)
    here = factories.node(of=pool, name="n1")
    [found] = why_not_warm(version)
    assert (found.node_id, found.warm) == (here.pk, False)


def test_a_node_that_is_lost_between_two_queries_is_no_error(
    version: ModelVersion, monkeypatch: pytest.MonkeyPatch, now: datetime
) -> None:
    pool = pool_named("lab")
    factories.pin(of=version, pools=(pool,))
    factories.node(of=pool, name="n1")

    def then_lost(*args: Any, **kwargs: Any) -> Any:
        view = pool_view(*args, **kwargs)
        Node.objects.update(lost_at=now, pool=None)
        return view

    monkeypatch.setattr(previews, "pool_view", then_lost)
    assert verdicts(version) == {("lab.gpu", "n1"): False}


def test_nothing_goes_from_a_node_that_is_gone_or_in_no_pool(now: datetime) -> None:
    lost = factories.entry(on=factories.node(lost_at=now)).node
    loose = factories.entry().node
    loose.pool = None
    loose.save()
    assert node_forecast(lost) == node_forecast(loose) == ()


def test_what_was_not_used_for_longest_goes_next_and_what_is_pinned_last(now: datetime) -> None:
    pool = factories.pool()
    node = factories.node(of=pool)
    used: dict[str, CacheEntry] = {}
    for name, hours in (("yesterday", 24), ("today", 5), ("last-week", 170)):
        made = factories.version(model=name, version="v1")
        past = {"ready_at": now - 200 * HOUR, "last_used_at": now - hours * HOUR}
        used[name] = factories.entry(on=node, of=made.artifact, desired="", **past)
    pinned = factories.version(model="pinned", version="v1")
    factories.pin(of=pinned, pools=(pool,))
    factories.entry(on=node, of=pinned.artifact, ready_at=now - 900 * HOUR)
    forecast = node_forecast(node)
    assert [line.artifact for line in forecast] == ["last-week v1", "yesterday v1", "today v1", "pinned v1"]
    assert [line.rank for line in forecast] == [1, 2, 3, 4]
    assert [line.protected_by for line in forecast] == [None, None, None, "Pinned"]
    assert {line.bytes for line in forecast} == {100 * MIB}


def test_an_unpin_shows_that_nothing_more_is_fetched_and_writes_nothing(version: ModelVersion) -> None:
    pools = (pool_named("east"), pool_named("west"))
    pin = factories.pin(of=version, pools=pools)
    for pool in pools:
        factories.node(of=pool)
    before = [pool_update_preview(pool, {}) for pool in pools]
    assert [len(plan.moves) for plan in before] == [1, 1]
    assert [len(plan.moves) for plan in unpin_preview(pin)] == [0, 0]
    pin.refresh_from_db()
    assert pin.removed_at is None and not CacheEntry.objects.exists()


def test_other_settings_are_tried_on_a_copy(version: ModelVersion) -> None:
    pool = pool_named("lab")
    factories.pin(of=version, pools=(pool,))
    factories.node(of=pool)
    assert [move.reason for move in pool_update_preview(pool, {}).moves] == [MoveReason.PINNED]
    paused = pool_update_preview(pool, {"paused": True})
    assert ([wait.reason for wait in paused.waits], paused.moves) == (["Paused"], ())
    tight = pool_update_preview(pool, {"high_watermark": 0.05, "low_watermark": 0.04})
    assert [refusal.reason for refusal in tight.refusals] == ["InsufficientCapacity"]
    for _ in ("in memory", "stored"):
        assert (pool.paused, pool.high_watermark, pool.low_watermark) == (False, 0.85, 0.75)
        pool.refresh_from_db()


def test_an_empty_pool_has_an_empty_plan(now: datetime) -> None:
    plan = pool_update_preview(factories.pool(), {"max_downloads": 1})
    assert (plan.moves, plan.evictions, plan.refusals, plan.waits, plan.total_bytes) == ((), (), (), (), 0)
