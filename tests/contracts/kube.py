"""The contract's cluster on a real API server without nodes: Node and Pod objects are what kubelets would make."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any

import yaml

from caches.agent.link import NodeLink
from controlplane.clusters.documents import Consumer
from controlplane.clusters.gateway import ClusterGateway, GatewayError
from controlplane.clusters.kubernetes import names
from controlplane.clusters.kubernetes.client import KubeClient
from controlplane.clusters.kubernetes.gateway import KubernetesGateway
from controlplane.clusters.kubernetes.install import documents, install
from controlplane.clusters.kubernetes.link import KubernetesLink
from controlplane.clusters.kubernetes.pods import consumer_of
from controlplane.embedded.processes import ROOT
from tests.plugins.kube import KubeApi
from tests.waiting import until

CRDS = ROOT / "deploy" / "base" / "crds"
IMAGES = ROOT / "deploy" / "base" / "images.yaml"
PODS = "/api/v1/namespaces/default/pods"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
STORE = "/opt/dlami/nvme/hearth"


def prepare(client: KubeClient) -> None:
    """Definitions and namespaces, once for a control plane. Repeating it changes nothing."""
    install(client, documents(CRDS))
    for name in (names.NODES_NAMESPACE, names.SYSTEM_NAMESPACE, names.IMAGES_NAMESPACE):
        document = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        client.apply(f"/api/v1/namespaces/{name}", document, manager="test")
    install(client, [item for item in yaml.safe_load_all(IMAGES.read_text()) if item["kind"] == "PriorityClass"])
    account = "/api/v1/namespaces/default/serviceaccounts/default"
    until(lambda: _answers(client, account), "the default account is there")
    serves(client)


def serves(client: KubeClient) -> None:
    """Wait for Hearth's own kinds: an API server that has just started says 429 to questions about them for a while."""
    for path in (names.NODE_CACHES, names.MANIFESTS):
        until(partial(_answers, client, path), f"{path} is served")


def _answers(client: KubeClient, path: str) -> bool:
    try:
        client.get(path)
    except GatewayError:
        return False
    return True


def empty(client: KubeClient) -> None:
    """Remove what an earlier test left."""
    client.delete(PODS, grace_seconds=0)
    for path in (names.NODES, names.NODE_CACHES, names.MANIFESTS, names.SECRETS, names.EVENTS, names.DAEMON_SETS,
                 names.IMAGE_DAEMON_SETS):  # fmt: skip
        client.delete(path)
    client.delete(names.IMAGE_PODS, grace_seconds=0)
    for path in (PODS, names.IMAGE_PODS, names.NODES, names.NODE_CACHES):
        until(partial(_is_empty, client, path), f"nothing is left of {path}")


def _is_empty(client: KubeClient, path: str) -> bool:
    return not client.get(path)["items"]


class KubeContractCluster:
    """See ContractCluster."""

    disk_bytes: int | None = None
    bookmark_seconds = 3.0

    def __init__(self, cluster: KubeApi) -> None:
        self._cluster = cluster
        self.api = KubernetesGateway(str(cluster.kubeconfig))
        self.gateway: ClusterGateway = self.api
        self.client = self.api.client
        self._links: list[KubernetesLink] = []
        self._cut = False

    def add_node(self, name: str) -> str:
        node = add_node(self.client, name)
        self.client.get(names.PODS, {"limit": 1})  # a consistent read, as kubelets make all the time
        return node

    def remove_node(self, name: str) -> None:
        remove_node(self.client, name)

    def replace_node(self, name: str) -> str:
        remove_node(self.client, name)
        return self.add_node(name)

    def cordon(self, name: str) -> None:
        self.client.merge(f"{names.NODES}/{name}", {"spec": {"unschedulable": True}}, manager="test")

    def link(self, name: str, uid: str) -> NodeLink:
        link = KubernetesLink(self.client, name, uid)
        self._links.append(link)
        return link

    def use(self, name: str, digest: str) -> Consumer:
        pod = self.client.create(PODS, engine_pod(name, digest), manager="test")
        node = self.client.get(f"{names.NODES}/{name}")
        consumer = consumer_of(pod, node["metadata"]["uid"])
        assert consumer is not None
        return consumer

    def unuse(self, name: str, digest: str) -> None:
        self.client.delete(f"{PODS}/{engine_name(name, digest)}", grace_seconds=0)

    def compact(self) -> None:
        self._cluster.compact()
        serves(self.client)

    def cut_off(self) -> None:
        self._cut = True
        self._cluster.stop_api_server()

    def close(self) -> None:
        for link in self._links:
            link.close()
        if self._cut:
            self._cluster.start_api_server()


def add_node(client: KubeClient, name: str, labels: dict[str, str] | None = None) -> str:
    """A Node that says it is ready, as soon as the controllers have finished with it. Returns its uid."""
    document = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels or {"hearth.dev/pool": "pool-a"}},
        "status": {"conditions": [{"type": "Ready", "status": "True", "reason": "Test", "message": ""}]},
    }
    made = client.create(names.NODES, document, manager="test")
    # A kubelet's heartbeat: without it an earlier node of the name, silent for long, would count against this one.
    lease = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name},
        "spec": {"holderIdentity": name, "renewTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")},
    }
    client.apply(f"{LEASES}/{name}", lease, manager="test")

    def settled() -> bool:
        node = client.get(f"{names.NODES}/{name}")
        annotated = "node.alpha.kubernetes.io/ttl" in (node["metadata"].get("annotations") or {})
        return annotated and not node["spec"].get("taints")

    until(settled, "the controllers know the node")
    return str(made["metadata"]["uid"])


def furnish(client: KubeClient, name: str) -> None:
    """What a kubelet says of its machine, so that controllers and scheduler put pods there."""
    client.merge(f"{names.NODES}/{name}", {"metadata": {"labels": {"kubernetes.io/os": "linux"}}}, manager="kubelet")
    room = {"cpu": "4", "memory": "8Gi", "pods": "110"}
    status = {"status": {"capacity": room, "allocatable": room}}
    client.merge(f"{names.NODES}/{name}/status", status, manager="kubelet")


def a_second_later(pod: dict[str, Any]) -> None:
    """Times on an API server are whole seconds."""
    made = pod["metadata"]["creationTimestamp"]
    until(lambda: datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ") > made, "the clock has moved on")


def remove_node(client: KubeClient, name: str) -> None:
    """The Node, its pods, and what it owned, which the garbage collector takes away."""
    for pod in client.get(PODS, {"fieldSelector": f"spec.nodeName={name}"})["items"]:
        client.delete(f"{PODS}/{pod['metadata']['name']}", grace_seconds=0)
    client.delete(f"{names.NODES}/{name}")
    # The garbage collector looks for new kinds twice a minute only.
    until(lambda: not _answers(client, f"{names.NODE_CACHES}/{name}"), "its NodeCache is gone", seconds=150.0)


def engine_name(node: str, digest: str) -> str:
    return f"engine-{node}-{digest[7:15]}"


def engine_pod(node: str, digest: str, **fields: Any) -> dict[str, Any]:
    """A pod that is bound to a node and mounts one digest of its store."""
    mount = {"name": "weights", "mountPath": "/weights", "subPath": f"weights/{digest.replace(':', '-')}"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": engine_name(node, digest), "labels": {"app": "engine"}, **fields},
        "spec": {
            "nodeName": node,
            "automountServiceAccountToken": False,
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "engine", "image": "none", "volumeMounts": [{**mount, "readOnly": True}]}],
            "volumes": [{"name": "weights", "hostPath": {"path": STORE}}],
        },
    }


@contextmanager
def kube_contract(cluster: KubeApi) -> Iterator[KubeContractCluster]:
    made = KubeContractCluster(cluster)
    prepare(made.client)
    empty(made.client)
    try:
        yield made
    finally:
        made.close()
