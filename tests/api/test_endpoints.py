"""Endpoints and rollouts over REST: what people see of them, what a document would do, and who may change what."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
import yaml
from django.conf import LazySettings
from django.utils import timezone

from caches.models import Pin, Rollout
from caches.services.endpoints.documents import endpoint_apply_step, manifest_read
from controlplane.accounts.models import Scope, User
from controlplane.audit.models import AuditEvent
from controlplane.clusters.gateway import Conflict, GatewayError, NoNamespace, Refused
from controlplane.clusters.models import Cluster
from controlplane.errors import Invalid
from controlplane.operations.models import Operation
from controlplane.serving.models import Endpoint, Instance
from tests import factories
from tests.api.conftest import Api, api_for
from tests.domain.endpoints import GONE, config
from tests.services.endpoints import EndpointWorld
from tests.services.world import MIB, World

pytestmark = pytest.mark.django_db
LONG = [{"name": f"V{number}", "value": "x" * 120_000} for number in range(9)]
CLIMBS = {"weightsCache": {"enabled": True, "hostPath": "/x/../etc"}}


@pytest.fixture
def served(db: None, tmp_path: Any, settings: LazySettings) -> Iterator[EndpointWorld]:
    made = EndpointWorld(World(tmp_path / "fleet"), settings)
    yield made
    made.close()


@pytest.fixture
def rollouts_api(operator: User) -> Api:
    return api_for(operator, Scope.READ, Scope.ROLLOUTS_WRITE)


def manifest(**changes: Any) -> str:
    return yaml.safe_dump(config(**{"spec__instanceType": GONE, **changes}))


def test_it_shows_an_endpoint_on_its_way(served: EndpointWorld, viewer_api: Api) -> None:
    version = served.version()
    served.apply()
    served.round()
    served.warm("n1")
    served.round()
    Endpoint.objects.update(status=served.status)
    Instance.objects.create(
        endpoint=served.endpoint, uid="p", name="pod", ready=True, observed_at=served.endpoint.observed_at
    )

    [item] = viewer_api.get("endpoints").json()["items"]
    assert (item["cluster"], item["namespace"], item["name"], item["state"]) == (
        served.world.cluster.name, "default", "chat-small", "DeploymentPending",
    )  # fmt: skip
    assert item["rollout"]["state"] == "Warming" and item["rollout"]["weights"] == "s3://models/llms/chat-small"
    assert {one["type"] for one in item["conditions"]} >= {"Accepted", "WeightsCacheReady", "RolledOut"}
    shown = viewer_api.get(f"endpoints/{item['id']}").json()
    assert [one["name"] for one in shown["instances"]] == ["pod"]

    rollout = viewer_api.get(f"rollouts/{item['rollout']['id']}").json()
    assert (rollout["number"], rollout["message"]) == (1, "1 of 2 ready.")
    assert rollout["version"]["digest"] == version.artifact.digest  # type: ignore[union-attr]
    assert {node["node"]: node["state"] for node in rollout["nodes"]} == {"n1": "Ready", "n2": "Absent"}
    assert rollout["links"]["ui"].endswith(f"/endpoints/{item['id']}")
    assert rollout["warm"] == {"weights": {"ready": 1, "targets": 2}, "image": None}
    assert (rollout["previous"], rollout["image_digest"]) == (None, None)


@pytest.mark.parametrize("status", [{}, {"conditions": "x", "state": 5, "replicas": "y"}, {"conditions": [1, {}]}])
def test_it_shows_whatever_somebody_wrote_into_a_status(viewer_api: Api, status: Any) -> None:
    row = factories.endpoint(status=status)
    shown = viewer_api.get(f"endpoints/{row.pk}").json()
    assert shown["rollout"] is None and shown["replicas"] == 0
    assert all(one["status"] == "Unknown" and one["last_transition"] is None for one in shown["conditions"])


def test_pods_say_why_they_wait_and_that_they_leave_and_a_status_that_was_not_taken_is_shown(viewer_api: Api) -> None:
    condition = {"type": "StatusWritten", "status": "False", "reason": "NotWritten", "message": "403"}
    unwritten = {"state": "DeploymentInProgress", "replicas": 2, "conditions": [condition]}
    made = factories.endpoint(of=factories.cluster(observed_at=timezone.now()), unwritten=unwritten)
    words = "server: ErrImagePull: not found"
    waits = {"wait_reason": "ImagePullFailed", "wait_message": words, "ready": False}
    factories.instance(of=made, name="a", **waits)
    factories.instance(of=made, name="b", leaving=True, ready=False)
    shown = viewer_api.get(f"endpoints/{made.pk}").json()
    told = [(one["state"], one["ready"], one["wait_reason"], one["wait_message"]) for one in shown["instances"]]
    assert told == [("NotReady", False, "ImagePullFailed", words), ("Terminating", False, "", "")]
    assert (shown["state"], shown["replicas"]) == ("DeploymentInProgress", 2)
    assert [(one["type"], one["message"]) for one in shown["conditions"]] == [("StatusWritten", "403")]
    listed = {one["name"]: one for one in viewer_api.get("instances").json()["items"]}
    assert {name: one["state"] for name, one in listed.items()} == {"a": "NotReady", "b": "Terminating"}
    assert (listed["a"]["wait_reason"], listed["a"]["wait_message"]) == ("ImagePullFailed", words)

    Cluster.objects.update(observed_at=timezone.now() - timedelta(hours=1))
    last = [*viewer_api.get(f"endpoints/{made.pk}").json()["instances"], *viewer_api.get("instances").json()["items"]]
    assert len(last) == 4, "what they waited for is no news"
    assert {(one["state"], one["wait_reason"], one["wait_message"]) for one in last} == {("Unknown", "", "")}


def test_a_pod_whose_kubelet_is_silent_is_unknown_and_names_its_node(viewer_api: Api) -> None:
    made = factories.endpoint(of=factories.cluster(observed_at=timezone.now()))
    last = timezone.now() - timedelta(minutes=5)
    node = factories.node(of=factories.pool(of=made.cluster), name="b", ready=None, reported_at=last)
    factories.instance(of=made, ready=False, node=node, wait_reason="Crashing", wait_message="back-off 1m20s")
    [one] = viewer_api.get(f"endpoints/{made.pk}").json()["instances"]
    [listed] = viewer_api.get("instances").json()["items"]
    for shown in (one, listed):
        assert (shown["state"], shown["wait_reason"]) == ("Unknown", "NodeNotReady")
        assert shown["wait_message"] == "its node b is not ready"
        assert datetime.fromisoformat(shown["unknown_since"]) == last


def test_what_is_said_of_one_is_as_old_as_the_last_word_of_its_cluster(viewer_api: Api) -> None:
    """A document that does not change is told of once; that it did not change is news for as long as it is watched."""
    now = timezone.now()
    made = factories.endpoint(of=factories.cluster(observed_at=now))
    Endpoint.objects.update(observed_at=now - timedelta(minutes=3))

    def observed() -> datetime:
        return datetime.fromisoformat(viewer_api.get(f"endpoints/{made.pk}").json()["observed_at"])

    assert observed() == now
    Endpoint.objects.update(gone_at=now)
    assert observed() == now - timedelta(minutes=3)


def test_one_that_the_cluster_has_no_more_is_not_what_it_was_last_seen_as(viewer_api: Api) -> None:
    status = {"state": "DeploymentComplete", "replicas": 2}
    row = factories.endpoint(status=status, gone_at=timezone.now())
    shown = viewer_api.get(f"endpoints/{row.pk}").json()
    assert (shown["state"], shown["replicas"]) == ("Gone", 0)
    Endpoint.objects.update(gone_at=None)
    shown = viewer_api.get(f"endpoints/{row.pk}").json()
    assert (shown["state"], shown["replicas"]) == ("DeploymentComplete", 2)


def test_a_dry_run_says_what_a_document_would_do_and_writes_nothing(served: EndpointWorld, rollouts_api: Api) -> None:
    version = served.version(size=64 * MIB)
    body = {"cluster": served.world.cluster.name, "manifest": manifest(spec__metrics={"enabled": True})}
    answer = rollouts_api.post("endpoints?dry_run=true", body)
    assert answer.status_code == 200, answer.content
    said = answer.json()
    assert (said["name"], said["weights"], said["image"]) == (
        "chat-small", "s3://models/llms/chat-small", "vllm/vllm-openai:latest",
    )  # fmt: skip
    assert said["digest"] == version.artifact.digest  # type: ignore[union-attr]
    assert said["pools"] == [served.world.pool.full_name] and said["not_warmed"] == ""
    assert [one["path"] for one in said["ignored"]] == ["metrics"]
    assert {move["node"] for move in said["plan"]["moves"]} != set() and said["plan"]["total_bytes"] == 128 * MIB
    assert not Operation.objects.exists() and not Pin.objects.exists() and not Endpoint.objects.exists()


def test_a_dry_run_without_nodes_or_version_says_so(served: EndpointWorld, rollouts_api: Api) -> None:
    body = {"cluster": served.world.cluster.name, "manifest": manifest(spec__instanceType="ml.p5.48xlarge")}
    said = rollouts_api.post("endpoints?dry_run=true", body).json()
    assert (said["digest"], said["plan"], said["pools"]) == ("", None, [])
    assert said["not_warmed"].startswith(
        "No node of a pool matches the endpoint: none has node.kubernetes.io/instance-"
    )
    assert said["not_warmed"].endswith("=ml.p5.48xlarge.")


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("", "manifest"),
        ("- a\n- b\n", "manifest"),
        ("a: 1\n---\nb: 2\n", "manifest"),
        ("a: &x [1]\nb: *x\n", "manifest"),
        ("a: {b: [", "manifest"),
        ("[" * 5000, "manifest"),
        ("\ud800", "manifest"),
        ("1: {2: 3}", ""),
        (manifest() + '\n  odd: "\\0"\n', "manifest"),
        ("!!python/object/apply:os.system ['true']", "manifest"),
        (manifest(spec__worker__image="a b"), "spec.worker.image"),
        (manifest(kind="Pod"), "kind"),
    ],
)
def test_it_refuses_a_manifest_with_the_field(rollouts_api: Api, text: str, field: str) -> None:
    cluster = factories.cluster()
    for query in ("?dry_run=true", ""):
        answer = rollouts_api.post(f"endpoints{query}", {"cluster": cluster.name, "manifest": text})
        assert answer.status_code == 400, answer.content
        assert field in [error["field"] for error in answer.json()["errors"]]
    assert not Operation.objects.exists()


@pytest.mark.parametrize(
    ("text", "detail", "step"),
    [
        ("", "must hold one object, not 0", "Send an endpoint's document."),
        ("- a\n", "must be an object", "Send an endpoint's document."),
        ("a: 1\n---\nb: 2\n", "must hold one object, not 2", "Send one endpoint at a time."),
        ("a: b\nc: d: e\n", "mapping values are not allowed here in line 2, column 5.", "Correct it."),
        ("a: &x [1]\nb: *x\n", "anchors or aliases", "Write out what they stand for."),
        *(
            (text * 20_000, "nested more than 64 levels deep", "Send a flatter document.")
            for text in ("[", "- ", "{a: ")
        ),
    ],
    ids=["nothing", "a list", "two", "no YAML", "anchors", "brackets", "lists", "objects"],
)
def test_what_is_wrong_with_a_manifest_is_said_with_what_to_do(text: str, detail: str, step: str) -> None:
    with pytest.raises(Invalid) as refused:
        manifest_read(text)
    assert detail in refused.value.detail and refused.value.next_step == step


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("manifest", {"spec__worker__environmentVariables": LONG}),  # more than an API server would be sent
        ("spec.worker.environmentVariables", {"spec__worker__environmentVariables": LONG[1:]}),
        ("spec.modelSourceConfig.modelLocation", {"spec__modelSourceConfig__modelLocation": "a/../../etc"}),
        ("spec.modelCacheConfig.weightsCache.hostPath", {"spec__modelCacheConfig": CLIMBS}),
    ],
    ids=["a megabyte", "a large environment", "a place that climbs", "a folder that climbs"],
)
def test_it_refuses_what_kubectl_would_have_refused_in_the_status(
    rollouts_api: Api, field: str, changes: dict[str, Any]
) -> None:
    """The cases of tests/kube/test_endpoint_hostile.py that are about size and paths."""
    body = {"cluster": factories.cluster().name, "manifest": manifest(**changes)}
    for query in ("?dry_run=true", ""):
        answer = rollouts_api.post(f"endpoints{query}", body)
        assert answer.status_code == 400, answer.content
        assert [error["field"] for error in answer.json()["errors"]] == [field]
        assert len(answer.content) < 5000, "the document is not sent back"
    assert not Operation.objects.exists()


def test_json_is_yaml_too(served: EndpointWorld, rollouts_api: Api) -> None:
    body = {"cluster": served.world.cluster.name, "manifest": json.dumps(config())}
    assert rollouts_api.post("endpoints?dry_run=true", body).status_code == 200


def upload(served: EndpointWorld, api: Api, **changes: Any) -> Any:
    answer = api.post("endpoints?wait=0", {"cluster": served.world.cluster.name, "manifest": manifest(**changes)})
    assert answer.status_code == 202, answer.content
    endpoint_apply_step(operation_id=answer.json()["id"])
    return api.get(f"operations/{answer.json()['id']}").json()


def test_a_document_is_applied_by_the_worker(served: EndpointWorld, rollouts_api: Api) -> None:
    applied: list[Any] = []
    served.gateway.applied = applied
    ended = upload(served, rollouts_api)
    assert ended["state"] == "Succeeded" and applied == [yaml.safe_load(manifest())]


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (Conflict("spec.worker.image", ("kubectl-edit",)), "endpoint:user:held-by-others", "kubectl-edit holds"),
        (Refused("no such kind"), "endpoint:cluster:refused", "no such kind"),
        (NoNamespace("nosuch"), "endpoint:cluster:no-namespace", "The namespace nosuch is not there."),
    ],
)
def test_what_the_cluster_refuses_is_the_operations_error(
    served: EndpointWorld, rollouts_api: Api, error: GatewayError, code: str, words: str
) -> None:
    served.gateway.applied, served.gateway.problem = [], error
    ended = upload(served, rollouts_api)
    assert (ended["state"], ended["error"]["code"]) == ("Failed", code) and words in ended["error"]["detail"]


def test_a_local_fleet_takes_no_endpoint(served: EndpointWorld, rollouts_api: Api) -> None:
    ended = upload(served, rollouts_api)
    assert ended["error"]["code"] == "endpoint:cluster:refused" and "no endpoint documents" in ended["error"]["detail"]


def test_a_gate_is_opened_by_hand(served: EndpointWorld, rollouts_api: Api) -> None:
    served.version()
    served.apply()
    served.round()
    path = f"rollouts/{served.rollout.pk}/release"
    for _ in range(2):
        assert rollouts_api.post(path).status_code == 200
    served.round()
    assert served.rollout.state == "Switching" and len(served.gateway.deployments) == 1
    opened_by = rollouts_api.get(f"rollouts/{served.rollout.pk}").json()["released_by"]
    assert opened_by == AuditEvent.objects.get(action="rollout.release").actor
    answer = rollouts_api.post(path)
    assert (answer.status_code, answer.json()["code"]) == (409, "rollout:user:nothing-to-release")


def test_a_hold_is_made_longer_or_shorter_by_hand(served: EndpointWorld, rollouts_api: Api) -> None:
    served.version()
    served.apply()
    served.until_served()
    path = f"rollouts/{served.rollout.pk}/hold"
    answer = rollouts_api.post(path, {"seconds": 60})
    assert (answer.status_code, answer.json()["code"]) == (409, "rollout:user:nothing-held")

    served.version("llms/next")
    served.apply(spec__modelSourceConfig__modelLocation="llms/next")
    served.until_served()
    assert served.rollout.state == "Holding"
    path = f"rollouts/{served.rollout.pk}/hold"
    for wrong in (0, -1, 10**9, "x", None):
        answer = rollouts_api.post(path, {"seconds": wrong})
        assert (answer.status_code, answer.json()["errors"][0]["field"]) == (400, "seconds")
    before = served.rollout.held_until
    Rollout.objects.filter(pk=served.rollout.pk).update(released_by="olga")
    held = rollouts_api.post(path, {"seconds": 7 * 86400}).json()
    assert before is not None and datetime.fromisoformat(held["held_until"]) > before + timedelta(days=6)
    assert held["released_by"] == "olga", "who opened its gate stays known"
    served.round()
    assert served.rollout.state == "Holding", "and the round keeps to it"
    rollouts_api.post(path, {"seconds": 1})
    Rollout.objects.filter(pk=served.rollout.pk).update(held_until=timezone.now() - timedelta(seconds=1))
    served.round()
    assert served.rollout.state == "Done"
    assert AuditEvent.objects.filter(action="rollout.hold").count() == 2


def test_a_rollout_tells_its_gate(served: EndpointWorld, rollouts_api: Api) -> None:
    served.version()
    served.apply(metadata__annotations={"hearth.dev/gate": "Percent:50"})
    served.round()
    gate = rollouts_api.get(f"rollouts/{served.rollout.pk}").json()["gate"]
    assert gate == {
        "type": "Percent", "value": 50, "state": "Closed", "reason": "0 of 1 ready", "ready": 0, "required": 1,
        "failed": 0, "unknown": 0,
    }  # fmt: skip
    served.until_served()
    assert rollouts_api.get(f"rollouts/{served.rollout.pk}").json()["gate"] is None, "it waits for nothing"


def test_going_back_asks_for_what_the_rollout_served(served: EndpointWorld, rollouts_api: Api) -> None:
    served.version()
    served.apply()
    served.until_served()
    first = served.rollout
    served.version("llms/next")
    served.apply(spec__modelSourceConfig__modelLocation="llms/next", spec__worker__image="x:2", spec__replicas=3)
    served.round()
    applied: list[Any] = []
    served.gateway.applied = applied
    answer = rollouts_api.post(f"rollouts/{first.pk}/rollback?dry_run=true")
    assert answer.status_code == 200, answer.content
    assert (answer.json()["weights"], answer.json()["image"]) == (
        "s3://models/llms/chat-small",
        "vllm/vllm-openai:latest",
    )
    assert answer.json()["digest"] == first.version.artifact.digest  # type: ignore[union-attr]
    assert not Operation.objects.filter(kind="EndpointApply").exists(), "it was only asked"
    applied.clear()
    answer = rollouts_api.post(f"rollouts/{first.pk}/rollback")
    assert answer.status_code == 202, answer.content
    endpoint_apply_step(operation_id=answer.json()["id"])
    [document] = applied
    assert document["spec"]["modelSourceConfig"]["modelLocation"] == "llms/chat-small"
    assert document["spec"]["worker"]["image"] == "vllm/vllm-openai:latest"
    assert document["spec"]["replicas"] == 3, "and nothing else is taken back"
    newest = Rollout.objects.order_by("-number")[0]
    for query in ("?dry_run=true", ""):
        answer = rollouts_api.post(f"rollouts/{newest.pk}/rollback{query}")
        assert (answer.status_code, answer.json()["code"]) == (409, "rollout:user:serving-already")


def test_people_see_and_change_endpoints_of_their_clusters_alone(served: EndpointWorld) -> None:
    other = factories.endpoint(of=factories.cluster(name="elsewhere"))
    rollout = factories.rollout(of=other, state="Warming")
    name = served.world.cluster.name
    make: Callable[..., Any] = factories.user
    scopes = (Scope.READ, Scope.ROLLOUTS_WRITE)
    api = api_for(make(role="Operator", target=name), *scopes)
    served.apply()
    assert [item["cluster"] for item in api.get("endpoints").json()["items"]] == [name]
    for path in (f"endpoints/{other.pk}", f"rollouts/{rollout.pk}"):
        assert api.get(path).status_code == 404
    assert api.post(f"rollouts/{rollout.pk}/release").status_code == 404
    answer = api.post("endpoints?dry_run=true", {"cluster": "elsewhere", "manifest": manifest()})
    assert answer.json()["errors"][0]["code"] == "endpoint:user:no-such-cluster"
    viewer = api_for(make(role="Viewer", target=name), Scope.READ)
    assert viewer.post("endpoints?dry_run=true", {"cluster": name, "manifest": manifest()}).status_code == 403
