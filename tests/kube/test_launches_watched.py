"""From pods and their events on an API server to launches, by the watcher that people run: kubelets are played."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from caches.models import Launch, LaunchLog, LaunchObservation
from caches.services.launches.assembly import launches_assemble
from caches.services.launches.logs import launch_logs_read
from controlplane.clusters.gateway import Kind, NodeUnreachable, NotFound
from controlplane.clusters.kubernetes import names
from controlplane.clusters.models import Cluster, ClusterType
from controlplane.management.commands.watch_cluster import watch_clusters
from tests.clusters.pod_documents import DIGEST
from tests.contracts.kube import PODS, KubeContractCluster
from tests.plugins.kube import KubeApi
from tests.waiting import until

pytestmark = pytest.mark.django_db(transaction=True)
EVENTS = "/api/v1/namespaces/default/events"
FOUND = '{"found": "miss", "bytes": 9, "seconds": 0.5, "source": "models"}'
PULLED = 'Successfully pulled image "none" in 4.2s (5s including waiting). Image size: 9 bytes.'


@pytest.fixture
def watched(contract: KubeContractCluster, kube_api: KubeApi) -> Iterator[KubeContractCluster]:
    Cluster.objects.create(name="prod", type=ClusterType.KUBERNETES, address=f"{kube_api.kubeconfig}#hearth")
    stopping = threading.Event()
    thread = threading.Thread(target=watch_clusters, args=([], stopping), kwargs={"round_seconds": 0.2})
    thread.start()
    try:
        yield contract
    finally:
        stopping.set()
        thread.join(60)


def a_pod(cluster: KubeContractCluster, name: str, node: str = "") -> dict[str, Any]:
    """One that says which weights it uses; with a node it is bound to that, otherwise nobody can take it."""
    placed = {"nodeName": node} if node else {"nodeSelector": {"hearth.test/never": "there"}}
    document = {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "annotations": {names.WEIGHTS_ANNOTATION: DIGEST}},
        "spec": {
            **placed, "automountServiceAccountToken": False, "tolerations": [{"operator": "Exists"}],
            "initContainers": [{"name": "ensure", "image": "none"}],
            "containers": [{"name": "server", "image": "none"}],
        },
    }  # fmt: skip
    return dict(cluster.client.create(PODS, document, manager="test"))


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def says(
    cluster: KubeContractCluster, pod: dict[str, Any], reason: str, message: str, container: str = "server"
) -> None:
    """An event of the pod's kubelet."""
    about = {"kind": "Pod", "namespace": "default", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"],
             "fieldPath": f"spec.containers{{{container}}}"}  # fmt: skip
    document = {
        "apiVersion": "v1", "kind": "Event", "metadata": {"generateName": "told."}, "involvedObject": about,
        "reason": reason, "message": message, "type": "Normal", "count": 1, "firstTimestamp": now(),
        "lastTimestamp": now(), "source": {"component": "kubelet"}, "reportingComponent": "kubelet",
    }  # fmt: skip
    cluster.client.create(EVENTS, document, manager="kubelet")


def serves(cluster: KubeContractCluster, pod: dict[str, Any]) -> None:
    """What the kubelet writes when the server is ready."""
    at = now()
    ensured = {"startedAt": at, "finishedAt": at, "exitCode": 0, "reason": "Completed", "message": FOUND}
    line: dict[str, Any] = {"image": "none", "imageID": "none", "restartCount": 0}
    status = {
        "phase": "Running",
        "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": at},
                       {"type": "Ready", "status": "True", "lastTransitionTime": at}],
        "initContainerStatuses": [{**line, "name": "ensure", "ready": True, "state": {"terminated": ensured}}],
        "containerStatuses": [{**line, "name": "server", "ready": True, "state": {"running": {"startedAt": at}}}],
    }  # fmt: skip
    cluster.client.merge(f"{PODS}/{pod['metadata']['name']}/status", {"status": status}, manager="kubelet")


def launch(pod: dict[str, Any]) -> Launch | None:
    launches_assemble()
    return Launch.objects.filter(pod_uid=pod["metadata"]["uid"]).first()


def becomes(pod: dict[str, Any], holds: Callable[[Launch], object], what: str) -> Launch:
    until(lambda: (seen := launch(pod)) is not None and holds(seen), what)
    found = launch(pod)
    assert found is not None
    return found


def test_a_start_is_a_launch_as_it_goes_on(watched: KubeContractCluster) -> None:
    watched.add_node("n-1")
    pod = a_pod(watched, "starts", "n-1")
    says(watched, pod, "Pulling", "Pulling image")
    says(watched, pod, "Pulled", PULLED)
    serves(watched, pod)
    seen = becomes(
        pod, lambda one: one.state == "Ready" and one.image == "Miss", "it is ready, and what was pulled known"
    )
    assert (seen.pod_name, seen.container, seen.node_name, seen.digest) == ("default/starts", "server", "n-1", DIGEST)
    assert seen.weights == "Miss" and seen.ready_seconds is not None
    [pulled] = LaunchObservation.objects.filter(mark="Pulled")
    assert (pulled.seconds, pulled.facts["pull_seconds"], pulled.clock) == (5, "4.2", "Node")

    rows = set(LaunchObservation.objects.values_list("pk", flat=True))
    watched.compact()  # both watches begin anew
    second = a_pod(watched, "later", "n-1")
    becomes(second, lambda one: one.state == "Starting", "what came after it is seen")
    mine = set(LaunchObservation.objects.filter(launch=seen).values_list("pk", flat=True))
    assert mine == rows, "a listing says what the watch said"
    # There is no kubelet whose logs could be read: they are asked for once.
    assert launch_logs_read() in (0, 1)
    until(lambda: launch_logs_read() == 0 and LaunchLog.objects.filter(launch=seen).exists(), "nothing more is asked")


def test_one_that_is_deleted_before_it_was_placed_has_ended(watched: KubeContractCluster) -> None:
    pod = a_pod(watched, "never")
    becomes(pod, lambda one: one.state == "Starting", "it is seen")
    until(lambda: LaunchObservation.objects.filter(mark="Noted").exists(), "the scheduler's word is kept")
    watched.client.delete(f"{PODS}/never", grace_seconds=0)
    seen = becomes(pod, lambda one: one.state == "Ended", "it has ended")
    assert (seen.reached, seen.end_reason) == ("WaitingForNode", "Deleted")
    notes = LaunchObservation.objects.filter(mark="Noted").values_list("facts__reason", flat=True)
    assert set(notes) == {"FailedScheduling"}


def test_only_events_of_pods_that_start_something_are_told(contract: KubeContractCluster) -> None:
    contract.add_node("n-1")
    pod, other = a_pod(contract, "mine", "n-1"), contract.use("n-1", DIGEST)
    says(contract, pod, "Pulled", PULLED)
    says(contract, pod, "Started", "Started container server")
    says(contract, {"metadata": {"name": other.name.partition("/")[2], "uid": other.uid}}, "Pulled", PULLED)
    told = [getattr(item, "object_uid", "") for item in contract.gateway.list(Kind.EVENT).items]
    assert told == [pod["metadata"]["uid"]]
    [seen] = contract.gateway.list(Kind.POD).items
    assert getattr(seen, "uid", "") == pod["metadata"]["uid"]


@pytest.mark.parametrize("fields", [{"name": "default/mine"}, {}, {"name": "default/mine", "restart_count": 3}])
def test_there_is_no_log_of_a_run_that_nobody_keeps(contract: KubeContractCluster, fields: dict[str, Any]) -> None:
    contract.add_node("n-1")
    pod = a_pod(contract, "mine", "n-1")
    uid = pod["metadata"]["uid"] if fields.get("restart_count") else "another"
    with pytest.raises(NotFound):
        contract.gateway.logs(uid, 10, **fields)
    with pytest.raises(NotFound):
        contract.gateway.logs(pod["metadata"]["uid"], 10, name="default/../mine")


def test_a_kubelet_that_is_silent_is_told_from_a_cluster_that_is(contract: KubeContractCluster) -> None:
    contract.add_node("n-1")
    nobody = {"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
              "daemonEndpoints": {"kubeletEndpoint": {"Port": 1}}}  # fmt: skip
    contract.client.merge(f"{names.NODES}/n-1/status", {"status": nobody}, manager="kubelet")
    pod = a_pod(contract, "mine", "n-1")
    serves(contract, pod)
    with pytest.raises(NodeUnreachable, match=r"127\.0\.0\.1:1"):
        contract.gateway.logs(pod["metadata"]["uid"], 10, name="default/mine", restart_count=0)
