"""Rounds over endpoints: gate before Deployment, caches switched, deletion, and what goes wrong."""

from __future__ import annotations

from datetime import timedelta

import pytest
import time_machine
from django.utils import timezone

from caches.models import Pin, Rollout, ShownMirror
from caches.selectors import endpoint_targets
from caches.services.endpoints.images import FOLDERS
from caches.services.endpoints.refusals import BINDINGS
from caches.services.endpoints.rollouts import rollout_release
from caches.services.pins import pin_remove, pin_update
from controlplane.audit.services import SYSTEM
from controlplane.clusters.endpoints import EndpointOwner, MirrorKind
from controlplane.clusters.gateway import Conflict, EventType, Forbidden, Refused
from controlplane.errors import Clash
from controlplane.serving.models import Endpoint, Instance
from tests.services.endpoints import EndpointWorld, unreachable
from tests.services.world import failed

pytestmark = pytest.mark.django_db


def test_weights_gate_the_deployment_and_status_tells_the_way(served: EndpointWorld) -> None:
    version = served.version()
    served.apply()
    assert served.round() == 1
    [pin] = served.pins
    assert (pin.version, pin.endpoint, served.rollout.state) == (version, served.endpoint, "Warming")
    assert served.gateway.deployments == [] and served.gateway.finalizer
    assert served.status["state"] == "DeploymentPending"
    assert served.condition("WeightsCacheReady")[0] == "False"

    served.warm("n1")
    served.round()
    assert served.gateway.deployments == [], "one of two is not all"
    assert served.condition("RolledOut") == ("False", "Warming", "1 of 2 ready.")

    served.warm("n2")
    served.round()
    [deployment] = served.gateway.deployments
    assert served.rollout.state == "Switching" and served.status["state"] == "DeploymentPending"
    owner = deployment["metadata"]["ownerReferences"][0]
    assert (owner["uid"], owner["kind"]) == ("uid-1", "InferenceEndpointConfig")

    served.serve()
    served.round()
    assert (served.rollout.state, served.status["state"]) == ("Done", "DeploymentComplete")
    assert served.condition("WeightsCacheReady") == ("True", "Ready", "2 of 2 nodes are warm.")
    assert (served.status["replicas"], served.status["observedGeneration"]) == (1, 1)


def test_a_round_that_is_repeated_says_and_does_nothing_twice(served: EndpointWorld) -> None:
    served.version()
    served.apply()
    served.until_served()
    before = (len(served.gateway.deployments), len(served.gateway.statuses), Rollout.objects.count(), len(served.pins))
    for _ in range(3):
        served.round()
    after = (len(served.gateway.deployments), len(served.gateway.statuses), Rollout.objects.count(), len(served.pins))
    assert before == after


@pytest.mark.parametrize(("policy", "opens"), [("All", False), ("Count:1", True), ("Percent:50", True)])
def test_the_gate_is_the_endpoints_own(
    served: EndpointWorld, policy: str, opens: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint_targets, "LABELLED_WITHIN", timedelta(hours=1))
    served.version()
    served.apply(metadata__annotations={"hearth.dev/gate": policy})
    served.round()
    served.warm("n1")
    served.round()
    assert served.gateway.deployments == [], "without its label pods would not find the warm node"
    served.world.reconcile()
    served.round()
    assert bool(served.gateway.deployments) is opens
    if opens:
        assert served.condition("WeightsCacheReady")[0] == "False", "the mirror counts every target all the same"


def test_a_label_that_does_not_come_keeps_no_gate_closed(served: EndpointWorld) -> None:
    served.version()
    served.apply(metadata__annotations={"hearth.dev/gate": "Count:1"})
    served.round()
    served.warm("n1")
    with time_machine.travel(timezone.now() + endpoint_targets.LABELLED_WITHIN):
        served.round()
    assert len(served.gateway.deployments) == 1


def test_a_timeout_opens_the_gate_and_warming_goes_on(served: EndpointWorld) -> None:
    served.version()
    served.apply(metadata__annotations={"hearth.dev/gate": "Timeout:600"})
    served.round()
    served.round()
    assert served.gateway.deployments == []
    with time_machine.travel(timezone.now() + timedelta(seconds=601)):
        served.round()
    assert len(served.gateway.deployments) == 1 and len(served.pins) == 1


def test_a_node_that_cannot_get_ready_is_named_with_its_reason(served: EndpointWorld) -> None:
    version = served.version()
    served.apply()
    served.round()
    served.world.reconcile()
    served.world.obey("n1")
    assert version.artifact is not None
    line = served.world.line("n2", version)
    served.world.report("n2", failed(version.artifact.digest, "AccessDenied", line))
    served.world.observe()
    served.round()
    status, reason, message = served.condition("RolledOut")
    assert (status, reason) == ("False", "GateFailed") and "AccessDenied on n2" in message
    assert served.gateway.deployments == []
    rollout_release(actor=SYSTEM, rollout_id=served.rollout.pk)
    served.round()
    assert len(served.gateway.deployments) == 1


def test_without_a_weights_cache_nothing_is_waited_for(served: EndpointWorld) -> None:
    version = served.version()
    served.apply(spec__modelCacheConfig__weightsCache__enabled=False)
    served.round()
    [deployment] = served.gateway.deployments
    assert served.pins == [] and served.gateway.mirrors == {}
    [ensure] = deployment["spec"]["template"]["spec"]["initContainers"]
    assert version.artifact is not None
    assert f"--digest={version.artifact.digest}" in ensure["args"], "the pods bring their weights themselves"


def test_the_cache_is_switched_on_and_off_while_it_serves(served: EndpointWorld) -> None:
    served.version()
    served.apply(spec__modelCacheConfig__weightsCache__enabled=False)
    served.until_served()
    assert served.rollout.state == "Done"
    served.apply()
    served.round()
    assert len(served.pins) == 1 and served.rollout.number == 1, "no other version, so no rollout"
    assert set(served.gateway.mirrors) == {
        (MirrorKind.WEIGHTS, "chat-small-model-cache"),
        (MirrorKind.DATA, "chat-small-model-cache"),
    }
    served.apply(spec__modelCacheConfig__weightsCache__enabled=False)
    served.round()
    assert served.pins == [] and served.gateway.mirrors == {}
    assert len(served.gateway.deployments) == 1, "and no pod is replaced for it"


def test_mirrors_are_written_when_they_change_whoever_wrote_them_last(served: EndpointWorld) -> None:
    served.version()
    served.apply()
    served.round()
    key = (MirrorKind.WEIGHTS, "chat-small-model-cache")
    [row] = ShownMirror.objects.filter(kind=key[0])
    assert served.gateway.mirrors.pop(key).status["readyNodes"] == 0
    served.round()
    assert key not in served.gateway.mirrors, "nothing is new"

    served.warm()
    ShownMirror.objects.filter(pk=row.pk).update(written_hash="what another worker wrote of an older state")
    served.round()
    assert served.gateway.mirrors.pop(key).status["readyNodes"] == 2
    with time_machine.travel(timezone.now() + timedelta(minutes=11)):
        served.round()
    assert key in served.gateway.mirrors, "somebody may have removed it"


def test_no_node_to_warm_is_no_reason_to_wait(served: EndpointWorld) -> None:
    served.version()
    served.apply(spec__instanceType="ml.p5.48xlarge")
    served.round()
    assert len(served.gateway.deployments) == 1 and served.pins == []
    said = "No node of a pool matches the endpoint: none has node.kubernetes.io/instance-type=ml.p5.48xlarge."
    assert served.condition("WeightsCacheReady") == ("False", "Failed", said)


def test_a_refused_document_serves_nothing_and_says_why(served: EndpointWorld) -> None:
    served.apply(spec__worker__image="a b")
    served.round()
    assert served.status["state"] == "DeploymentFailed" and Rollout.objects.count() == 0
    status, reason, message = served.condition("Accepted")
    assert (status, reason) == ("False", "Refused") and "spec.worker.image" in message
    served.version()
    served.apply()
    served.round()
    assert served.condition("Accepted")[0] == "True" and served.rollout.state == "Warming"


def test_a_refused_change_leaves_what_serves(served: EndpointWorld) -> None:
    served.version()
    served.apply()
    served.until_served()
    served.apply(spec__replicas=-1)
    served.round()
    assert served.status["state"] == "DeploymentFailed"
    assert len(served.gateway.deployments) == 1 and len(served.pins) == 1


def test_what_has_no_meaning_is_a_condition(served: EndpointWorld) -> None:
    served.version()
    served.apply(spec__metrics={"enabled": True}, spec__brandNew=1)
    served.round()
    status, reason, message = served.condition("FieldsIgnored")
    assert (status, reason) == ("True", "Unsupported") and "metrics:" in message and "brandNew:" in message


def test_where_nodes_hold_no_images_that_is_said(served: EndpointWorld) -> None:
    served.version()
    served.apply()
    served.until_served()
    assert served.condition("ImageCacheReady") == ("False", "Failed", FOLDERS)
    assert served.status["imageCacheStatus"]["readyNodes"] == 0
    assert served.status["state"] == "DeploymentComplete", "and it holds nothing up"
    served.apply(spec__modelCacheConfig__imageCache__enabled=False)
    served.round()
    assert "ImageCacheReady" not in {one["type"] for one in served.status["conditions"]}


def test_pods_that_serve_without_their_warm_up_are_named_with_a_next_step(served: EndpointWorld) -> None:
    served.version()
    served.apply(metadata__annotations={"hearth.dev/warm-up": "/v1/completions {}"})
    served.until_served()
    assert served.condition("WarmedUp") == ("False", "Waiting", "0 of 0 pods have answered the warm-up request.")
    for name, said in (("a", "ok"), ("b", "")):
        made = {"uid": name, "name": name, "warm_up": said, "observed_at": timezone.now()}
        Instance.objects.create(endpoint=served.endpoint, **made)
    served.round()
    assert served.condition("WarmedUp")[1:] == ("Waiting", "1 of 2 pods have answered the warm-up request.")
    Instance.objects.filter(name="b").update(warm_up="The server refused it: HTTP 404")
    served.round()
    status, reason, message = served.condition("WarmedUp")
    assert (status, reason) == ("False", "WarmUpFailed")
    assert "b: The server refused it: HTTP 404. Correct hearth.dev/warm-up" in message
    Instance.objects.update(warm_up="ok")
    served.round()
    assert served.condition("WarmedUp")[:2] == ("True", "Answered")


def test_a_place_that_no_connection_allows_is_asked_for(served: EndpointWorld) -> None:
    served.apply(spec__modelSourceConfig__s3Storage__bucketName="others")
    served.round()
    assert served.rollout.state == "Preparing" and served.status["state"] == "DeploymentFailed"
    assert "s3://others/llms/chat-small" in served.rollout.message


def test_a_change_of_replicas_is_applied_at_once(served: EndpointWorld) -> None:
    served.version()
    served.apply()
    served.until_served()
    served.apply(spec__replicas=5)
    served.round()
    assert served.gateway.deployments[-1]["spec"]["replicas"] == 5 and served.rollout.number == 1


def test_a_deployment_that_somebody_deleted_is_made_again(served: EndpointWorld) -> None:
    served.version()
    served.apply()
    served.until_served()
    served.gateway.work = None
    served.round()
    assert len(served.gateway.deployments) == 2


def test_deleting_removes_everything_and_waits_for_no_node(served: EndpointWorld) -> None:
    served.version()
    served.apply()
    served.until_served()
    served.delete()
    ShownMirror.objects.all().delete()  # nobody knows that they are there
    served.round()
    assert served.pins == [] and served.gateway.work is None and served.gateway.mirrors == {}
    assert served.gateway.finalizer is False
    assert served.endpoint.released_at is not None
    served.round()
    assert served.seen is not None
    served.tell(EventType.DELETED, served.seen)
    assert not Endpoint.objects.exists() and not Rollout.objects.exists()
    served.world.settle()
    assert served.world.held == {"n1": {}, "n2": {}}, "and the files go"


def test_an_interrupted_deletion_goes_on(served: EndpointWorld) -> None:
    served.version()
    served.apply()
    served.until_served()
    served.delete()
    served.gateway.problem = unreachable()
    assert served.round() == 0
    assert served.gateway.finalizer and len(served.pins) == 1
    served.gateway.problem = None
    served.round()
    assert not served.gateway.finalizer


def test_an_endpoint_that_vanished_keeps_what_was_made_for_it(served: EndpointWorld) -> None:
    served.version()
    served.apply()
    served.until_served()
    assert served.seen is not None
    served.tell(EventType.DELETED, served.seen)
    assert served.round() == 0 and len(served.pins) == 1 and served.gateway.work is not None


def test_what_the_vendors_operator_owns_is_only_looked_at(served: EndpointWorld) -> None:
    served.gateway.owner = EndpointOwner.OTHER
    served.version()
    served.apply()
    assert served.round() == 0
    assert not served.gateway.finalizer and served.pins == [] and served.gateway.statuses == []


def test_somebody_elses_deployment_of_the_name_is_a_problem_and_no_prey(served: EndpointWorld) -> None:
    served.version()
    served.apply()
    served.round()
    served.warm()

    def refuse(*documents: object) -> None:
        raise Conflict("It was made by somebody else; Hearth does not touch it.")

    served.gateway.apply_served = refuse  # type: ignore[method-assign, assignment]
    served.round()
    assert served.status["state"] == "DeploymentFailed"
    assert served.condition("Accepted") == (
        "False", "CannotServe", "It was made by somebody else; Hearth does not touch it."
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "answer", "hinted"),
    [
        (Forbidden, 'User "hearth" cannot get resource "deployments" in API group "apps"', True),
        (Refused, 'deployments.apps "chat-small" is forbidden: exceeded quota: few', False),
    ],
)
def test_a_missing_role_is_said_with_the_next_step(
    served: EndpointWorld, kind: type[Refused], answer: str, hinted: bool
) -> None:
    def refuse(*names: str) -> None:
        raise kind(f"The API server does not allow this to Hearth's account. GET /apis/apps: 403 {answer}")

    served.version()
    served.apply()
    served.gateway.workload_status = refuse  # type: ignore[method-assign, assignment]
    served.round()
    status, reason, message = served.condition("Accepted")
    assert (status, reason) == ("False", "CannotServe") and answer in message
    assert message.endswith(f". {BINDINGS}") is hinted


def test_a_deletion_that_the_cluster_refuses_says_what_it_waits_for(served: EndpointWorld) -> None:
    def refuse(*names: str) -> None:
        raise Forbidden('It is not allowed. GET /apis/apps: 403 User "hearth" cannot delete resource "deployments"')

    served.version()
    served.apply()
    served.until_served()
    served.apply()  # the watcher has seen the status
    served.delete()
    allowed = served.gateway.delete_served
    served.gateway.delete_served = refuse  # type: ignore[method-assign, assignment]
    served.round()
    status, reason, message = served.condition("Accepted")
    assert (status, reason) == ("False", "DeletionWaits") and message.startswith(
        "The deletion waits: It is not allowed."
    )
    assert message.endswith(BINDINGS) and served.gateway.finalizer
    assert (served.status["state"], served.status["replicas"]) == ("DeletionInProgress", 1)
    written = len(served.gateway.statuses)
    served.round()
    assert len(served.gateway.statuses) == written, "it is said once"
    served.gateway.delete_served = allowed  # type: ignore[method-assign]
    served.round()
    assert not served.gateway.finalizer


def test_the_pins_of_an_endpoint_change_with_it_alone(served: EndpointWorld) -> None:
    version = served.version()
    served.apply()
    served.round()
    [pin] = served.pins
    for change in (
        lambda: pin_remove(actor=SYSTEM, pin_id=pin.pk),
        lambda: pin_update(actor=SYSTEM, pin_id=pin.pk, changes={"priority": 1}),
    ):
        with pytest.raises(Clash) as error:
            change()
        assert error.value.code == "pin:user:locked" and "default/chat-small" in error.value.detail
    assert Pin.objects.get(version=version).removed_at is None
