"""Simulated fleets: many nodes on a real API server, without a machine behind any."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from controlplane.embedded.kube.api import ApiError, Document
from controlplane.embedded.kube.simulator import LABEL, SimulatedFleet
from tests.plugins.kube import KubeApi

pytestmark = pytest.mark.e2e


@pytest.fixture
def fleet(kube_api: KubeApi) -> Iterator[SimulatedFleet]:
    fleet = SimulatedFleet(kube_api.client, 100, prefix="simulated", labels={"pool": "harness"})
    fleet.create()
    yield fleet
    fleet.delete()


def _nodes(cluster: KubeApi) -> list[Document]:
    return list(cluster.client.get("/api/v1/nodes?labelSelector=pool%3Dharness")["items"])


def _ready(node: Document) -> str:
    return next(str(row["status"]) for row in node["status"]["conditions"] if row["type"] == "Ready")


def test_it_makes_many_ready_nodes(kube_api: KubeApi, fleet: SimulatedFleet) -> None:
    nodes = _nodes(kube_api)
    assert [node["metadata"]["name"] for node in nodes] == fleet.names
    assert {_ready(node) for node in nodes} == {"True"}
    assert {node["metadata"]["uid"] for node in nodes} == set(fleet.uids.values())
    assert all({"key": LABEL, "value": "true", "effect": "NoSchedule"} in node["spec"]["taints"] for node in nodes)


def test_it_says_which_nodes_are_ready(kube_api: KubeApi, fleet: SimulatedFleet) -> None:
    fleet.set_ready(False, fleet.names[:3])
    said = {node["metadata"]["name"]: _ready(node) for node in _nodes(kube_api)}
    assert [name for name, ready in said.items() if ready == "False"] == fleet.names[:3]


def test_it_replaces_a_node_by_another_uid(kube_api: KubeApi, fleet: SimulatedFleet) -> None:
    old = fleet.uids["simulated-0007"]
    new = fleet.replace("simulated-0007")
    assert new != old
    assert kube_api.client.get("/api/v1/nodes/simulated-0007")["metadata"]["uid"] == new


def test_it_raises_what_the_api_server_refuses(fleet: SimulatedFleet) -> None:
    with pytest.raises(ApiError) as refused:
        fleet.report("/apis/no.such.group/v1/things", lambda name: {})
    assert refused.value.status == 404
