"""The rights of deploy/endpoints: Hearth's own account does with them all that endpoints need, and has no other."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from caches.services.endpoints.asking import ask, deployment_question, kinds_question, object_question, service_question
from controlplane.clusters.endpoints import CacheMirror, MirrorKind
from controlplane.clusters.gateway import Forbidden, GatewayError, Kind, NotFound, Refused
from controlplane.clusters.kubernetes import names
from controlplane.clusters.kubernetes.gateway import KubernetesGateway
from controlplane.clusters.kubernetes.install import documents
from tests.contracts.observing import changes
from tests.kube.endpoint_kinds import API, ENDPOINTS, endpoint_kinds
from tests.kube.guarded import Guarded
from tests.kube.installed import policies_gone, policies_hold
from tests.kube.test_endpoint_adapter import CONFIG, OF
from tests.kube.test_endpoint_adapter import documents as served
from tests.kube.test_rights import RBAC, Recorded
from tests.waiting import until

STATUS = {"state": "Ready", "readyNodes": 1, "targetNodes": 1, "message": ""}


@contextlib.contextmanager
def bound(guarded: Guarded, *roles: str, account: str = "hearth") -> Iterator[None]:
    """As the runbook binds them in a namespace."""
    paths = []
    for role in roles:
        paths.append(f"/apis/{RBAC}/namespaces/default/rolebindings/test-{role}")
        binding = {
            "apiVersion": RBAC, "kind": "RoleBinding", "metadata": {"name": f"test-{role}"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": names.SYSTEM_NAMESPACE}],
        }  # fmt: skip
        guarded.admin.apply(paths[-1], binding, manager="test")
    try:
        yield
    finally:
        for path in paths:
            guarded.admin.delete(path)


def serves(gateway: KubernetesGateway) -> bool:
    try:
        gateway.apply_served(*served())
    except GatewayError:
        return False
    return True


def test_hearth_reads_the_very_secret_that_a_namespace_allows_and_no_other(guarded: Guarded) -> None:
    """Neither another one of that namespace nor the same name in another one, whatever a document says."""
    gateway, admin, paths = guarded.hearth(), guarded.admin, []
    role: dict[str, Any] = {
        "apiVersion": RBAC, "kind": "Role", "metadata": {"name": "test-tokens"},
        "rules": [{"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["hub-token"], "verbs": ["get"]}],
    }  # fmt: skip
    binding: dict[str, Any] = {
        "apiVersion": RBAC, "kind": "RoleBinding", "metadata": {"name": "test-tokens"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "test-tokens"},
        "subjects": [{"kind": "ServiceAccount", "name": "hearth", "namespace": names.SYSTEM_NAMESPACE}],
    }  # fmt: skip
    for namespace, name in (("default", "hub-token"), ("default", "mine"), ("kube-public", "hub-token")):
        paths.append(f"/api/v1/namespaces/{namespace}/secrets/{name}")
        document = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": {"token": "hf_x"}}
        admin.apply(paths[-1], document, manager="test")
    paths += [f"/apis/{RBAC}/namespaces/default/{kind}/test-tokens" for kind in ("roles", "rolebindings")]

    def said(namespace: str, name: str) -> str:
        try:
            return gateway.endpoint_secret(namespace, name, "token")
        except Forbidden as error:
            assert "hf_x" not in str(error)
            return "refused"

    try:
        assert said("default", "hub-token") == "refused", "before anybody allowed it"
        for path, document in zip(paths[-2:], (role, binding), strict=True):
            admin.apply(path, document, manager="test")
        until(lambda: said("default", "hub-token") == "hf_x", "the API server has heard of the binding")
        assert said("default", "mine") == said("kube-public", "hub-token") == "refused"
        for namespace, name, key in (("default", "hub-token", "other"), ("../kube-public", "hub-token", "token")):
            with pytest.raises(NotFound):
                gateway.endpoint_secret(namespace, name, key)
    finally:
        for path in paths:
            admin.delete(path)


def test_hearth_serves_with_the_rights_it_is_given_and_uses_all_of_them(guarded: Guarded) -> None:
    gateway = guarded.hearth()
    with endpoint_kinds(guarded.admin):
        recorded = Recorded(gateway.client)
        until(lambda: gateway.list(Kind.ENDPOINT).items == (), "the account may list them")
        for kind in (Kind.ENDPOINT, Kind.JUMPSTART_MODEL):
            changes(gateway, kind, gateway.list(kind).token)
        gateway.apply_endpoint(CONFIG)
        uid = guarded.admin.get(f"{API}/namespaces/default/{names.CONFIGS}/chat-small")["metadata"]["uid"]
        gateway.set_endpoint_finalizer(OF, uid, True)
        gateway.set_endpoint_status(OF, uid, {"state": "DeploymentPending"})
        for mirror in MirrorKind:
            spec = {"image": "x"} if "Image" in mirror else {"hostPath": "/x"}
            gateway.apply_cache_mirror(CacheMirror(mirror, "default", "m", spec, STATUS))
            gateway.delete_cache_mirror(mirror, "default", "m")
        with pytest.raises(Forbidden):
            gateway.apply_served(*served())
        with bound(guarded, "hearth-endpoints", "hearth-services"):
            until(lambda: serves(gateway), "the API server has heard of the bindings")
            assert gateway.workload_status("default", "chat-small") is not None
            gateway.delete_served("default", "chat-small")
        gateway.set_endpoint_finalizer(OF, uid, False)
        gateway.delete_endpoint(OF, uid)
    used = {(resource, verb) for _, resource, verb in recorded.rights}
    given = rights_of("hearth-endpoint-kinds", "hearth-services")
    # Applying what is not there yet is a creation too; both kinds of endpoint are written alike.
    alike = {(resource.replace("jumpstartmodels", names.CONFIGS), verb) for resource, verb in given if verb != "create"}
    assert alike <= used
    assert {right for right in used if right[0] != "deployments" or right[1] == "get"} <= given


def rights_of(*roles: str) -> set[tuple[str, str]]:
    """What deploy/endpoints gives to whom these are bound."""
    rules = {item["metadata"]["name"]: item["rules"] for item in documents(ENDPOINTS) if item["kind"] == "ClusterRole"}
    return {
        (resource, verb)
        for name in roles
        for rule in rules[name]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_the_pages_account_asks_what_a_document_would_do_and_changes_nothing(guarded: Guarded) -> None:
    gateway, said = guarded.hearth("hearth-web"), {}
    recorded = Recorded(gateway.client)

    def asked(document: dict[str, Any] = CONFIG) -> dict[str, tuple[str, str]]:
        questions = {
            "kinds": kinds_question(gateway),
            "object": object_question(gateway, document),
            "deployment": deployment_question(gateway, "default", "chat-small", known=False),
            "service": service_question(gateway, "default", "chat-small"),
        }
        return {about: (one.answer.value, one.said) for about, one in ask(questions, seconds=60).items()}

    with endpoint_kinds(guarded.admin, policies=True):
        policies_gone(guarded.admin)  # the marker of those before, which says nothing of these
        policies_hold(guarded.admin)
        until(lambda: asked()["object"][0] == "Fine", "the account may ask")
        said = asked()
        assert said["kinds"][0] == "Fine"
        assert (
            said["deployment"][0] == "Unknown" and "hearth-web-deployments, bound in default" in said["deployment"][1]
        )
        with bound(guarded, "hearth-web-deployments", account="hearth-web"):
            until(lambda: asked()["deployment"][0] == "Fine", "it may look at Deployments there")
            until(lambda: asked()["service"][0] == "Fine", "and at Services")
            guarded.admin.create("/apis/apps/v1/namespaces/default/deployments", served()[0], manager="somebody")
            assert asked()["deployment"][0] == "Problem", "somebody else's has the name"
            guarded.admin.delete(f"/apis/apps/v1/namespaces/default/deployments/{OF.name}")
            theirs = {**served()[1], "metadata": {"name": OF.name, "namespace": "default"}}
            guarded.admin.create("/api/v1/namespaces/default/services", theirs, manager="somebody")
            in_the_way = asked()["service"][0]
            guarded.admin.delete(f"/api/v1/namespaces/default/services/{OF.name}")
            assert in_the_way == "Problem", "a Service too"
        nowhere = {**CONFIG, "metadata": {"name": "chat-small", "namespace": "nobodys"}}
        assert asked(nowhere)["object"] == ("Problem", asked(nowhere)["object"][1])
        assert "The namespace nobodys is not there. Create it" in asked(nowhere)["object"][1]
        wrong = {**CONFIG, "spec": {**CONFIG["spec"], "replicas": "two"}}
        assert asked(wrong)["object"][0] == "Problem" and "replicas" in asked(wrong)["object"][1], asked(wrong)
        assert guarded.admin.get(f"{API}/{names.CONFIGS}")["items"] == [], "nothing was stored"

        path = f"{API}/namespaces/default/{names.CONFIGS}"
        guarded.admin.apply(f"{path}/chat-small", CONFIG, manager="kubectl")
        changed = {**CONFIG, "spec": {**CONFIG["spec"], "modelName": "another"}}
        assert (
            asked(changed)["object"][0] == "Problem" and "kubectl holds spec.modelName" in asked(changed)["object"][1]
        )
        for write in (
            lambda: gateway.apply_endpoint(CONFIG),
            lambda: gateway.client.merge(f"{path}/chat-small", {"spec": {"replicas": 9}}, manager="x"),
            lambda: gateway.client.create(path, {**CONFIG, "metadata": {"name": "another"}}, manager="x"),
        ):
            with pytest.raises(Refused, match="change nothing"):
                write()
        with pytest.raises(Forbidden):
            gateway.delete_endpoint(OF, "")
        stored = guarded.admin.get(f"{path}/chat-small")
        assert (stored["metadata"]["generation"], stored["spec"]["modelName"]) == (1, CONFIG["spec"]["modelName"])
    used = {(resource, verb) for _, resource, verb in recorded.rights if verb != "delete"}
    alike = {(resource.replace(names.JUMPSTART_MODELS, names.CONFIGS), verb) for resource, verb in used}
    given = rights_of("hearth-web-endpoint-kinds", "hearth-web-deployments")
    assert alike == {(resource.replace(names.JUMPSTART_MODELS, names.CONFIGS), verb) for resource, verb in given}
