"""What is sent for endpoints, workloads, mirrors and credentials: to no other place, and in an order that lasts."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest

from controlplane.clusters.endpoints import CacheMirror, EndpointName, EndpointOwner, MirrorKind
from controlplane.clusters.gateway import Conflict, NotFound, Refused, Unreachable
from controlplane.clusters.kubernetes import names, secrets
from controlplane.clusters.kubernetes.endpoint_calls import KubernetesEndpoints
from controlplane.clusters.kubernetes.endpoint_objects import API, observed_endpoint, workload_status
from tests.clusters.scripted_api import ScriptedApi, scripted_api

OF = EndpointName("InferenceEndpointConfig", "n", "a")
PATH = f"{API}/namespaces/n/inferenceendpointconfigs/a"
WORK, SERVICE = "/apis/apps/v1/namespaces/n/deployments/a", "/api/v1/namespaces/n/services/a"
OURS = {"labels": {"app.kubernetes.io/managed-by": "hearth", "more": "x"}}


@pytest.fixture
def api() -> Iterator[ScriptedApi]:
    with scripted_api() as made:
        yield made


@pytest.fixture
def calls(api: ScriptedApi) -> KubernetesEndpoints:
    made = KubernetesEndpoints()
    made.client = api.client
    return made


def config(version: str = f"{names.ENDPOINT_GROUP}/v1", **metadata: Any) -> dict[str, Any]:
    metadata = {"name": "a", "namespace": "n", **metadata}
    return {"apiVersion": version, "kind": OF.kind, "metadata": metadata, "spec": {"modelName": "m"}}


def served(replicas: int | None = 2) -> tuple[dict[str, Any], dict[str, Any]]:
    metadata = {"name": "a", "namespace": "n", **OURS}
    spec = {"template": {}, **({} if replicas is None else {"replicas": replicas})}
    return {"metadata": metadata, "spec": spec}, {"metadata": metadata, "spec": {}}


@pytest.mark.parametrize("version", ["v1", "v1alpha1"])
def test_a_document_goes_where_its_version_is_served(
    version: str, api: ScriptedApi, calls: KubernetesEndpoints
) -> None:
    calls.apply_endpoint(config(f"{names.ENDPOINT_GROUP}/{version}"), dry_run=True)
    [(method, path, query, body)] = api.sent
    assert (method, path) == ("PATCH", PATH.replace("/v1/", f"/{version}/"))
    assert query == {"fieldManager": "hearth", "dryRun": "All"} and body["spec"] == {"modelName": "m"}


@pytest.mark.parametrize(
    "version",
    [
        "v1",
        "",
        "apps/v1",
        f"{names.ENDPOINT_GROUP}/",
        f"{names.ENDPOINT_GROUP}/v1/namespaces/kube-system",
        f"{names.ENDPOINT_GROUP}/../../api/v1/namespaces/kube-system/secrets/x?y=",
        f"{names.ENDPOINT_GROUP}/v1?fieldManager=kubectl&x=",
        f"{names.ENDPOINT_GROUP}/v1#",
        f"{names.ENDPOINT_GROUP}/V1",
        f"{names.ENDPOINT_GROUP}/v1\n",
    ],
)
def test_nothing_but_a_version_becomes_part_of_a_path(
    version: str, api: ScriptedApi, calls: KubernetesEndpoints
) -> None:
    with pytest.raises(Refused):
        calls.apply_endpoint(config(version))
    assert api.sent == []


@pytest.mark.parametrize("metadata", [{"name": "a/status"}, {"name": ""}, {"name": None}, {"namespace": "../x"}])
def test_nothing_but_names_is_asked_for(metadata: dict[str, Any], api: ScriptedApi, calls: KubernetesEndpoints) -> None:
    with pytest.raises(NotFound):
        calls.apply_endpoint(config(**metadata))
    with pytest.raises(NotFound):
        calls.apply_endpoint(config() | {"kind": "Secret"})
    assert api.sent == []


def test_a_document_without_a_namespace_is_for_the_default_one(api: ScriptedApi, calls: KubernetesEndpoints) -> None:
    calls.apply_endpoint(config(namespace=None))
    assert api.writes() == [("PATCH", PATH.replace("/n/", "/default/"))]


def test_nobody_owns_kinds_that_are_not_there(api: ScriptedApi, calls: KubernetesEndpoints) -> None:
    assert calls.endpoint_owner() is EndpointOwner.NOBODY
    api.refusals["GET", API] = [(503, {"message": "later"})]
    with pytest.raises(Unreachable):
        calls.endpoint_owner()  # not known is not nobody


def test_a_finalizer_is_changed_once_and_only_at_the_very_object(api: ScriptedApi, calls: KubernetesEndpoints) -> None:
    api.objects[PATH] = {"metadata": {"uid": "u", "resourceVersion": "7", "finalizers": ["other/one"]}}
    for uid, present in (("u", False), ("another", True), ("another", False)):
        calls.set_endpoint_finalizer(OF, uid, present)
    assert api.writes() == []
    calls.set_endpoint_finalizer(OF, "u", True)
    wanted = {"uid": "u", "resourceVersion": "7", "finalizers": ["other/one", names.FINALIZER]}
    assert api.body("PATCH", PATH) == {"metadata": wanted}
    api.objects[PATH]["metadata"] = {"uid": "u", "resourceVersion": "8", "finalizers": [names.FINALIZER]}
    calls.set_endpoint_finalizer(OF, "u", True)
    assert len(api.writes()) == 1
    calls.set_endpoint_finalizer(OF, "u", False)
    assert api.body("PATCH", PATH)["metadata"]["finalizers"] == []
    del api.objects[PATH]
    calls.set_endpoint_finalizer(OF, "u", False)
    assert len(api.writes()) == 2


def test_what_somebody_else_scales_keeps_its_replicas(api: ScriptedApi, calls: KubernetesEndpoints) -> None:
    api.conflict("PATCH", WORK, ".spec.replicas")
    deployment, service = served()
    calls.apply_served(deployment, service)
    assert [path for _, path in api.writes()] == [SERVICE, WORK, WORK]
    assert "replicas" not in api.body("PATCH", WORK)["spec"]
    assert deployment["spec"]["replicas"] == 2, "what was handed in is nobody's to change"


@pytest.mark.parametrize("fields", [[".spec.template"], []])
def test_another_conflict_is_nobodys_to_solve(fields: list[str], api: ScriptedApi, calls: KubernetesEndpoints) -> None:
    api.conflict("PATCH", WORK, *fields)
    with pytest.raises(Conflict):
        calls.apply_served(*served())
    api.conflict("PATCH", WORK, ".spec.replicas", ".spec.template")
    api.conflict("PATCH", WORK, ".spec.template")
    with pytest.raises(Conflict):
        calls.apply_served(*served())


@pytest.mark.parametrize("taken", [WORK, SERVICE])
def test_what_somebody_else_made_is_not_touched(taken: str, api: ScriptedApi, calls: KubernetesEndpoints) -> None:
    theirs = {"metadata": {"uid": "t", "labels": {"app.kubernetes.io/managed-by": "helm"}}}
    api.objects = {path: {"metadata": {"uid": "o", **OURS}} for path in (WORK, SERVICE)} | {taken: theirs}
    with pytest.raises(Conflict, match="somebody else"):
        calls.apply_served(*served())
    assert ("PATCH", taken) not in api.writes()
    calls.delete_served("n", "a")
    assert set(api.objects) == {taken}, "and what is Hearth's goes all the same"
    assert calls.service_is_ours("n", "a") is (False if taken == SERVICE else None)
    deleted = next(body for method, _, _, body in api.sent if method == "DELETE")
    assert deleted["preconditions"] == {"uid": "o"}


def test_a_mirror_and_its_numbers_are_two_writes(api: ScriptedApi, calls: KubernetesEndpoints) -> None:
    calls.apply_cache_mirror(CacheMirror(MirrorKind.IMAGE, "n", "m", {"image": "x"}, {"state": "Ready"}))
    path = f"{API}/namespaces/n/modelimagecaches/m"
    assert api.writes() == [("PATCH", path), ("PATCH", f"{path}/status")]
    assert api.sent[0][2]["force"] == "true" and api.sent[1][3] == {"status": {"state": "Ready"}}
    with pytest.raises(NotFound):
        calls.delete_cache_mirror(MirrorKind.IMAGE, "n", "m/../x")


def test_a_workload_is_looked_at_by_its_name(api: ScriptedApi, calls: KubernetesEndpoints) -> None:
    assert calls.workload_status("n", "a") is None
    api.objects[WORK] = {"metadata": {"uid": "d", "generation": 1}}
    seen = calls.workload_status("n", "a")
    assert seen is not None and (seen.wanted, seen.observed, seen.total) == (1, False, 0)


@pytest.mark.parametrize("condition", [{"message": ""}, {"message": None}, {}])
def test_a_failure_without_words_is_one_all_the_same(condition: dict[str, Any]) -> None:
    said = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", **condition}
    item = {"metadata": {"uid": "d"}, "status": {"conditions": [said]}}
    assert workload_status(item).failed == "FailedCreate"


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("hearth.dev/gate", True),
        ("cache.hearth.dev/x", True),
        ("nothearth.dev/gate", False),
        ("hearth.dev.example/gate", False),
        ("hearth.dev", False),
        ("x/hearth.dev", False),
    ],
)
def test_only_hearths_own_notes_are_remembered(name: str, kept: bool) -> None:
    item = {"metadata": {"name": "a", "namespace": "n", "uid": "u", "annotations": {name: "1"}}}
    assert dict(observed_endpoint(item, OF.kind).annotations) == ({name: "1"} if kept else {})


# -- credentials

LOGIN = 'p:ä"ss\n'
SECRET, PULL = f"{names.SECRETS}/store", f"{names.IMAGE_SECRETS}/hearth-pull-reg"


def test_credentials_come_back_as_they_were_given(api: ScriptedApi) -> None:
    secrets.secret_apply(api.client, "store", {"key": LOGIN, "empty": ""})
    api.objects[SECRET] = api.body("PATCH", SECRET)
    assert api.sent[-1][2] == {"fieldManager": "hearth"}, "nobody's keys are taken by force"
    assert secrets.secret_read(api.client, "store") == {"key": LOGIN, "empty": ""}
    api.objects[SECRET] = {"metadata": {}}
    assert secrets.secret_read(api.client, "store") == {}


@pytest.mark.parametrize("data", ["/w==", "!", "a", "größe"])
def test_bytes_that_are_no_text_are_said_without_them(data: str, api: ScriptedApi) -> None:
    api.objects[SECRET] = {"data": {"key": data}}
    with pytest.raises(Unreachable) as caught:
        secrets.secret_read(api.client, "store")
    assert str(caught.value) == "The secret store holds bytes that are no text."


def test_only_a_secret_of_hearths_is_removed(api: ScriptedApi) -> None:
    api.objects[SECRET] = {"metadata": {"uid": "t"}}
    secrets.secret_delete(api.client, "store")
    assert SECRET in api.objects
    api.objects[SECRET] = {"metadata": {"uid": "o", **OURS}}
    secrets.secret_delete(api.client, "store")
    secrets.secret_delete(api.client, "store")
    assert api.objects == {} and api.writes() == [("DELETE", SECRET)]


def test_a_pull_secret_is_what_kubelets_read_and_is_never_asked_for(api: ScriptedApi) -> None:
    secrets.pull_secret_apply(api.client, "hearth-pull-reg", "registry.example:5000", "ada", LOGIN)
    content = json.loads(base64.b64decode(api.body("PATCH", PULL)["data"][".dockerconfigjson"]))
    login = content["auths"]["registry.example:5000"]
    assert (login["username"], login["password"]) == ("ada", LOGIN)
    assert base64.b64decode(login["auth"]).decode() == f"ada:{LOGIN}"
    secrets.pull_secret_delete(api.client, "hearth-pull-reg")
    assert {method for method, *_ in api.sent} == {"PATCH", "DELETE"}


@pytest.mark.parametrize("name", ["", "../pods/x", "a/b", "A", "a b", "x" * 254])
def test_nothing_but_a_name_names_a_secret(name: str, api: ScriptedApi) -> None:
    for call in (secrets.secret_read, secrets.secret_delete, secrets.pull_secret_delete):
        with pytest.raises(NotFound):
            call(api.client, name)
    with pytest.raises(NotFound):
        secrets.pull_secret_apply(api.client, name, "r", "u", "p")
    assert api.sent == []


def test_a_refusal_about_a_secret_quotes_nothing_of_it(api: ScriptedApi) -> None:
    api.refusals["PATCH", PULL] = [(422, {"reason": "Invalid", "message": f"data: {LOGIN}"})]
    with pytest.raises(Refused) as caught:
        secrets.pull_secret_apply(api.client, "hearth-pull-reg", "r", "u", LOGIN)
    assert LOGIN not in str(caught.value) and "Invalid" in str(caught.value)
