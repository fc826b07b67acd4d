"""Clusters, pools and nodes: SQL and Python agree on every state, what is free, what is needed, and who sees what."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest

from caches.selectors.coverage_rows import counted_state
from caches.selectors.nodes import (
    NodeCoverage,
    clusters_list,
    free_bytes,
    last_known,
    node_coverage,
    nodes_list,
    pools_list,
)  # fmt: skip
from controlplane.clusters.documents import EntryState, NodeState
from controlplane.clusters.freshness import node_state
from controlplane.clusters.models import Node, NodePool
from tests import factories
from tests.factories import MIB

FRESHNESS = 90.0


def every_node(pool: NodePool, now: datetime) -> Iterator[Node]:
    """One node for each combination of facts; times fall on, just before and just after the limit."""
    limit = timedelta(seconds=FRESHNESS)
    tick = timedelta(microseconds=1)
    times = (None, now, now - limit, now - limit - tick, now + limit)
    ends = (None, now)
    facts = itertools.product((True, False, None), (True, False), times, times, ends, ends)
    for number, (ready, schedulable, observed_at, reported_at, terminating_at, lost_at) in enumerate(facts):
        yield Node(
            cluster=pool.cluster,
            pool=pool,
            name=f"n{number}",
            uid=f"uid-{number}",
            ready=ready,
            schedulable=schedulable,
            joined_at=now,
            observed_at=observed_at,
            reported_at=reported_at,
            terminating_at=terminating_at,
            lost_at=lost_at,
        )


def test_the_database_and_the_domain_agree_on_every_state(now: datetime) -> None:
    pool = factories.pool(freshness_seconds=FRESHNESS)
    Node.objects.bulk_create(every_node(pool, now))
    found = {row.shown_state for row in nodes_list(now=now)}  # type: ignore[attr-defined]
    assert found == {state.value for state in NodeState}
    for row in nodes_list(now=now):
        expected = node_state(
            ready=row.ready,
            schedulable=row.schedulable,
            observed_at=row.observed_at,
            reported_at=row.reported_at,
            lost_at=row.lost_at,
            freshness_seconds=FRESHNESS,
            now=now,
            terminating=row.terminating_at is not None,
        )
        facts = (row.ready, row.schedulable, row.observed_at, row.reported_at, row.terminating_at, row.lost_at)
        assert row.shown_state == expected, facts  # type: ignore[attr-defined]
        assert row.silent == (counted_state(row, pool, now) is NodeState.UNKNOWN), facts  # type: ignore[attr-defined]


def test_a_node_of_no_pool_has_the_default_limit(now: datetime) -> None:
    on_the_limit = factories.node(reported_at=now - timedelta(seconds=120))
    beyond = factories.node(reported_at=now - timedelta(seconds=121))
    Node.objects.update(pool=None)
    states = {row.pk: row.shown_state for row in nodes_list(now=now)}  # type: ignore[attr-defined]
    assert states == {on_the_limit.pk: "Ready", beyond.pk: "Unknown"}


@pytest.mark.parametrize(
    ("ready", "schedulable", "known"),
    [
        (None, True, None),
        (False, True, "NotReady"),
        (False, False, "NotReady"),
        (True, True, "Ready"),
        (True, False, "Cordoned"),
    ],
)
def test_it_remembers_what_an_unknown_node_last_was(ready: bool | None, schedulable: bool, known: str | None) -> None:
    assert last_known(Node(ready=ready, schedulable=schedulable)) == known


@pytest.mark.parametrize(
    ("capacity", "used", "other", "free"),
    [
        (None, 5, 5, None),
        (0, 0, 0, 0),
        (100, 30, 20, 50),
        (100, 100, 0, 0),
        (100, 90, 90, 0),  # a disk that shrank, or two measurements that do not fit together
        (2**62, 1, 1, 2**62 - 2),
    ],
)
def test_it_says_what_is_free(capacity: int | None, used: int, other: int, free: int | None) -> None:
    assert free_bytes(Node(capacity_bytes=capacity, used_bytes=used, other_bytes=other)) == free


def coverage_of(node: Node, now: datetime) -> NodeCoverage:
    return node_coverage(list(nodes_list(now=now).filter(pk=node.pk)))[node.pk]


def test_a_node_needs_what_pins_for_all_nodes_of_its_pool_want(now: datetime) -> None:
    pool = factories.pool()
    node, elsewhere = factories.node(of=pool), factories.node()
    here, missing = factories.version(), factories.version()
    for version in (here, missing):
        factories.pin(of=version, pools=(pool,))
    factories.entry(on=node, of=here.artifact)
    assert coverage_of(node, now) == NodeCoverage(2, 1, 200 * MIB, 100 * MIB)
    assert coverage_of(elsewhere, now) == NodeCoverage()


def test_a_node_needs_what_a_count_chose_for_it_and_nothing_that_it_did_not(now: datetime) -> None:
    pool = factories.pool()
    chosen, other = factories.node(of=pool), factories.node(of=pool)
    pin = factories.pin(pools=(pool,), placement_type="Count", placement_value=1)
    factories.entry(on=chosen, of=factories.version_of(pin).artifact, state=EntryState.QUEUED)
    factories.entry(on=other, of=factories.version_of(pin).artifact, desired="")
    assert coverage_of(chosen, now).required == 1
    assert coverage_of(other, now).required == 0


@pytest.mark.parametrize(
    ("labels", "required"), [({"zone": "a"}, 1), ({"zone": "b"}, 0), ({}, 0), ({"zone": "a", "gpu": "h100"}, 1)]
)
def test_a_selector_needs_each_of_its_labels(now: datetime, labels: dict[str, str], required: int) -> None:
    node = factories.node(labels=labels)
    assert node.pool is not None
    factories.pin(pools=(node.pool,), node_selector={"zone": "a"})
    assert coverage_of(node, now).required == required


@pytest.mark.parametrize(
    "facts",
    [
        {"reported_at": None},
        {"reported_at": datetime.fromisoformat("2020-01-01T00:00:00+00:00")},
        {"observed_at": datetime.fromisoformat("2020-01-01T00:00:00+00:00")},
        {"ready": None},
        {"ready": False, "reported_at": None},
    ],
)
def test_what_a_silent_node_held_is_required_and_not_ready(now: datetime, facts: dict[str, Any]) -> None:
    node = factories.node(**facts)
    assert node.pool is not None
    pin = factories.pin(pools=(node.pool,))
    factories.entry(on=node, of=factories.version_of(pin).artifact)
    assert coverage_of(node, now) == NodeCoverage(1, 0, 100 * MIB, 0)


def test_a_lost_node_needs_nothing(now: datetime) -> None:
    node = factories.node(lost_at=now)
    assert node.pool is not None
    pin = factories.pin(pools=(node.pool,))
    factories.entry(on=node, of=factories.version_of(pin).artifact)
    assert coverage_of(node, now) == NodeCoverage()


def test_a_removed_pin_and_one_without_bytes_need_nothing(now: datetime) -> None:
    node = factories.node()
    assert node.pool is not None
    factories.pin(pools=(node.pool,), removed_at=now)
    factories.pin(of=factories.version(artifact=None), pools=(node.pool,))
    assert coverage_of(node, now).required == 0


def test_versions_that_share_bytes_are_needed_once_on_a_node(now: datetime) -> None:
    node, shared = factories.node(), factories.artifact(size_bytes=7)
    assert node.pool is not None
    for _ in range(2):
        factories.pin(of=factories.version(artifact=shared), pools=(node.pool,))
    factories.entry(on=node, of=shared)
    assert coverage_of(node, now) == NodeCoverage(1, 1, 7, 7)


def test_no_nodes_have_no_coverage(now: datetime) -> None:
    assert node_coverage([]) == {}


def test_live_nodes_are_counted_for_clusters_and_pools(now: datetime) -> None:
    cluster = factories.cluster(name="lab")
    pool, empty = factories.pool(of=cluster, name="gpu"), factories.pool(of=cluster, name="spare")
    factories.node(of=pool)
    factories.node(of=pool, reported_at=None)
    factories.node(of=pool, lost_at=now)
    loose = factories.node(of=pool)
    Node.objects.filter(pk=loose.pk).update(pool=None)
    assert [row.nodes_count for row in clusters_list()] == [3]  # type: ignore[attr-defined]
    counts = {row.pk: row.nodes_count for row in pools_list()}  # type: ignore[attr-defined]
    assert counts == {pool.pk: 2, empty.pk: 0}


@pytest.mark.parametrize(
    ("targets", "clusters", "pools"),
    [
        (None, {"one", "two"}, {"one.gpu", "two.gpu", "two.cpu"}),
        (frozenset(), set(), set()),
        (frozenset({"two"}), {"two"}, {"two.gpu", "two.cpu"}),
        (frozenset({"two.cpu"}), {"two"}, {"two.cpu"}),
        (frozenset({"gpu"}), set(), set()),  # a pool's name alone is no target
        (frozenset({"one.gpu", "two.gpu"}), {"one", "two"}, {"one.gpu", "two.gpu"}),
    ],
)
def test_pools_of_one_name_in_two_clusters_are_seen_apart(
    now: datetime, targets: Any, clusters: set[str], pools: set[str]
) -> None:
    one, two = factories.cluster(name="one"), factories.cluster(name="two")
    for cluster, name in ((one, "gpu"), (two, "gpu"), (two, "cpu")):
        factories.node(of=factories.pool(of=cluster, name=name), name=f"{name}-1")
    assert {row.name for row in clusters_list(targets=targets)} == clusters
    assert {row.full_name for row in pools_list(targets=targets)} == pools
    nodes = nodes_list(targets=targets, now=now)
    assert {row.pool.full_name for row in nodes if row.pool is not None} == pools


def test_unicode_labels_and_huge_disks_do_not_matter(now: datetime) -> None:
    node = factories.node(labels={"zone": "köln-😀"}, capacity_bytes=2**63 - 1)
    assert node.pool is not None
    huge, *others = [factories.artifact(size_bytes=2**60) for _ in range(3)]
    for artifact in (huge, *others):
        version = factories.version(artifact=artifact)
        factories.pin(of=version, pools=(node.pool,), node_selector={"zone": "köln-😀"})
    factories.entry(on=node, of=huge)
    assert coverage_of(node, now) == NodeCoverage(3, 1, 3 * 2**60, 2**60)
