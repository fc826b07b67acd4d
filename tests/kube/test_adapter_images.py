"""Holders of images on a real API server with its controllers; pods' states are what kubelets would say."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from controlplane.clusters.documents import POOL_LABEL
from controlplane.clusters.gateway import ImageHolder, ImagePresence, Refused
from controlplane.clusters.kubernetes import names
from controlplane.clusters.kubernetes.image_calls import volumes_stored
from controlplane.clusters.kubernetes.image_holders import holder_name, holder_set
from tests.contracts.kube import KubeContractCluster, a_second_later, furnish
from tests.contracts.observing import DIGEST
from tests.kube.guarded import Guarded
from tests.waiting import until

REFERENCE = f"registry.invalid/engine@{DIGEST}"
HOLDER = ImageHolder("pool-a", REFERENCE, nodes=("n-1",))


def add_node(contract: KubeContractCluster, name: str) -> str:
    uid = contract.add_node(name)
    furnish(contract.client, name)
    return uid


def pods(contract: KubeContractCluster) -> dict[str, dict[str, Any]]:
    """The holders that were not told to go, by node."""
    items = contract.client.get(names.IMAGE_PODS)["items"]
    alive = [item for item in items if not item["metadata"].get("deletionTimestamp")]
    return {item["spec"]["nodeName"]: item for item in alive if item["spec"].get("nodeName")}


def held(contract: KubeContractCluster, *nodes: str) -> dict[str, dict[str, Any]]:
    until(lambda: pods(contract).keys() == set(nodes), f"there are holders on {nodes}")
    return pods(contract)


def say(contract: KubeContractCluster, pod: dict[str, Any], container: dict[str, Any]) -> None:
    """What the pod's kubelet says of its container."""
    status = {
        "phase": "Running",
        "containerStatuses": [
            {"name": "holder", "image": "x", "imageID": "", "ready": True, "restartCount": 0, **container}
        ],
    }
    contract.client.merge(f"{names.IMAGE_PODS}/{pod['metadata']['name']}/status", {"status": status}, manager="kubelet")


def runs(contract: KubeContractCluster, pod: dict[str, Any]) -> None:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    say(contract, pod, {"imageID": REFERENCE, "state": {"running": {"startedAt": now}}})


def presence(contract: KubeContractCluster) -> dict[str, ImagePresence]:
    return {one.node_name: one for one in contract.gateway.image_presence("pool-a")}


def test_it_holds_the_image_on_the_named_nodes_and_disturbs_none_of_them(contract: KubeContractCluster) -> None:
    uid = add_node(contract, "n-1")
    add_node(contract, "n-2")
    contract.gateway.apply_image_holder(HOLDER)
    first = held(contract, "n-1")["n-1"]
    assert (presence(contract)["n-1"].ready, presence(contract)["n-1"].reason) == (False, "")

    runs(contract, first)
    assert presence(contract) == {"n-1": ImagePresence("n-1", uid, REFERENCE, True)}

    contract.gateway.apply_image_holder(replace(HOLDER, nodes=("n-1", "n-2")))
    both = held(contract, "n-1", "n-2")
    assert both["n-1"]["metadata"]["uid"] == first["metadata"]["uid"], "who holds it already is not disturbed"
    say(contract, both["n-2"], {"state": {"waiting": {"reason": "ErrImagePull", "message": "401 Unauthorized"}}})
    assert (presence(contract)["n-2"].ready, presence(contract)["n-2"].reason) == (False, "AccessDenied")

    contract.gateway.apply_image_holder(replace(HOLDER, nodes=("n-2",)))
    held(contract, "n-2")
    contract.gateway.delete_image_holder("pool-a", REFERENCE)
    held(contract)


def test_it_is_made_again_for_a_machine_that_came_under_the_same_name(contract: KubeContractCluster) -> None:
    add_node(contract, "n-1")
    contract.gateway.apply_image_holder(HOLDER)
    old = held(contract, "n-1")["n-1"]
    runs(contract, old)
    assert presence(contract)["n-1"].ready is True
    a_second_later(old)

    contract.remove_node("n-1")
    uid = add_node(contract, "n-1")

    seen = presence(contract).get("n-1")
    assert seen is None or seen.ready is not True, "what the earlier machine had says nothing about this one"
    contract.gateway.apply_image_holder(HOLDER)
    contract.client.delete(f"{names.IMAGE_PODS}/{old['metadata']['name']}", grace_seconds=0)  # as its kubelet would
    # What the cluster's scheduler or controllers missed of a change they look at again after five minutes.
    until(
        lambda: pods(contract).get("n-1", old)["metadata"]["uid"] != old["metadata"]["uid"],
        "there is a new holder", seconds=400.0,
    )  # fmt: skip
    runs(contract, pods(contract)["n-1"])
    assert presence(contract) == {"n-1": ImagePresence("n-1", uid, REFERENCE, True)}


def test_it_finds_out_what_this_server_makes_of_image_volumes(contract: KubeContractCluster) -> None:
    able = volumes_stored(contract.client)
    minor = int(contract.client.get("/version")["minor"].rstrip("+"))
    assert able is (minor >= 35), "read back, whatever the server accepted"
    add_node(contract, "n-1")

    contract.gateway.apply_image_holder(replace(HOLDER, helper_image="registry.invalid/hearth:1"))

    stored = contract.client.get(f"{names.IMAGE_DAEMON_SETS}/{holder_name('pool-a', REFERENCE)}")
    (container,) = stored["spec"]["template"]["spec"]["containers"]
    assert container["image"] == REFERENCE, "no runtime is known here that could mount it"
    assert contract.gateway.image_holders("pool-a") == (REFERENCE,), "the question left nothing"


def test_a_node_says_what_it_has(contract: KubeContractCluster) -> None:
    uid = add_node(contract, "n-1")
    images = [{"names": [REFERENCE, "registry.invalid/engine:v1"], "sizeBytes": 5}]
    contract.client.merge(f"{names.NODES}/n-1/status", {"status": {"images": images}}, manager="kubelet")

    assert contract.gateway.images_listed("n-1", uid) == frozenset({DIGEST})


def holder_pod(**changes: Any) -> dict[str, Any]:
    template = holder_set(HOLDER)["spec"]["template"]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {**template["spec"], **changes}}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ""),
        ({"automountServiceAccountToken": True}, "no account"),
        ({"serviceAccountName": "hearth"}, "no account|service account"),
        ({"volumes": [{"name": "x", "hostPath": {"path": "/"}}]}, "hostPath|nothing but images"),
        ({"volumes": [{"name": "x", "secret": {"secretName": "pull"}}]}, "nothing but images"),
        ({"hostNetwork": True}, "host namespaces"),
        ({"securityContext": {}}, "restricted"),
        ({"containers": [{"name": "a", "image": "x"}, {"name": "b", "image": "x"}]}, "one container|restricted"),
    ],
    ids=["as it should be", "token", "account", "folder", "secret", "network", "root", "two"],
)
def test_a_holder_gets_nothing(guarded: Guarded, changes: dict[str, Any], why: str) -> None:
    if not why:
        made = guarded.admin.create(names.IMAGE_PODS, holder_pod(**changes), manager="test")
        guarded.admin.delete(f"{names.IMAGE_PODS}/{made['metadata']['name']}", grace_seconds=0)
        guarded.hearth().apply_image_holder(replace(HOLDER, node_selector={POOL_LABEL: "pool-a"}))
        return
    with pytest.raises(Refused, match=why):
        guarded.admin.create(names.IMAGE_PODS, holder_pod(**changes), manager="test")
