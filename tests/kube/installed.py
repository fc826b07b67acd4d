"""deploy/base on a cluster of the tests: what agents need, with the cluster's own cache path among the roots."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from controlplane.clusters.gateway import GatewayError, PoolAgent, Refused
from controlplane.clusters.kubernetes import names
from controlplane.clusters.kubernetes.access import Access
from controlplane.clusters.kubernetes.agent_workload import SERVICE_ACCOUNT, daemon_set
from controlplane.clusters.kubernetes.client import KubeClient
from controlplane.clusters.kubernetes.install import documents, object_path
from controlplane.clusters.kubernetes.install import install as apply
from controlplane.embedded.processes import ROOT
from tests.plugins.kube import KubeApi
from tests.waiting import until

BASE = ROOT / "deploy" / "base"
HEARTH = ROOT / "deploy" / "base" / "hearth"
POLICIES = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
TOKENS = "authentication.k8s.io/v1"
AGENT_PODS = f"/api/v1/namespaces/{names.NODES_NAMESPACE}/pods"


def around_hearth(roots: Iterable[str] = (), sources: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Everything but Hearth's own processes. ``roots`` are allowed beside the base's own, ``sources`` to be read."""
    own = documents(HEARTH)
    found = [document for document in documents(BASE) if document not in own]
    for document in found:
        if document["kind"] == names.ROOTS_KIND:
            document["spec"]["paths"] += roots
            document["spec"] |= {"sourcePaths": list(sources)} if sources else {}
    return found


def install(client: KubeClient, objects: Sequence[dict[str, Any]]) -> None:
    """Apply them and wait until namespaces have their accounts."""
    apply(client, objects)
    until(partial(answers, client, "/api/v1/namespaces/default/serviceaccounts/default"), "accounts are made")


def remove_policies(client: KubeClient, objects: Sequence[dict[str, Any]]) -> None:
    """Take the policies away, bindings first, for tests that know nothing of them."""
    for item in sorted(objects, key=lambda item: item["kind"] != POLICIES[1]):
        if item["kind"] in POLICIES:
            client.delete(object_path(client, item))


REGISTRATIONS = "/apis/admissionregistration.k8s.io/v1"
MARKED = "/api/v1/namespaces/default/configmaps/hearth-test-marker"
MARKER = {
    "validatingadmissionpolicies": {
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": POLICIES[0],
        "metadata": {"name": "hearth-test-marker"},
        "spec": {
            "matchConstraints": {
                "resourceRules": [
                    {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}
                ]
            },
            "validations": [{"expression": "object.metadata.name != 'hearth-test-marker'"}],
        },
    },
    "validatingadmissionpolicybindings": {
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": POLICIES[1],
        "metadata": {"name": "hearth-test-marker"},
        "spec": {"policyName": "hearth-test-marker", "validationActions": ["Deny"]},
    },
}  # fmt: skip


def policies_hold(client: KubeClient) -> None:
    """Wait until every policy that was applied holds. An API server takes note of them once a second, of some a second
    before others: one more, that comes after all of them, holds when they do."""
    for plural, document in MARKER.items():
        client.apply(f"{REGISTRATIONS}/{plural}/hearth-test-marker", document, manager="test")
    until(lambda: _marked(client), "the policies hold")


def policies_gone(client: KubeClient) -> None:
    """Wait until none holds that was removed."""
    for plural in reversed(MARKER):
        client.delete(f"{REGISTRATIONS}/{plural}/hearth-test-marker")
    until(lambda: not _marked(client), "the policies are gone")


def _marked(client: KubeClient) -> bool:
    document = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "hearth-test-marker"}}
    try:
        client.apply(MARKED, document, manager="test", dry_run=True)
    except Refused:
        return True
    return False


def answers(client: KubeClient, path: str) -> bool:
    try:
        client.get(path)
    except GatewayError:
        return False
    return True


def token_of(client: KubeClient, namespace: str, account: str, pod: dict[str, Any] | None = None) -> str:
    """A token as the API server makes it; bound to a pod, and so to its node, when one is given."""
    bound = {}
    if pod is not None:
        reference = {"kind": "Pod", "apiVersion": "v1", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
        bound = {"boundObjectRef": reference}
    answer = client.create(
        f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token",
        {"apiVersion": TOKENS, "kind": "TokenRequest", "spec": bound},
        manager="test",
    )
    return str(answer["status"]["token"])


def client_of(cluster: KubeApi, token: str) -> KubeClient:
    """Talks to the API server as the holder of the token."""
    ca = str(cluster.folder / "pki" / "ca.crt")
    access = Access(server=cluster.server, authorization=lambda again: f"Bearer {token}", ca_file=ca)
    return KubeClient(lambda: access)


def agent_on(client: KubeClient, node: str, path: str = "/opt/dlami/nvme") -> dict[str, Any]:
    """The pod that Hearth's DaemonSet would have on a node, made by hand: nothing runs it."""
    image = "registry.invalid/hearth@sha256:" + "0" * 64
    template = daemon_set(PoolAgent("gpu", image, path))["spec"]["template"]
    document = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"agent-{node}", "labels": template["metadata"]["labels"]},
        "spec": {**template["spec"], "nodeName": node},
    }
    client.delete(f"{AGENT_PODS}/agent-{node}", grace_seconds=0)
    until(lambda: not answers(client, f"{AGENT_PODS}/agent-{node}"), "an earlier pod is gone")
    return client.create(AGENT_PODS, document, manager="test")


def agent_token(client: KubeClient, node: str) -> str:
    """What a kubelet would put into the agent's pod on a node."""
    return token_of(client, names.NODES_NAMESPACE, SERVICE_ACCOUNT, agent_on(client, node))
