"""The vendor's kinds as Hearth brings them, with the real kubectl on a real API server."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from controlplane.clusters.kubernetes import names
from controlplane.clusters.kubernetes.access import access_for
from controlplane.clusters.kubernetes.client import KubeClient
from controlplane.clusters.kubernetes.install import documents, object_path
from tests.contracts.kube import prepare
from tests.kube.endpoint_kinds import API, ENDPOINTS, MANIFESTS, Kubectl, endpoint_kinds
from tests.kube.guarded import answered
from tests.kube.test_deploy import key, missing, rendered
from tests.plugins.kube import KubeApi
from tests.waiting import until

MIRRORS = {
    "modelweightscacheconfigs": (["NAME", "STATE", "TARGET", "READY", "AGE"], ["Ready", "10", "9"]),
    "modeldatacacheconfigs": (["NAME", "STATE", "TARGET", "READY", "AGE"], ["Ready", "10", "9"]),
    "modelimagecaches": (["NAME", "PHASE", "CACHED", "TARGET", "AGE"], ["Complete", "9", "10"]),
    "inferenceimagecaches": (["NAME", "PHASE", "CACHED", "TARGET", "AGE"], ["Complete", "9", "10"]),
}
STATUS = {"state": "Ready", "phase": "Complete", "readyNodes": 9, "targetNodes": 10, "message": ""}


@pytest.fixture(scope="module")
def client(kube_api: KubeApi) -> Iterator[KubeClient]:
    made = KubeClient(lambda: access_for(str(kube_api.kubeconfig)))
    prepare(made)
    with endpoint_kinds(made):
        yield made


@pytest.fixture
def kubectl(kube_api: KubeApi, client: KubeClient) -> Kubectl:
    return Kubectl(kube_api.kubeconfig)


def test_it_renders_every_file() -> None:
    assert sorted(map(key, rendered(ENDPOINTS))) == sorted(map(key, documents(ENDPOINTS)))


def test_a_real_api_server_takes_everything(client: KubeClient) -> None:
    for document in documents(ENDPOINTS):
        path = object_path(client, document)
        stored = client.apply(path, document, manager="test", dry_run=True, force=True)
        assert missing(document, stored) == [], path


def test_kubectl_applies_the_printed_manifests_unchanged(client: KubeClient, kubectl: Kubectl) -> None:
    for path in MANIFESTS:
        kubectl("apply", "--dry-run=server", "-f", str(path))
        assert "created" in kubectl("apply", "-f", str(path))
        assert "unchanged" in kubectl("apply", "-f", str(path)), "a repeat changes nothing"
        wanted = yaml.safe_load(path.read_text())
        stored = kubectl.json("get", wanted["kind"], wanted["metadata"]["name"])
        assert stored["spec"] == {"replicas": 1, **wanted["spec"]}, "and nothing is added but what scaling needs"
        kubectl("delete", "-f", str(path))


def test_it_keeps_fields_that_it_does_not_know_in_both_versions(client: KubeClient, kubectl: Kubectl) -> None:
    document = yaml.safe_load(MANIFESTS[0].read_text())
    document["apiVersion"] = document["apiVersion"].replace("/v1", "/v1alpha1")
    document["metadata"]["name"] = "older"
    document["spec"]["worker"]["newer"] = {"deep": [1, {"x": "z"}]}
    document["spec"]["somethingNew"] = True
    kubectl("apply", "-f", "-", stdin=yaml.safe_dump(document))
    stored = client.get(f"{API}/namespaces/default/{names.CONFIGS}/older")
    assert stored["apiVersion"].endswith("/v1")
    assert stored["spec"]["worker"]["newer"] == {"deep": [1, {"x": "z"}]} and stored["spec"]["somethingNew"]
    older = client.get(f"{API.replace('/v1', '/v1alpha1')}/namespaces/default/{names.CONFIGS}/older")
    assert older["spec"] == stored["spec"]
    kubectl("delete", names.CONFIGS, "older")


@pytest.mark.parametrize(
    "change",
    [
        {"modelName": "bad name"},
        {"replicas": -1},
        {"instanceType": "g5.xlarge"},
        {"worker": {"image": "x"}},
        {"modelSourceConfig": {"modelSourceType": "ftp"}},
        {"modelCacheConfig": {"imageCache": {}}},
        {"modelCacheConfig": {"weightsCache": {"hostPath": "/" + "a" * 255}}},
    ],
)
def test_it_refuses_what_the_schema_refuses(client: KubeClient, change: dict[str, Any]) -> None:
    document = copy.deepcopy(yaml.safe_load(MANIFESTS[0].read_text()))
    document["spec"] |= change
    said = answered(client.create, f"{API}/namespaces/default/{names.CONFIGS}", document)
    assert "422" in said and f"spec.{next(iter(change))}" in said


def test_endpoints_are_scaled_like_deployments(client: KubeClient, kubectl: Kubectl) -> None:
    kubectl("apply", "-f", str(MANIFESTS[0]))
    path = f"{API}/namespaces/default/{names.CONFIGS}/chat-small"
    client.merge(f"{path}/status", {"status": {"replicas": 1, "selector": "app=chat-small"}}, manager="test")
    kubectl("scale", f"{names.CONFIGS}/chat-small", "--replicas=5")
    scale = client.get(f"{path}/scale")
    assert (scale["spec"]["replicas"], scale["status"]) == (5, {"replicas": 1, "selector": "app=chat-small"})
    kubectl("delete", "-f", str(MANIFESTS[0]))


@pytest.mark.parametrize("plural", sorted(MIRRORS))
def test_the_tables_are_those_of_the_documents(client: KubeClient, kubectl: Kubectl, plural: str) -> None:
    kinds = {item["name"]: item["kind"] for item in client.get(API)["resources"]}
    spec = {"modelSourceConfig": {"modelSourceType": "s3"}} if "image" not in plural else {"image": "vllm/vllm-openai"}
    document = {
        "apiVersion": "inference.sagemaker.aws.amazon.com/v1", "kind": kinds[plural],
        "metadata": {"name": "example"}, "spec": spec,
    }  # fmt: skip
    path = f"{API}/namespaces/{names.IMAGE_CACHES_NAMESPACE}/{plural}"
    client.create(path, document, manager="test")
    client.merge(f"{path}/example/status", {"status": STATUS}, manager="test")
    spellings = [plural, kinds[plural].lower(), *(["mic"] if plural == "modelimagecaches" else [])]
    for name in spellings:
        header, line = kubectl.table(name, "--namespace", names.IMAGE_CACHES_NAMESPACE)
        columns, values = MIRRORS[plural]
        assert header == columns
        assert line[:-1] == ["example", *values] and line[-1].endswith("s")
    client.delete(f"{path}/example")


def test_nobody_but_hearth_writes_the_mirrors(client: KubeClient) -> None:
    document = {
        "apiVersion": "inference.sagemaker.aws.amazon.com/v1", "kind": "ModelImageCache",
        "metadata": {"name": "by-hand"}, "spec": {"image": "x"},
    }  # fmt: skip
    path = f"{API}/namespaces/default/modelimagecaches"
    policies = [item for item in documents(ENDPOINTS) if "Policy" in item["kind"]]
    for item in policies:
        client.apply(object_path(client, item), item, manager="test", force=True)

    def refused() -> bool:
        said = answered(client.create, path, document)
        client.delete(f"{path}/by-hand")
        return said == "refused"

    try:
        until(refused, "the policy holds")
    finally:
        for item in reversed(policies):
            client.delete(object_path(client, item))
        until(lambda: not refused(), "the policy is gone")
