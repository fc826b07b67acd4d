"""A hundred nodes with twenty artifacts each on a real API server: what it costs, and an API server that restarts."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import pytest

from caches.domain.labels import ready_label
from caches.services.loop.rounds import pool_reconcile
from controlplane.clusters.kubernetes.gateway import KubernetesGateway
from tests.kube.fleets import pin_versions, ready
from tests.kube.world import KubeWorld, sent
from tests.plugins.kube import KubeApi
from tests.waiting import until

pytestmark = pytest.mark.django_db

NODES, ARTIFACTS = 100, 20
FEW = 30


@pytest.fixture
def world(make_world: Callable[..., KubeWorld]) -> KubeWorld:
    return make_world(nodes=NODES, max_downloads=10_000, max_downloads_per_node=64)


def test_a_fleet_becomes_warm_in_few_requests(world: KubeWorld) -> None:
    versions = pin_versions(world, ARTIFACTS)
    world.report_all()
    world.observe()
    client = world.gateway.client  # type: ignore[attr-defined]
    count = sent(client)
    world.reconcile()
    first = count()
    assert first["PATCH"] <= 2 * NODES + 1, "for each node its pool's label and its spec, and one for the agents"
    assert first["POST"] == ARTIFACTS
    assert first["GET"] <= ARTIFACTS + 5
    assert set(world.generations().values()) == {2}, "the agents made them; Hearth wrote each once"

    world.obey()
    world.observe()
    assert ready(world) == NODES * ARTIFACTS
    count = sent(client)
    world.reconcile()
    assert count() == {"PATCH": NODES}, "one for the labels of each node, however many labels"
    labels = {ready_label(version.artifact.digest) for version in versions}
    assert all(labels <= world.labels(name).keys() for name in world.names[::10])

    world.observe()
    count = sent(client)
    world.reconcile()
    assert count() == {}, "nothing is said twice"

    # One copy is lost on one node: as many requests as on a fleet of one.
    first_name = world.names[0]
    lost = versions[0].artifact.digest
    del world.held[first_name][lost]
    world.report(first_name)
    world.observe()
    count = sent(client)
    world.reconcile()
    assert count() == {"PATCH": 1}
    assert ready_label(lost) not in world.labels(first_name)
    assert set(world.generations().values()) == {2}


def test_an_api_server_that_restarts_in_the_middle_costs_a_repeat(
    make_world: Callable[..., KubeWorld], kube_api: KubeApi
) -> None:
    world, nodes = make_world(nodes=FEW, max_downloads=10_000, max_downloads_per_node=64), FEW
    pin_versions(world, 3)
    world.report_all()
    world.observe()
    real = world.gateway.apply_node_cache
    calls, told = itertools.count(1), []
    stopped = threading.Event()

    def apply(spec: Any, *, take_over: bool = False) -> int:
        told.append(number := next(calls))
        if number == nodes // 2:
            kube_api.stop_api_server()
            stopped.set()
        elif number > nodes // 2:  # beside it: while the server says goodbye it still takes what it is told
            assert stopped.wait(120)
        return real(spec, take_over=take_over)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world.gateway, "apply_node_cache", apply)
        assert pool_reconcile(pool_id=world.pool.pk) is None
    assert stopped.is_set() and len(told) < nodes, "a cluster that does not answer is not asked on"
    assert "Unreachable" in world.loop().error
    kube_api.start_api_server()
    until(world.answers, "its storage is ready: it says 429 before")
    written = {name for name, generation in world.generations().items() if generation == 2}
    assert 0 < len(written) < nodes

    world.observe()
    assert isinstance(world.gateway, KubernetesGateway)
    count = sent(world.gateway.client)
    world.reconcile()
    assert count()["PATCH"] <= nodes - len(written) + 10, "what was written and remembered is not written again"
    assert set(world.generations().values()) == {2}
    world.obey()
    world.observe()
    assert ready(world) == nodes * 3
