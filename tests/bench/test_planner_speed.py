"""How long a plan of a large pool takes: the loop runs one for every change, a person waits for a dry run."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from caches.domain.planning import explain, forecast, plan
from caches.domain.pool_view import PoolView
from controlplane.clusters.documents import EntryState
from tests.domain.world import NOW, count, entry, measured, node, percent, pin, view

NODES, ARTIFACTS = 1000, 40
SIZES = {f"d{i}": 10 + i for i in range(ARTIFACTS)}

pytestmark = pytest.mark.bench


def _pool(warm: int, capacity: int) -> PoolView:
    """A thousand nodes with the first ``warm`` artifacts, most of them Ready, on disks of ``capacity`` GB."""
    nodes = []
    for number in range(NODES):
        held = []
        for name, size in list(SIZES.items())[:warm]:
            arriving = (number + size) % 10 == 0
            state = EntryState.DOWNLOADING if arriving else EntryState.READY
            held.append(entry(name, state, size))
        nodes.append(node(f"n{number:04}", *held, capacity=capacity, labels={"zone": str(number % 3)}))
    pins = [pin(name, 100 + number % 7) for number, name in enumerate(SIZES)]
    pins[0] = replace(pins[0], placement=count(100, "zone"))
    pins[-1] = replace(pins[-1], placement=percent(30))
    policy = {"max_downloads": 200, "max_downloads_per_node": 4}
    return view(nodes, pins, SIZES, throughput=measured(), with_policy=policy)


@pytest.mark.parametrize(
    ("name", "warm", "capacity"),
    [
        ("cold", 0, 2000),
        ("half warm", 20, 2000),
        ("all warm", 40, 2000),
        ("full disks", 20, 500),
        ("tiny disks", 0, 100),
    ],
)
def test_it_plans_a_thousand_nodes_with_forty_artifacts(name: str, warm: int, capacity: int) -> None:
    world = _pool(warm, capacity)
    seconds = []
    for _ in range(3):
        started = time.perf_counter()
        made = plan(world, NOW)
        seconds.append(time.perf_counter() - started)
    lines = sum(len(items) for items in made.desired.values())
    print(
        f"\n{name}: {min(seconds):.2f} s, {lines} lines, {len(made.moves)} moves, {len(made.evictions)} evictions, "
        f"{len(made.refusals)} refusals, {len(made.waits)} waits"
    )
    assert lines + len(made.refusals) + len(made.waits) >= NODES


def test_it_explains_and_forecasts_one_node_of_a_thousand() -> None:
    world = _pool(20, 500)
    started = time.perf_counter()
    checks = explain(world, "d30", "uid-n0500", NOW)
    middle = time.perf_counter()
    rows = forecast(world, "uid-n0500", NOW)
    print(f"\nexplain {middle - started:.2f} s, forecast {time.perf_counter() - middle:.2f} s")
    assert checks and rows
