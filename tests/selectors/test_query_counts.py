"""Every selector costs the same number of queries for a small fleet and for one that is many times its size."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from caches.models import Pin, Transfer
from caches.selectors import overview
from caches.selectors.catalogue import connections_list, models_list, versions_list
from caches.selectors.coverage import pools_coverage
from caches.selectors.entries import artifact_name, entries_list
from caches.selectors.health import fleet_health
from caches.selectors.launches.trials import versions_to_try
from caches.selectors.matrix import pool_matrix
from caches.selectors.nodes import clusters_list, node_coverage, nodes_list, pools_list
from caches.selectors.pins import pin_statuses, pins_list
from caches.selectors.pool_view import pool_view
from caches.selectors.previews import node_forecast, why_not_warm
from caches.selectors.store_rates import store_rates_shared
from caches.selectors.transfers import throughput_by_connection
from controlplane.clusters.documents import ConnectionSpec, EntryState, SourceType
from controlplane.clusters.models import Node, NodePool
from tests import factories
from tests.factories import MIB

LIMITED = {"s": ConnectionSpec(name="s", type=SourceType.S3, bytes_per_second=10_000)}


def first_pool() -> NodePool:
    return NodePool.objects.select_related("cluster").order_by("id")[0]


# What pages and REST do with the rows counts too: the names of an entry's versions, a node's pool.
SELECTORS: dict[str, tuple[int, Callable[[datetime], Any]]] = {
    "clusters": (1, lambda now: [row.name for row in clusters_list()]),
    "pools": (1, lambda now: [row.full_name for row in pools_list()]),
    "nodes": (1, lambda now: [row.pool.full_name for row in nodes_list(now=now) if row.pool]),
    "nodes and their coverage": (4, lambda now: node_coverage(list(nodes_list(now=now)))),
    "entries": (2, lambda now: [(artifact_name(row), row.node.cluster.name) for row in entries_list(now=now)]),
    "pins and their statuses": (5, lambda now: pin_statuses(list(pins_list()), now=now)),
    "connections": (1, lambda now: list(connections_list())),
    "models": (1, lambda now: list(models_list())),
    "versions": (1, lambda now: [row.full_name for row in versions_list()]),
    "coverage": (6, lambda now: pools_coverage(now=now)),
    "matrix": (6, lambda now: pool_matrix(first_pool(), now=now)),
    "pool view": (7, lambda now: pool_view(first_pool(), now=now)),
    "health": (5, lambda now: fleet_health(now=now)),
    "health while all are silent": (12, lambda now: fleet_health(now=now + timedelta(hours=1))),
    "flow": (1, lambda now: overview.flow(now=now)),
    "disks": (1, lambda now: overview.disks_filling(now=now)),
    "versions to try": (1, lambda now: [row.full_name for row in versions_to_try()]),
    "throughput": (1, lambda now: throughput_by_connection(now=now)),
    "store rates": (2, lambda now: store_rates_shared(LIMITED)),
}
# One view of each pool that pins the version; a forecast is about one node.
BY_POOL: dict[str, Callable[[datetime], Any]] = {
    "why": lambda now: why_not_warm(factories.version_of(Pin.objects.order_by("id")[0])),
    "forecast": lambda now: node_forecast(Node.objects.order_by("id")[0]),
}


def grow(now: datetime, *, pools: int, nodes: int, versions: int) -> None:
    """Pools in clusters of their own, all versions pinned to all of them, and a copy of each on each node."""
    made = [factories.pool() for _ in range(pools)]
    machines = [factories.node(of=pool) for pool in made for _ in range(nodes)]
    for number in range(versions):
        version = factories.version()
        placement = {"placement_type": "Count", "placement_value": 1} if number % 2 else {}
        factories.pin(of=version, pools=tuple(made), **placement)
        for machine in machines:
            state = EntryState.READY if number % 2 else EntryState.DOWNLOADING
            entry = factories.entry(on=machine, of=version.artifact, state=state)
        Transfer.objects.create(
            entry=entry,
            connection=version.connection,
            bytes_moved=9 * MIB,
            seconds=1,
            ended_at=now - timedelta(hours=1),
        )


def queries(ask: Callable[[datetime], Any], now: datetime) -> int:
    with CaptureQueriesContext(connection) as captured:
        ask(now)
    return len(captured)


def test_queries_do_not_grow_with_the_fleet(now: datetime) -> None:
    grow(now, pools=1, nodes=1, versions=2)
    small = {name: queries(ask, now) for name, (_, ask) in SELECTORS.items()}
    few = {name: queries(ask, now) for name, ask in BY_POOL.items()}
    grow(now, pools=1, nodes=5, versions=6)
    assert {name: queries(ask, now) for name, ask in BY_POOL.items()} == few
    grow(now, pools=3, nodes=3, versions=4)
    large = {name: queries(ask, now) for name, (_, ask) in SELECTORS.items()}
    assert small == large == {name: count for name, (count, _) in SELECTORS.items()}


@pytest.mark.parametrize("name", SELECTORS)
def test_an_empty_control_plane_answers_without_an_error(now: datetime, name: str) -> None:
    if name in ("matrix", "pool view"):
        factories.pool()
    expected, ask = SELECTORS[name]
    assert queries(ask, now) <= expected
