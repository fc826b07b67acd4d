"""Which nodes an endpoint's document means, which folder of theirs, and what is said where no pin can mean them."""

from __future__ import annotations

from typing import Any

import pytest

from controlplane.operations.models import Operation, OperationKind, OperationTarget
from tests import factories
from tests.services.endpoints import EndpointWorld

pytestmark = pytest.mark.django_db


def test_nodes_of_the_instance_type_are_the_targets(served: EndpointWorld) -> None:
    node = served.world.node("n1")
    labels = {"node.kubernetes.io/instance-type": "ml.g5.24xlarge"}
    served.world.gateway.set_node_labels(node.name, node.uid, labels)
    served.world.observe()
    served.version()
    served.apply(spec__instanceType="ml.g5.24xlarge")
    served.round()
    [pin] = served.pins
    assert pin.node_selector == labels
    served.warm("n1")
    served.round()
    assert len(served.gateway.deployments) == 1
    assert set(served.world.desired("n2")) == set(), "and nothing is brought to another node"


TYPE = "node.kubernetes.io/instance-type"


@pytest.mark.parametrize(
    "placement",
    [
        {"spec__instanceTypes": ["ml.p5.48xlarge", "ml.g5.24xlarge"]},
        {"spec__nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": TYPE, "operator": "In", "values": ["ml.g5.24xlarge", "ml.p5.48xlarge"]}]},
        ]}}},
    ],
)  # fmt: skip
def test_nodes_of_any_type_of_a_list_are_targets(served: EndpointWorld, placement: dict[str, Any]) -> None:
    for name, instance in (("n1", "ml.g5.24xlarge"), ("n2", "ml.p5.48xlarge")):
        node = served.world.node(name)
        served.world.gateway.set_node_labels(node.name, node.uid, {TYPE: instance})
    served.world.observe()
    version = served.version()
    served.apply(**placement)
    served.round()
    served.warm("n1")
    served.round()
    assert served.condition("RolledOut")[2] == "1 of 2 ready." and served.gateway.deployments == []
    served.warm("n2")
    served.round()
    assert len(served.gateway.deployments) == 1 and served.entries(version) == {"n1": "Ready", "n2": "Ready"}
    served.world.observe()
    served.delete()
    served.round()
    [removal] = Operation.objects.filter(kind=OperationKind.PIN_REMOVE)
    assert OperationTarget.objects.filter(operation=removal).count() == 2, "and are released together"


@pytest.mark.parametrize(
    "expression",
    [
        {"key": TYPE, "operator": "Exists"},
        {"key": TYPE, "operator": "NotIn", "values": ["ml.g5.24xlarge"]},
        {"key": TYPE, "operator": "In", "values": [f"ml.type{number}.{'x' * 50}" for number in range(5)]},
    ],
)
def test_an_affinity_that_no_pin_can_say_is_told_and_the_pods_start(
    served: EndpointWorld, expression: dict[str, Any]
) -> None:
    term = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    served.version()
    served.apply(spec__nodeAffinity={"requiredDuringSchedulingIgnoredDuringExecution": term})
    served.round()
    assert len(served.gateway.deployments) == 1 and served.pins == []
    status, reason, message = served.condition("WeightsCacheReady")
    assert (status, reason) == ("False", "Failed") and "only warmed for" in message


@pytest.mark.parametrize("path", ["/mnt/other", "/etc", "/var/lib/kubelet"])
def test_another_root_than_the_pools_is_said_and_no_folder_of_a_node_is_made(served: EndpointWorld, path: str) -> None:
    served.version()
    served.apply(spec__modelCacheConfig__weightsCache={"enabled": True, "hostPath": path})
    served.round()
    volumes = served.gateway.deployments[0]["spec"]["template"]["spec"]["volumes"]
    assert [v for v in volumes if v["name"] == "hearth-store"] == [{"name": "hearth-store", "emptyDir": {}}]
    assert "hostPath" not in str(volumes)
    told = served.condition("WeightsCacheReady")[2]
    assert f"not in {path}" in told and "fetch for themselves" in told and served.pins == []
    assert "need hearth.dev/source-secret for that" in told
    weights = {"enabled": True, "hostPath": path}
    secret = {"hearth.dev/source-secret": "reader"}
    served.apply(spec__modelCacheConfig__weightsCache=weights, metadata__annotations=secret)
    served.round()
    assert served.condition("WeightsCacheReady")[2].endswith("mount no folder of a node and fetch for themselves.")


def test_a_root_of_another_pool_is_a_folder_that_pods_may_mount(served: EndpointWorld) -> None:
    factories.pool(of=served.world.cluster, cache_path="/mnt/nvme")
    served.version()
    served.apply(spec__modelCacheConfig__weightsCache={"enabled": True, "hostPath": "/mnt/nvme"})
    served.round()
    volumes = served.gateway.deployments[0]["spec"]["template"]["spec"]["volumes"]
    assert {"path": "/mnt/nvme/hearth", "type": "DirectoryOrCreate"} in [v.get("hostPath") for v in volumes]
