"""Every right that deploy/ gives is used, everything that is used is given, and there is nothing more.

The accounts are the real ones, with tokens as pods get them; what they ask is written down as they ask it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import urllib3

from caches.domain.labels import ready_label
from caches.services.loop.taints import COLD_TAINT
from controlplane.clusters.documents import ConnectionSpec, Manifest, Origin, SourceType
from controlplane.clusters.gateway import (
    Forbidden,
    ImageHolder,
    Kind,
    NotFound,
    ObservedNodeCache,
    PoolAgent,
    Refused,
    Workload,
)
from controlplane.clusters.kubernetes import names
from controlplane.clusters.kubernetes.client import KubeClient
from controlplane.clusters.kubernetes.gateway import KubernetesGateway
from controlplane.clusters.kubernetes.install import documents
from controlplane.clusters.kubernetes.link import node_uid
from tests.contracts.kube import a_second_later, furnish
from tests.contracts.observing import DIGEST, OTHER, changes, spec, status
from tests.kube.guarded import Guarded
from tests.kube.installed import BASE
from tests.waiting import until

Right = tuple[str, str, str]  # namespace ("" is everywhere), resource, verb
VERBS = {"POST": "create", "PATCH": "patch", "DELETE": "delete", "PUT": "update"}
RBAC = "rbac.authorization.k8s.io/v1"
# What everybody who has a token may ask: about itself, and what kinds there are.
EVERYBODY = {"selfsubjectaccessreviews", "selfsubjectrulesreviews", "selfsubjectreviews"}


class Recorded:
    """Sees every request of a client."""

    def __init__(self, client: KubeClient) -> None:
        self.rights: set[Right] = set()
        self._send = client._send
        client._send = self.send  # type: ignore[method-assign]

    def send(self, method: str, target: str, *rest: Any, **named: Any) -> urllib3.BaseHTTPResponse:
        parts = urlsplit(target)
        steps = parts.path.strip("/").split("/")
        steps = steps[2 if steps[0] == "api" else 3 :]
        namespace = ""
        if steps[:1] == ["namespaces"] and len(steps) > 2:
            namespace, steps = steps[1], steps[2:]
        if steps:
            resource = "/".join([steps[0], *steps[2:3]])
            query = parse_qs(parts.query)
            verb = VERBS.get(method) or ("watch" if "watch" in query else "get" if len(steps) > 1 else "list")
            self.rights.add((namespace, resource, verb))
        return self._send(method, target, *rest, **named)


def granted(account: str) -> set[Right]:
    """What the bindings of deploy/base give to an account."""
    found = documents(BASE)
    roles = {
        (item["kind"], item["metadata"].get("namespace", ""), item["metadata"]["name"]): item["rules"]
        for item in found
        if item["kind"] in ("Role", "ClusterRole")
    }
    rights: set[Right] = set()
    for binding in found:
        if binding["kind"] not in ("RoleBinding", "ClusterRoleBinding"):
            continue
        if account not in [subject["name"] for subject in binding["subjects"]]:
            continue
        place, reference = binding["metadata"].get("namespace", ""), binding["roleRef"]
        where = place if reference["kind"] == "Role" else ""
        rights |= _rights(place, roles[(reference["kind"], where, reference["name"])])
    return rights


def _rights(namespace: str, rules: Iterable[Mapping[str, Any]]) -> set[Right]:
    return {
        (namespace, resource, verb)
        for rule in rules
        for resource in rule.get("resources", ())
        for verb in rule["verbs"]
    }


def use_gateway(guarded: Guarded, gateway: KubernetesGateway) -> None:
    """Each call of the gateway once, as the contract suite makes them."""
    uid = guarded.contract.add_node("n-1")
    gateway.capabilities()
    for kind in Kind:
        changes(gateway, kind, gateway.list(kind).token, seconds=0.0)
    gateway.apply_node_cache(spec("n-1", uid, DIGEST))
    gateway.apply_node_cache(spec("n-1", uid, DIGEST, OTHER))
    gateway.delete_node_cache("n-1", uid)
    gateway.apply_manifest(Manifest(DIGEST, ()), None)
    gateway.delete_manifest(DIGEST)
    gateway.apply_secret("store.key", {"a": "b"})
    gateway.delete_secret("store.key")
    gateway.set_node_labels("n-1", uid, {ready_label(DIGEST): "true"})
    gateway.set_node_taint("n-1", uid, COLD_TAINT, True)
    gateway.consumers("n-1", uid)
    gateway.apply_agent(PoolAgent("gpu", "none", "/opt/dlami/nvme"))
    gateway.delete_agent("gpu")
    use_holders(guarded, gateway, uid)


def use_holders(guarded: Guarded, gateway: KubernetesGateway, uid: str) -> None:
    """A holder of an image, found older than its node once."""
    furnish(guarded.admin, "n-1")
    holder = ImageHolder("gpu", f"none@{DIGEST}", nodes=("n-1",))
    gateway.apply_image_holder(holder)
    until(lambda: _holders(guarded), "the holder has its node")
    a_second_later(_holders(guarded)[0])
    guarded.contract.replace_node("n-1")
    gateway.image_presence("gpu")
    gateway.images_listed("n-1", guarded.admin.get(f"{names.NODES}/n-1")["metadata"]["uid"])
    gateway.apply_image_holder(holder)
    gateway.renew_image_holder("gpu", holder.reference, "n-1")
    gateway.image_holders("gpu")
    gateway.delete_image_holder("gpu", holder.reference)
    gateway.apply_pull_secret("hearth-pull-test", "registry.invalid", "reader", "secret")
    gateway.delete_pull_secret("hearth-pull-test")


def _holders(guarded: Guarded) -> list[dict[str, Any]]:
    return [pod for pod in guarded.admin.get(names.IMAGE_PODS)["items"] if pod["spec"].get("nodeName")]


# Applying what is not there yet is a creation too.
APPLIED: set[Right] = {
    ("", "nodecaches", "create"),
    (names.NODES_NAMESPACE, "secrets", "create"),
    (names.NODES_NAMESPACE, "daemonsets", "create"),
    (names.IMAGES_NAMESPACE, "daemonsets", "create"),
    (names.IMAGES_NAMESPACE, "secrets", "create"),
}


def test_hearth_has_the_rights_that_its_gateway_uses_and_no_other(guarded: Guarded) -> None:
    gateway = guarded.hearth()
    recorded = Recorded(gateway.client)
    use_gateway(guarded, gateway)
    # Where an origin moved, a published manifest is changed in its annotations alone.
    used = recorded.rights | APPLIED | {("", "artifactmanifests", "patch")}
    assert used == granted("hearth")


def test_a_manifests_note_needs_the_right_to_patch(guarded: Guarded) -> None:

    gateway = guarded.hearth()
    recorded = Recorded(gateway.client)
    store = ConnectionSpec(name="store", type=SourceType.S3, allowed=("bucket",))
    for uri in ("s3://bucket/a", "s3://bucket/b"):
        gateway.apply_manifest(Manifest(DIGEST, ()), Origin(store, uri, 1, ""))
    assert ("", "artifactmanifests", "patch") in recorded.rights


def test_web_has_the_rights_that_adoption_uses_and_no_other(guarded: Guarded) -> None:
    uid = guarded.contract.add_node("n-1")
    hearth, web = guarded.hearth(), guarded.hearth("hearth-web")
    hearth.apply_node_cache(spec("n-1", uid, DIGEST))
    hearth.apply_manifest(Manifest(DIGEST, ()))
    recorded = Recorded(web.client)
    # What caches.services.adoption and cluster_try ask.
    assert web.capabilities().version
    assert [item.spec.pool for item in web.list(Kind.NODE_CACHE).items if isinstance(item, ObservedNodeCache)]
    assert [manifest.digest for manifest, _ in web.manifests()] == [DIGEST]
    assert recorded.rights == granted("hearth-web")


def test_an_agent_has_the_rights_that_its_link_uses_and_no_other(guarded: Guarded) -> None:
    hearth, uid = guarded.hearth(), guarded.contract.add_node("n-1")
    client = guarded.agent("n-1")
    recorded = Recorded(client)
    link = guarded.link("n-1", uid, client)
    assert node_uid(client, "n-1") == uid
    link.report(status("n-1", uid))
    link.event("EntryReady", "x")
    hearth.apply_manifest(Manifest(DIGEST, ()))
    hearth.apply_secret("store.key", {"a": "b"})
    hearth.apply_node_cache(spec("n-1", uid, DIGEST))
    assert link.wait(0, 10) and link.desired() is not None
    assert link.manifest(DIGEST).files == ()
    with contextlib.suppress(NotFound):
        link.origin(DIGEST)
    assert link.secret("store.key") == {"a": "b"}
    assert recorded.rights == granted("hearth-agent")


def test_endpoints_need_a_binding_in_their_namespace(guarded: Guarded) -> None:
    """And then every right of the role is used."""
    hearth = guarded.hearth()
    workload = Workload(namespace="default", name="engine", document=DEPLOYMENT)
    with pytest.raises(Forbidden):
        hearth.apply_workload(workload)
    with bound(guarded.admin, "hearth-endpoints"):
        recorded = Recorded(hearth.client)
        until(lambda: _applied(hearth, workload), "the API server has heard of the binding")
        hearth.delete_workload("default", "engine")
    used = {(resource, verb) for _, resource, verb in recorded.rights} | {("deployments", "create")}
    role = next(item for item in documents(BASE) if item["metadata"]["name"] == "hearth-endpoints")
    logs = {("pods", "get"), ("pods/log", "get")}  # of pods that a kubelet runs
    assert used | logs == {(resource, verb) for _, resource, verb in _rights("", role["rules"])}


def _applied(hearth: KubernetesGateway, workload: Workload) -> bool:
    try:
        hearth.apply_workload(workload)
    except Refused:
        return False
    return True


DEPLOYMENT = {
    "spec": {
        "replicas": 0,
        "selector": {"matchLabels": {"app": "engine"}},
        "template": {
            "metadata": {"labels": {"app": "engine"}},
            "spec": {"containers": [{"name": "engine", "image": "none"}]},
        },
    }
}


@contextlib.contextmanager
def bound(admin: KubeClient, role: str) -> Iterator[None]:
    path = f"/apis/{RBAC}/namespaces/default/rolebindings/test-endpoints"
    binding = {
        "apiVersion": RBAC, "kind": "RoleBinding", "metadata": {"name": "test-endpoints"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": "hearth", "namespace": names.SYSTEM_NAMESPACE}],
    }  # fmt: skip
    admin.apply(path, binding, manager="test")
    try:
        yield
    finally:
        admin.delete(path)


@pytest.mark.parametrize("account", ["hearth", "hearth-web", "hearth-agent"])
@pytest.mark.parametrize("namespace", [names.NODES_NAMESPACE, names.SYSTEM_NAMESPACE, "default", "kube-system"])
def test_the_api_server_knows_of_no_other_right(guarded: Guarded, account: str, namespace: str) -> None:
    guarded.contract.add_node("n-1")
    client = guarded.agent("n-1") if account == "hearth-agent" else guarded.hearth(account).client
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": namespace},
    }
    path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
    answer = client.create(path, review, manager="test")["status"]
    assert answer["incomplete"] is False
    known = {(r, v) for rule in answer["resourceRules"] for r in rule["resources"] for v in rule["verbs"]}
    wanted = {(r, v) for place, r, v in granted(account) if place in ("", namespace)}
    assert {right for right in known if right[0] not in EVERYBODY} == wanted
    assert {verb for rule in answer["nonResourceRules"] for verb in rule["verbs"]} == {"get"}
    assert not [rule for rule in answer["resourceRules"] if "*" in rule["resources"] + rule["verbs"]]
