"""What the planner is told is what the rows say: every field, nothing of other pools, in six queries at any size."""

from __future__ import annotations

from datetime import datetime, time, timedelta
from typing import Any

import pytest

from caches.domain.pool_view import (
    DailyWindow,
    EntryView,
    HoldView,
    NodeView,
    PinView,
    Placement,
    PlacementType,
    PoolPolicy,
    PoolView,
    Throughput,
)
from caches.models import ConsumerSeen, Transfer
from caches.selectors.pool_view import pool_policy, pool_view
from controlplane.clusters.documents import Action, EntryState, NodeState
from controlplane.clusters.models import Cluster, NodePool
from tests import factories
from tests.factories import MIB
from tests.selectors.fleets import SEEDS, random_fleet

HOUR = timedelta(hours=1)


def only_node(pool: NodePool, now: datetime) -> NodeView:
    [node] = pool_view(pool, now=now).nodes
    return node


def test_an_empty_pool_is_a_view_without_anything(now: datetime) -> None:
    pool = factories.pool(of=factories.cluster(name="lab"), name="gpu")
    assert pool_view(pool, now=now) == PoolView("lab", "gpu", pool_policy(pool), (), (), {})


def test_a_node_is_told_with_every_fact(now: datetime) -> None:
    orphans = [
        {"name": "sha256-" + "a" * 64, "bytes": 30, "partial": True},
        {"name": "old-tree", "bytes": 12, "partial": False},
    ]
    row = factories.node(labels={"zone": "a"}, schedulable=False, other_bytes=7, orphans=orphans)
    assert row.pool is not None
    assert only_node(row.pool, now) == NodeView(
        name=row.name,
        uid=row.uid,
        state=NodeState.CORDONED,
        labels={"zone": "a"},
        joined_at=row.joined_at,
        capacity_bytes=1000 * MIB,
        other_bytes=7,
        orphan_bytes=42,
        entries=(),
        in_use=frozenset(),
        partials={"sha256:" + "a" * 64: 30},
    )


def test_an_entry_is_told_with_every_fact(now: datetime) -> None:
    row = factories.entry(
        state=EntryState.FAILED,
        desired=Action.ENSURE,
        bytes_done=5,
        attempts=3,
        reason="AccessDenied",
        retry_at=now + HOUR,
        ready_at=now - HOUR,
        last_used_at=now - 2 * HOUR,
        evict_requested_at=now,
        verify_round=4,
        retry_round=6,
    )
    assert row.node.pool is not None
    [entry] = only_node(row.node.pool, now).entries
    assert entry == EntryView(
        digest=row.artifact.digest,
        state=EntryState.FAILED,
        size_bytes=row.artifact.size_bytes,
        bytes_on_disk=5,
        desired=Action.ENSURE,
        attempts=3,
        reason="AccessDenied",
        retry_at=now + HOUR,
        ready_at=now - HOUR,
        last_used_at=now - 2 * HOUR,
        evict_requested=True,
        verify_round=4,
        retry_round=6,
    )


def test_a_pin_is_told_with_every_fact(now: datetime) -> None:
    row = factories.pin(
        priority=900,
        placement_type="Percent",
        placement_value=40,
        spread_label="zone",
        node_selector={"gpu": "h100"},
        window_start=time(22),
        window_end=time(6, 30),
        window_time_zone="Europe/Berlin",
        needed_at=now + HOUR,
        suspended=True,
    )
    [pin] = pool_view(row.pools.get(), now=now).pins
    artifact = factories.version_of(row).artifact
    assert artifact is not None
    assert pin == PinView(
        id=str(row.pk),
        digest=artifact.digest,
        priority=900,
        created_at=row.created_at,
        placement=Placement(PlacementType.PERCENT, 40, "zone"),
        node_selector={"gpu": "h100"},
        window=DailyWindow(time(22), time(6, 30), "Europe/Berlin"),
        needed_at=now + HOUR,
        suspended=True,
    )


@pytest.mark.parametrize(
    ("fields", "window"),
    [
        ({}, None),
        ({"window_start": time(0)}, None),
        ({"window_start": time(0), "window_end": time(1)}, DailyWindow(time(0), time(1), "UTC")),
    ],
)
def test_a_window_needs_both_ends_and_is_in_utc_unless_it_says(now: datetime, fields: Any, window: Any) -> None:
    [pin] = pool_view(factories.pin(**fields).pools.get(), now=now).pins
    assert pin.window == window


def test_the_policy_is_the_pools_and_a_paused_cluster_pauses_it(now: datetime) -> None:
    pool = factories.pool(
        high_watermark=0.9,
        low_watermark=0.6,
        max_downloads_per_node=3,
        max_downloads=11,
        max_requests_per_node=5,
        node_bytes_per_second=1234,
        evict_grace_seconds=60,
        settle_seconds=5,
    )
    expected = PoolPolicy(0.9, 0.6, 3, 11, 5, 1234, timedelta(seconds=60), timedelta(seconds=5), paused=False)
    assert pool_policy(pool) == expected
    pool.cluster.paused = True
    assert pool_policy(pool).paused
    pool.cluster.paused, pool.paused = False, True
    assert pool_policy(pool).paused


def test_nothing_of_other_pools_or_lost_nodes_is_told(now: datetime) -> None:
    pool, twin = [factories.pool(of=factories.cluster(), name="gpu") for _ in range(2)]
    mine = factories.node(of=pool, name="n1", uid="uid-1")
    factories.node(of=twin, name="n1", uid="uid-1")
    factories.node(of=pool, name="n0", lost_at=now)
    pin, _ = factories.pin(pools=(pool,)), factories.pin(pools=(twin,))
    view = pool_view(pool, now=now)
    assert [(node.name, node.uid) for node in view.nodes] == [("n1", mine.uid)]
    assert [one.id for one in view.pins] == [str(pin.pk)]


def test_removed_pins_image_pins_and_versions_without_bytes_are_not_told(now: datetime) -> None:
    pool = factories.pool()
    factories.pin(pools=(pool,), removed_at=now)
    factories.pin(pools=(pool,), artifacts=["Image"])
    factories.pin(of=factories.version(artifact=None), pools=(pool,))
    there = factories.pin(pools=(pool,), artifacts=["Weights", "Image"])
    assert [pin.id for pin in pool_view(pool, now=now).pins] == [str(there.pk)]


def test_a_what_if_adds_and_leaves_out_pins(now: datetime) -> None:
    pool = factories.pool()
    first, second = factories.pin(pools=(pool,)), factories.pin(pools=(pool,))
    extra = PinView("new", factories.version().artifact.digest, 1, now)  # type: ignore[union-attr]
    view = pool_view(pool, now=now, extra_pins=(extra,), without_pins=(first.pk,))
    assert [pin.id for pin in view.pins] == [str(second.pk), "new"]
    assert extra.digest in view.artifacts


@pytest.mark.parametrize(
    ("state", "desired", "hold_in", "told", "known"),
    [
        (EntryState.READY, "", None, True, True),
        (EntryState.EVICTING, Action.EVICT, None, True, True),
        (EntryState.ABSENT, "", None, False, False),
        (EntryState.ABSENT, Action.ENSURE, None, False, True),
        (EntryState.LOST, "", None, False, False),
        (EntryState.ABSENT, "", HOUR, False, True),
        (EntryState.ABSENT, "", -HOUR, False, False),
    ],
)
def test_an_entry_that_is_gone_is_told_of_only_while_something_wants_it(
    now: datetime, state: EntryState, desired: str, hold_in: timedelta | None, told: bool, known: bool
) -> None:
    hold: dict[str, Any] = {"hold_reason": "Retention", "hold_until": now + hold_in} if hold_in else {}
    row = factories.entry(state=state, desired=desired, **hold)
    assert row.node.pool is not None
    view = pool_view(row.node.pool, now=now)
    assert bool(view.nodes[0].entries) == told
    assert (row.artifact.digest in view.artifacts) == known


@pytest.mark.parametrize(("until", "held"), [(None, True), (HOUR, True), (timedelta(0), False), (-HOUR, False)])
def test_a_hold_counts_until_its_end(now: datetime, until: timedelta | None, held: bool) -> None:
    end = None if until is None else now + until
    row = factories.entry(hold_reason="Rollback", hold_until=end)
    assert row.node.pool is not None
    expected = (HoldView(row.artifact.digest, "Rollback", end, frozenset({row.node.uid})),) if held else ()
    assert pool_view(row.node.pool, now=now).holds == expected


def test_an_end_without_a_reason_is_no_hold(now: datetime) -> None:
    row = factories.entry(hold_until=now + HOUR)
    assert row.node.pool is not None
    assert pool_view(row.node.pool, now=now).holds == ()


def test_bytes_that_lost_their_versions_can_be_kept_and_evicted_but_not_fetched(now: datetime) -> None:
    row = factories.entry()
    assert row.node.pool is not None
    facts = pool_view(row.node.pool, now=now).artifacts[row.artifact.digest]
    assert (facts.name, facts.connection, facts.uri) == (row.artifact.digest[:19], "", "")


def test_an_unfinished_tree_is_known_by_its_artifact(now: datetime) -> None:
    version = factories.version()
    assert version.artifact is not None
    name = version.artifact.digest.replace(":", "-", 1)
    node = factories.node(orphans=[{"name": name, "bytes": 9, "partial": True}])
    assert node.pool is not None
    assert version.artifact.digest in pool_view(node.pool, now=now).artifacts


def consume(node: Any, uid: str, *digests: str) -> None:
    ConsumerSeen.objects.create(node=node, uid=uid, name=uid, digests=list(digests), observed_at=node.observed_at)


def test_what_consumers_mount_is_in_use(now: datetime) -> None:
    pool = factories.pool()
    busy = factories.node(of=pool, name="a")
    factories.node(of=pool, name="b")
    consume(busy, "one", "sha256:1", "sha256:2")
    consume(busy, "two", "sha256:2")
    in_use = [node.in_use for node in pool_view(pool, now=now).nodes]
    assert in_use == [frozenset({"sha256:1", "sha256:2"}), frozenset()]


@pytest.mark.parametrize("seen", [None, HOUR])
def test_who_uses_what_is_unknown_while_the_cluster_is_not_heard(now: datetime, seen: timedelta | None) -> None:
    node = factories.node()
    consume(node, "one", "sha256:1")
    Cluster.objects.update(observed_at=None if seen is None else now - seen)
    pool = NodePool.objects.select_related("cluster").get()
    assert only_node(pool, now).in_use is None


def test_rates_of_all_sources_come_with_the_view(now: datetime) -> None:
    version = factories.version()
    row = factories.entry(of=version.artifact)
    Transfer.objects.create(
        entry=row, connection=version.connection, bytes_moved=100 * MIB, seconds=50, ended_at=now - HOUR
    )
    assert row.node.pool is not None
    assert pool_view(row.node.pool, now=now).throughput == {version.connection.name: Throughput(2.0 * MIB, 1)}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_pool_is_told_as_it_is_stored(now: datetime, seed: int) -> None:
    fleet = random_fleet(seed, now)
    for pool in fleet.pools:
        view = pool_view(pool, now=now)
        live = sorted(fleet.live(pool), key=lambda node: node.name)
        assert [node.uid for node in view.nodes] == [node.uid for node in live]
        assert {pin.id for pin in view.pins} == {str(pin.pk) for pin in fleet.pins_of(pool)}
        for node, told in zip(live, view.nodes, strict=True):
            mine = [entry for (node_id, _), entry in fleet.entries.items() if node_id == node.pk]
            there = {(e.artifact.digest, e.state, e.bytes_done) for e in mine if e.state not in ("Absent", "Lost")}
            assert {(e.digest, e.state.value, e.bytes_on_disk) for e in told.entries} == there
            assert told.capacity_bytes == node.capacity_bytes
        wanted = {entry.digest for node in view.nodes for entry in node.entries} | {pin.digest for pin in view.pins}
        assert wanted <= set(view.artifacts)


def test_a_view_costs_the_same_queries_for_any_number_of_nodes(now: datetime, django_assert_num_queries: Any) -> None:
    pool = factories.pool()

    def grow(count: int) -> None:
        for _ in range(count):
            pin = factories.pin(pools=(pool,))
            consume(factories.node(of=pool), "one", "sha256:1")
            factories.entry(on=factories.node(of=pool), of=factories.version_of(pin).artifact)

    grow(1)
    with django_assert_num_queries(6):
        pool_view(pool, now=now)
    grow(8)
    with django_assert_num_queries(6):
        assert len(pool_view(pool, now=now).nodes) == 18
