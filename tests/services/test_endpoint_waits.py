"""What an endpoint waits for that only pods and roles can tell: said where people look, also where the cluster takes no
word of it, and forgotten when it is over."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from celery.exceptions import SoftTimeLimitExceeded
from django.db import OperationalError

from caches.models import CacheEntry, Rollout
from caches.services.endpoints import rounds
from caches.services.endpoints.refusals import BINDINGS, KINDS
from controlplane.clusters.documents import Consumer, Reason
from controlplane.clusters.endpoints import EndpointOwner
from controlplane.clusters.gateway import Conflict, EventType, Forbidden, GatewayError, Kind, Refused, WatchEvent
from controlplane.clusters.models import Node
from controlplane.serving.models import Endpoint, Instance
from tests import factories
from tests.services.endpoints import SINK, EndpointWorld, unreachable

pytestmark = pytest.mark.django_db
NO_DEPLOYMENTS = Forbidden('GET /apis/apps/v1/x: 403 User "hearth" cannot get resource "deployments"')
NO_STATUS = Forbidden(
    'PATCH /apis/inference.sagemaker.aws.amazon.com/v1/x/status: 403 User "hearth" cannot patch resource "x/status"'
)


def tell(served: EndpointWorld, name: str, *digests: str, **fields: Any) -> None:
    """The watcher sees a pod of the endpoint."""
    labels = {"hearth.dev/endpoint": "chat-small"}
    seen = Consumer(f"uid-{name}", f"default/{name}", "", "", frozenset(digests), labels=labels, **fields)
    event = WatchEvent(EventType.MODIFIED, Kind.CONSUMER, "t", seen)
    SINK.changed(str(served.world.cluster.pk), (event,), datetime.now(UTC))


def refuse(error: Exception) -> Any:
    def refused(*_: object, **__: object) -> None:
        raise error

    return refused


def switching(served: EndpointWorld) -> None:
    served.version()
    served.apply()
    served.round()
    served.warm()
    served.round()
    served.serve(available=0)


def test_a_rollout_says_which_pod_waits_and_why_until_it_does_no_more(served: EndpointWorld) -> None:
    switching(served)
    words = 'server: CreateContainerConfigError: secret "keys" not found'
    tell(served, "chat-b", wait_reason="ConfigurationError", wait_message=words)
    tell(served, "chat-a", wait_reason="Crashing", wait_message="it ended", leaving=True)
    tell(served, "chat-c", wait_reason="Unschedulable", wait_message="0/2 nodes are available.")
    served.round()
    status, reason, message = served.condition("RolledOut")
    assert (status, reason) == ("False", "ConfigurationError")
    assert message.endswith(f"0 of all 1 serve. Pod chat-b waits (1 more waits): {words}.")
    assert served.condition("Available")[:2] == ("False", "ConfigurationError")
    tell(served, "chat-b")
    served.round()
    assert served.condition("RolledOut")[1:] == (
        "Unschedulable", "1 of 1 new replicas made; 0 of all 1 serve. Pod chat-c waits: 0/2 nodes are available.",
    )  # fmt: skip
    tell(served, "chat-c", ready=True)
    served.serve()
    served.round()
    assert served.condition("RolledOut") == ("True", "Complete", "1 of 1 replicas serve.")
    assert served.condition("Available")[2] == "1 of 1 replicas serve."
    tell(served, "chat-c", leaving=True)
    served.round()
    assert served.condition("Available") == ("False", "NoReplica", "0 of 1 replicas serve.")
    served.serve(available=0)
    served.round()
    assert served.condition("RolledOut") == ("True", "Complete", "1 of 1 new replicas made; 0 serve now.")


def test_a_rollout_does_not_answer_for_a_pod_of_the_version_before(served: EndpointWorld) -> None:
    old = served.version()
    served.apply()
    served.until_served()
    new = served.version("llms/chat-small-2")
    served.apply(spec__modelSourceConfig__modelLocation="llms/chat-small-2")
    served.round()
    served.warm()
    served.round()
    served.serve(available=0)
    assert old.artifact is not None and new.artifact is not None
    tell(served, "a", old.artifact.digest, wait_reason="Crashing", wait_message="it ended")
    served.round()
    told = "1 of 1 new replicas made; 0 of all 1 serve."
    assert served.condition("RolledOut")[1:] == ("RollingOut", told)
    assert served.condition("Available")[1:] == ("Crashing", "0 of 1 replicas serve. Pod a waits: it ended.")
    tell(served, "b", new.artifact.digest, wait_reason="Unschedulable", wait_message="0/2 nodes.")
    served.round()
    assert served.condition("RolledOut")[1:] == ("Unschedulable", f"{told} Pod b waits: 0/2 nodes.")


def test_a_pod_on_a_node_that_is_not_ready_is_named_with_it(served: EndpointWorld) -> None:
    switching(served)
    tell(served, "chat-b")
    node = Node.objects.get(name="n2")
    Node.objects.filter(pk=node.pk).update(ready=False, reported_at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))
    Instance.objects.filter(name="chat-b").update(node=node)
    served.round()
    status, reason, message = served.condition("RolledOut")
    told = "Pod chat-b waits: its node n2 is not ready and was not heard of since 2026-01-02 03:04:05 UTC."
    assert (status, reason) == ("False", "NodeNotReady") and message.endswith(told)
    assert served.condition("Available") == ("False", "NodeNotReady", f"0 of 1 replicas serve. {told}")
    tell(served, "chat-b", ready=True)
    served.round()
    assert served.condition("Available")[1] == "NoReplica", "one that is ready serves, whatever is said of its node"


def test_a_rollout_that_failed_still_says_why(served: EndpointWorld) -> None:
    switching(served)
    tell(served, "chat-b", wait_reason="ImagePullFailed", wait_message="server: ErrImagePull: not found")
    served.serve(available=0, failed="ReplicaSet x has timed out progressing.")
    served.round()
    message = "ReplicaSet x has timed out progressing. Pod chat-b waits: server: ErrImagePull: not found."
    assert served.condition("RolledOut") == ("False", "DeploymentFailed", message)
    assert served.rollout.message == message


def test_pods_that_leave_are_not_waited_for_to_warm_up(served: EndpointWorld) -> None:
    served.version()
    served.apply(metadata__annotations={"hearth.dev/warm-up": "/ping"})
    served.until_served()
    tell(served, "old", warm_up="It failed.", leaving=True)
    tell(served, "new", warm_up="ok")
    served.round()
    assert served.condition("WarmedUp") == (
        "True", "Answered", "1 of 1 pods have answered the warm-up request.",
    )  # fmt: skip


def test_what_was_never_made_needs_no_right_to_be_deleted(served: EndpointWorld) -> None:
    served.gateway.workload_status = refuse(NO_DEPLOYMENTS)  # type: ignore[method-assign]
    served.gateway.delete_served = refuse(NO_DEPLOYMENTS)  # type: ignore[method-assign]
    served.version()
    served.apply()
    served.round()
    assert served.condition("Accepted")[:2] == ("False", "CannotServe")
    served.delete()
    served.round()
    assert not served.gateway.finalizer and served.endpoint.released_at is not None and served.pins == []


@pytest.mark.parametrize("error", [Conflict("x"), Refused("A webhook said no."), unreachable()])
def test_only_a_missing_right_is_no_reason_to_wait(served: EndpointWorld, error: GatewayError) -> None:
    served.apply()
    served.round()
    served.gateway.delete_served = refuse(error)  # type: ignore[method-assign]
    served.delete()
    served.round()
    assert served.gateway.finalizer and served.endpoint.released_at is None


def test_what_was_being_made_when_hearth_was_killed_is_waited_for(served: EndpointWorld) -> None:
    """Nobody wrote down that the Deployment was applied: that it may have been is known all the same."""
    served.version()
    served.apply()
    served.round()
    served.warm()
    served.gateway.apply_served = refuse(unreachable())  # type: ignore[method-assign]
    served.round()
    assert Rollout.objects.get().applied_hash == ""
    served.gateway.delete_served = refuse(NO_DEPLOYMENTS)  # type: ignore[method-assign]
    served.delete()
    served.round()
    assert served.gateway.finalizer and served.condition("Accepted")[1] == "DeletionWaits"
    assert served.condition("Accepted")[2].endswith(BINDINGS)


def test_a_status_that_the_cluster_does_not_take_is_stored_here(
    served: EndpointWorld, caplog: pytest.LogCaptureFixture
) -> None:
    write = served.gateway.set_endpoint_status
    served.gateway.set_endpoint_status = refuse(NO_STATUS)  # type: ignore[method-assign]
    served.version()
    served.apply()
    served.round()
    row = served.endpoint
    told = {one["type"]: one for one in row.said["conditions"]}
    assert row.status == {} and row.said["state"] == "DeploymentPending"
    assert told["RolledOut"]["reason"] == "Warming", "and all else that it would have said"
    written = told["StatusWritten"]
    assert (written["status"], written["reason"]) == ("False", "NotWritten")
    assert "403" in written["message"] and written["message"].endswith(KINDS)

    served.round()
    again = {one["type"]: one for one in served.endpoint.said["conditions"]}
    assert again["StatusWritten"]["lastTransitionTime"] == written["lastTransitionTime"]
    assert caplog.text.count("endpoint.status_refused") == 1, "what is known is not logged again"
    assert served.rollout.state == "Warming" and len(served.pins) == 1, "the rest goes on"
    assert served.gateway.mirrors
    served.gateway.set_endpoint_status = write  # type: ignore[method-assign]
    served.round()
    assert served.endpoint.unwritten == {} and "StatusWritten" not in str(served.status)


def test_what_was_not_taken_says_nothing_once_somebody_else_writes_it(served: EndpointWorld) -> None:
    served.gateway.set_endpoint_status = refuse(NO_STATUS)  # type: ignore[method-assign]
    served.apply()
    served.round()
    assert served.endpoint.unwritten
    served.gateway.owner = EndpointOwner.OTHER
    served.round()
    assert served.endpoint.said == {}


def test_a_status_that_stays_as_the_cluster_has_it_is_not_wanting(served: EndpointWorld) -> None:
    served.version()
    served.apply()
    served.round()
    kept = Endpoint.objects.get().status
    served.gateway.set_endpoint_status = refuse(NO_STATUS)  # type: ignore[method-assign]
    served.warm("n1")
    served.round()
    assert served.endpoint.said["conditions"] != kept["conditions"] and served.endpoint.status == kept
    wanted = served.endpoint.unwritten
    others = [one for one in wanted["conditions"] if one["type"] != "StatusWritten"]
    Endpoint.objects.update(status={**wanted, "conditions": others})  # somebody wrote just that
    served.round()
    assert served.endpoint.unwritten == {}


def test_a_finalizer_that_the_cluster_refuses_is_said_and_nothing_is_made(served: EndpointWorld) -> None:
    error = Forbidden("PATCH /apis/inference.sagemaker.aws.amazon.com/v1/x: 403 cannot patch resource")
    served.gateway.set_endpoint_finalizer = refuse(error)  # type: ignore[method-assign]
    served.version()
    served.apply()
    served.round()
    status, reason, message = served.condition("Accepted")
    assert (status, reason) == ("False", "CannotServe") and message.endswith(KINDS)
    assert not Rollout.objects.exists() and served.pins == [] and not Instance.objects.exists()
    served.apply(spec__replicas=-1)
    served.round()
    assert served.condition("Accepted")[1] == "Refused", "what is wrong with the document is said first"


def test_somebody_who_writes_the_object_at_that_moment_is_no_failure(served: EndpointWorld) -> None:
    meanwhile = refuse(Conflict("the object has been modified; please apply your changes to the latest version"))
    hold, served.gateway.set_endpoint_finalizer = served.gateway.set_endpoint_finalizer, meanwhile  # type: ignore[method-assign]
    served.version()
    served.apply()
    served.round()
    assert served.gateway.statuses == [] and not Rollout.objects.exists()
    served.gateway.set_endpoint_finalizer = hold  # type: ignore[method-assign]
    write, served.gateway.set_endpoint_status = served.gateway.set_endpoint_status, meanwhile  # type: ignore[method-assign]
    served.round()
    assert served.endpoint.unwritten == {} and served.rollout.state == "Warming"
    served.gateway.set_endpoint_status = write  # type: ignore[method-assign]
    served.round()
    assert served.status["state"] == "DeploymentPending"


def test_one_that_trips_over_a_bug_keeps_no_other_waiting(
    served: EndpointWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    served.version()
    served.apply()
    before = served.endpoint
    factories.endpoint(of=before.cluster, kind=before.kind, namespace="default", name="a-first", document={})
    looked_at = rounds.endpoint_round

    def tripping(*, endpoint: Endpoint, gateway: Any) -> None:
        if endpoint.name == "a-first":
            raise ValueError("nobody thought of this")
        looked_at(endpoint=endpoint, gateway=gateway)

    monkeypatch.setattr(rounds, "endpoint_round", tripping)
    assert served.round() == 1, "the one that comes after it"
    assert caplog.text.count("endpoint.bug") == 1 and "default/a-first" in caplog.text
    for ends in (OperationalError("the database is away"), SoftTimeLimitExceeded()):
        monkeypatch.setattr(rounds, "endpoint_round", refuse(ends))
        with pytest.raises(type(ends)):
            served.round()


@pytest.mark.parametrize(
    ("gate", "words"),
    [("Count:1", " The gate asks for 1 node and is open."), ("Percent:50", " The gate asks for 1 node and is open.")],
)
def test_a_node_that_cannot_get_warm_is_said_beside_the_gate_that_does_without(
    gate: str, words: str, served: EndpointWorld
) -> None:
    served.version()
    served.apply(metadata__annotations={"hearth.dev/gate": gate})
    served.round()
    served.warm("n1")
    CacheEntry.objects.filter(node__name="n1").update(labeled_at=datetime.now(UTC))
    CacheEntry.objects.filter(node__name="n2").update(state="Failed", reason=Reason.ACCESS_DENIED)
    served.round()
    assert served.rollout.reason == "GateOpen"
    told = f"1 of 2 nodes are warm. Not yet: n2 (AccessDenied).{words}"
    assert served.condition("WeightsCacheReady") == ("False", "Failed", told)
    served.apply(metadata__annotations={"hearth.dev/gate": "All"})
    served.round()
    assert served.condition("WeightsCacheReady")[2] == "1 of 2 nodes are warm. Not yet: n2 (AccessDenied)."


def test_a_version_that_is_refused_is_no_cache_on_its_way(served: EndpointWorld) -> None:
    served.connection.delete()
    served.apply()
    served.round()
    assert served.condition("RolledOut")[1] == "VersionRefused"
    status, reason, message = served.condition("WeightsCacheReady")
    assert (status, reason) == ("False", "Failed") and message == served.condition("RolledOut")[2]
