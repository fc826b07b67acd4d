"""``make bench``: a thousand simulated nodes with twenty artifacts each on a real API server. Of time it asserts only
that no round comes near a task's limit.

``HEARTH_BENCH_NODES`` changes the size. The API server and the agents share the machine: figures are of all of it.
"""

from __future__ import annotations

import os
import resource
import tracemalloc
from collections.abc import Callable, Iterator

import pytest
from django.conf import LazySettings

from caches.services.loop.rounds import pool_reconcile
from controlplane.clusters.models import Cluster
from controlplane.embedded.kube.cluster import KubeCluster
from tests.contracts.kube import KubeContractCluster, kube_contract
from tests.kube.fleets import Figures, measured, pin_versions, ready, rounds, stopping_after
from tests.kube.world import KubeWorld
from tests.waiting import until

pytestmark = [pytest.mark.bench, pytest.mark.django_db(transaction=True)]

NODES = int(os.environ.get("HEARTH_BENCH_NODES", "1000"))
ARTIFACTS = 20
MIB = 1024 * 1024
LIMIT = 45.0  # seconds: the soft limit of a task


@pytest.fixture
def contract(own_kube_api: KubeCluster) -> Iterator[KubeContractCluster]:
    with kube_contract(own_kube_api) as made:
        yield made


@pytest.fixture
def world(
    contract: KubeContractCluster, own_kube_api: KubeCluster, settings: LazySettings, monkeypatch: pytest.MonkeyPatch
) -> KubeWorld:
    settings.AGENT_IMAGE = "registry.invalid/hearth@sha256:" + "0" * 64
    settings.SCHEDULING_LAG_SECONDS = 0.0
    monkeypatch.setattr("controlplane.celery.publish", lambda task, *ids, countdown=0.0: True)
    monkeypatch.setattr("caches.services.loop.rounds.publish", lambda task, *ids, countdown=0.0: True)
    # Agents report when they are told to: on a busy machine minutes pass, and none of them is silent for that.
    return KubeWorld(
        own_kube_api,
        nodes=NODES,
        watch=True,
        max_downloads=100_000,
        max_downloads_per_node=64,
        freshness_seconds=7200.0,
    )


def test_a_thousand_nodes(world: KubeWorld, own_kube_api: KubeCluster, capsys: pytest.CaptureFixture[str]) -> None:
    figures: Figures = {}
    longest: list[float] = []
    pin_versions(world, ARTIFACTS)

    def step(what: str, work: Callable[[], object]) -> None:
        with measured(world, what, figures):
            done = work()
        if isinstance(done, list):
            figures[what] += f"  {len(done)} rounds, the longest {max(done):.1f} s"
            longest.extend(done)

    step("agents' first reports (not Hearth)", world.report_all)
    step("listing: nodes, NodeCaches, consumers", world.observe)
    with stopping_after(world, NODES // 2, own_kube_api.stop_api_server):
        step("until its API server is killed in the middle", lambda: _until_unanswered(world))
    own_kube_api.start_api_server()
    until(world.answers, "its storage is ready", seconds=300)
    step("first rounds: the rest", lambda: rounds(world))
    assert set(world.generations().values()) == {2}, "the agents made them; Hearth wrote each once"
    step("agents obey (not Hearth)", world.obey)
    step("listing with all statuses", world.observe)
    assert ready(world) == NODES * ARTIFACTS
    step("ready-labels", lambda: rounds(world))
    step("a quiet round before the watcher tells", lambda: rounds(world))
    step("listing", world.observe)
    step("a quiet round", lambda: rounds(world))
    lost = world.names[0]
    world.held[lost].popitem()
    world.report(lost)
    step("listing after one change", world.observe)
    step("the round after one change", lambda: rounds(world))

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    _watch(world, own_kube_api, lost, figures)
    figures["process: most memory"] = f"{before} MiB before the watcher"
    assert set(world.generations().values()) == {2}, "nothing was applied twice"
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    with capsys.disabled():
        print(f"\n{NODES} nodes x {ARTIFACTS} artifacts; load of the machine at the end {load}")
        for what, figure in figures.items():
            print(f"  {what:48} {figure}")
    assert max(longest) < LIMIT, "a round must end long before a task has to"


def _until_unanswered(world: KubeWorld) -> None:
    while pool_reconcile(pool_id=world.pool.pk) is not None:
        assert world.loop().wanted_round > world.loop().done_round, "it was told everything before"


def _watch(world: KubeWorld, kube: KubeCluster, lost: str, figures: Figures) -> None:
    Cluster.objects.update(observed_at=None)
    tracemalloc.start()
    with world.watched():
        until(lambda: _heard(world), "the watcher has listed all", seconds=300)
        figures["watcher: memory"] = f"{tracemalloc.get_traced_memory()[0] / MIB:.0f} MiB held, " + (
            f"{tracemalloc.get_traced_memory()[1] / MIB:.0f} MiB at most while it listed"
        )
        tracemalloc.stop()
        world.obey(lost)
        with measured(world, "watched: one change until its row", figures):
            until(lambda: ready(world) == NODES * ARTIFACTS, "the change is told", seconds=300, every=0.01)
        kube.stop_api_server()
        pool_reconcile(pool_id=world.pool.pk)
        kube.start_api_server()
        with measured(world, "restarted API server: until the cluster is well", figures):
            until(lambda: _well(world), "the watcher is back", seconds=300)


def _heard(world: KubeWorld) -> bool:
    world.cluster.refresh_from_db()
    return world.cluster.observed_at is not None and world.cluster.error == ""


def _well(world: KubeWorld) -> bool:
    world.cluster.refresh_from_db()
    return world.cluster.error == ""
