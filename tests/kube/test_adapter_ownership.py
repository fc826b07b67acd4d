"""Who writes what of a NodeCache on a real API server: Hearth the spec, the agent the status, and a third is named."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from controlplane.clusters.documents import Manifest
from controlplane.clusters.gateway import Conflict, Kind, ObservedNodeCache, PoolAgent, Refused, Unreachable
from controlplane.clusters.kubernetes import names
from controlplane.clusters.kubernetes.gateway import KubernetesGateway
from controlplane.clusters.kubernetes.link import KubernetesLink
from tests.contracts.kube import KubeContractCluster
from tests.contracts.observing import DIGEST, OTHER, spec, status
from tests.kube.faulty import FaultyProxy
from tests.waiting import until

PATH = f"{names.NODE_CACHES}/n-1"


def cache(contract: KubeContractCluster) -> ObservedNodeCache:
    (item,) = contract.gateway.list(Kind.NODE_CACHE).items
    assert isinstance(item, ObservedNodeCache)
    return item


@pytest.mark.parametrize(
    ("edit", "field"),
    [
        ({"spec": {"pool": "mine"}}, "pool"),
        ({"spec": {"limits": {"paused": False}}}, "limits"),
        ({"spec": {"limits": {"bytesPerSecond": 1}}}, "limits"),
        ({"spec": {"desired": []}}, "desired"),
        ({"spec": {"statusIntervalSeconds": 99}}, "statusIntervalSeconds"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_it_names_the_other_hand_and_takes_over_when_told_to(
    contract: KubeContractCluster, edit: dict[str, Any], field: str
) -> None:
    uid = contract.add_node("n-1")
    wanted = spec("n-1", uid, DIGEST)
    contract.gateway.apply_node_cache(wanted)
    contract.client.merge(PATH, edit, manager="kubectl-edit")
    edited = cache(contract)
    assert edited.spec != wanted
    sent = sum(contract.client.requests().values())

    for _ in range(2):
        with pytest.raises(Conflict, match=f"kubectl-edit.*{field}") as error:
            contract.gateway.apply_node_cache(wanted)
        assert error.value.managers == ("kubectl-edit",)
    assert sum(contract.client.requests().values()) - sent <= 6, "reported, not looped"
    assert cache(contract) == edited, "not forced"

    contract.gateway.apply_node_cache(wanted, take_over=True)
    assert cache(contract).spec == wanted
    contract.gateway.apply_node_cache(spec("n-1", uid, OTHER))


def test_it_needs_no_force_after_the_agent_made_the_object(contract: KubeContractCluster) -> None:
    uid = contract.add_node("n-1")
    link = contract.link("n-1", uid)
    link.report(status("n-1", uid))
    contract.gateway.apply_node_cache(spec("n-1", uid, DIGEST))
    link.report(told := status("n-1", uid, used=9))
    contract.gateway.apply_node_cache(changed := spec("n-1", uid, DIGEST, OTHER, pool="pool-b"))
    assert (cache(contract).spec, cache(contract).status) == (changed, told)


def test_it_lets_nobody_edit_a_status_for_good(contract: KubeContractCluster) -> None:
    uid = contract.add_node("n-1")
    link = contract.link("n-1", uid)
    link.report(status("n-1", uid))
    contract.client.merge(f"{PATH}/status", {"status": {"agentVersion": "by hand"}}, manager="kubectl-edit")
    link.report(told := status("n-1", uid, used=3))
    assert cache(contract).status == told


def test_it_costs_one_request_to_report(contract: KubeContractCluster) -> None:
    uid = contract.add_node("n-1")
    contract.gateway.apply_node_cache(spec("n-1", uid, DIGEST))
    link = contract.link("n-1", uid)
    link.report(status("n-1", uid))
    before = dict(contract.client.requests())
    for used in range(10):
        link.report(status("n-1", uid, used=used))
    after = contract.client.requests()
    assert {verb: after[verb] - before.get(verb, 0) for verb in after if after[verb] != before.get(verb, 0)} == {
        "PATCH": 10
    }


def test_it_costs_two_requests_to_apply_and_one_to_publish_again(contract: KubeContractCluster) -> None:
    uid = contract.add_node("n-1")
    wanted = spec("n-1", uid, DIGEST)
    contract.gateway.apply_node_cache(wanted)
    before = sum(contract.client.requests().values())
    contract.gateway.apply_node_cache(wanted)
    assert sum(contract.client.requests().values()) - before == 2


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"nodeUid": "another"}, "immutable"),
        ({"nodeName": "n-2"}, "immutable"),
        ({"desired": [{"digest": "x", "kind": "Weights", "action": "Ensure", "sizeBytes": 1, "order": 0}]}, "digest"),
        ({"desired": [{"digest": DIGEST, "kind": "Weights", "action": "Drop", "sizeBytes": 1, "order": 0}]}, "action"),
        (
            {
                "desired": [
                    {
                        "digest": DIGEST, "kind": "Weights", "action": "Ensure", "sizeBytes": 1, "order": 0,
                        "uri": "", "connection": "",
                    }
                ]
            },
            "needs a uri",
        ),
        ({"statusIntervalSeconds": 0}, "more than 0"),
    ],
    ids=["uid", "name", "digest", "action", "uri", "interval"],
)  # fmt: skip
def test_it_is_refused_what_makes_no_sense(contract: KubeContractCluster, change: dict[str, Any], says: str) -> None:
    uid = contract.add_node("n-1")
    contract.gateway.apply_node_cache(spec("n-1", uid))
    with pytest.raises(Refused, match=says):
        contract.client.merge(PATH, {"spec": change}, manager="kubectl-edit")


def test_it_takes_no_node_cache_under_another_name(contract: KubeContractCluster) -> None:
    document = {
        "apiVersion": names.API_VERSION, "kind": "NodeCache", "metadata": {"name": "n-1"},
        "spec": {"nodeName": "n-2", "nodeUid": "u"},
    }  # fmt: skip
    with pytest.raises(Refused, match="named as its node"):
        contract.client.create(names.NODE_CACHES, document, manager="test")


def test_it_changes_no_published_manifest(contract: KubeContractCluster) -> None:
    contract.gateway.apply_manifest(Manifest(DIGEST, ()))
    (name,) = contract.api._manifest_names(DIGEST)
    with pytest.raises(Refused, match="immutable"):
        contract.client.merge(f"{names.MANIFESTS}/{name}", {"spec": {"data": "AAAA"}}, manager="kubectl-edit")


def test_it_leaves_a_secret_that_is_not_hearths(contract: KubeContractCluster) -> None:
    theirs = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "theirs"}, "data": {"key": "eA=="}}
    contract.client.create(names.SECRETS, theirs, manager="kubectl-create")
    contract.gateway.delete_secret("theirs")
    with pytest.raises(Conflict, match="kubectl-create"):
        contract.gateway.apply_secret("theirs", {"key": "y"})
    assert contract.client.get(f"{names.SECRETS}/theirs")["data"] == {"key": "eA=="}


def test_it_places_agents_as_often_as_it_is_told(contract: KubeContractCluster) -> None:
    agent = PoolAgent("pool-a", "registry.invalid/hearth@sha256:" + "0" * 64, "/opt/dlami/nvme")
    path = f"{names.DAEMON_SETS}/hearth-agent-pool-a"
    contract.gateway.apply_agent(agent)
    first = contract.client.get(path)["metadata"]["generation"]
    contract.gateway.apply_agent(agent)
    assert contract.client.get(path)["metadata"]["generation"] == first
    for _ in range(2):
        contract.gateway.delete_agent("pool-a")


@pytest.mark.parametrize("ahead", [timedelta(hours=1), timedelta(hours=-1)])
def test_it_reads_a_node_whose_clock_is_an_hour_off_as_if_it_were_right(
    contract: KubeContractCluster, proxy: FaultyProxy, ahead: timedelta
) -> None:
    """The agent's answers come through a proxy that shows another time, as if its own clock were off."""
    uid = contract.add_node("n-1")
    contract.gateway.apply_node_cache(spec("n-1", uid))
    proxy.ahead = ahead
    client = proxy.client()
    link = KubernetesLink(client, "n-1", uid)
    told = status("n-1", uid)

    def has_learnt() -> bool:
        link.report(told)  # an answer that takes long says nothing about the time
        return abs(client.clock.offset - ahead) < timedelta(seconds=3)

    until(has_learnt, "it knows how far it is off")
    link.report(told)
    seen = cache(contract).status
    assert seen is not None
    assert abs((seen.reported_at - told.reported_at) - ahead) < timedelta(seconds=3)
    # The control plane on the same wrong clock reads its own time again.
    other = KubernetesGateway("x", client=client).list(Kind.NODE_CACHE).items[0]
    assert isinstance(other, ObservedNodeCache) and other.status is not None
    assert abs(other.status.reported_at - told.reported_at) < timedelta(seconds=3)


def test_an_agent_waits_for_the_cache_of_its_predecessor_to_go(contract: KubeContractCluster) -> None:
    old = contract.add_node("n-1")
    stuck = {"apiVersion": names.API_VERSION, "kind": "NodeCache", "metadata": {"name": "n-1"}}
    contract.client.create(
        names.NODE_CACHES, stuck | {"spec": {"nodeName": "n-1", "nodeUid": "before"}}, manager="test"
    )
    link = contract.link("n-1", old)
    with pytest.raises(Unreachable, match="not gone yet"):
        link.report(status("n-1", old))
    assert link.desired() is None
    contract.gateway.apply_node_cache(spec("n-1", old, DIGEST))
    link.report(told := status("n-1", old))
    assert cache(contract).status == told
