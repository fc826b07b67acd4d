"""Two endpoints of one name and of different kinds: one has the Deployment, and neither takes it from the other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controlplane.clusters.endpoints import EndpointName
from controlplane.clusters.gateway import EventType
from controlplane.serving.models import Endpoint
from tests.domain.endpoints import jumpstart
from tests.services.endpoints import EndpointWorld

pytestmark = pytest.mark.django_db


@pytest.fixture
def both(served: EndpointWorld) -> EndpointWorld:
    """``default/chat-small`` is served, and a JumpStartModel comes by the same name."""
    served.version()
    served.apply()
    served.until_served()
    assert served.seen is not None
    other = EndpointName("JumpStartModel", "default", "chat-small")
    seen = replace(served.seen, of=other, uid="uid-2", spec=jumpstart()["spec"], status={}, finalizers=())
    served.tell(EventType.ADDED, seen)
    return served


def test_the_second_is_told_and_the_first_goes_on(both: EndpointWorld) -> None:
    applied = len(both.gateway.deployments)
    both.round()
    assert both.status["state"] == "DeploymentFailed"
    status, reason, message = both.condition("Accepted")
    assert (status, reason) == ("False", "CannotServe")
    assert "InferenceEndpointConfig default/chat-small has this name" in message
    assert len(both.gateway.deployments) == applied and both.gateway.work is not None
    assert {pin.endpoint.uid for pin in both.pins if pin.endpoint} == {"uid-1"}


def test_the_second_goes_without_what_the_first_serves(both: EndpointWorld) -> None:
    both.round()
    Endpoint.objects.filter(uid="uid-2").update(deleting_at="2026-11-30T04:00Z", finalizers=["hearth.dev/endpoint"])
    both.round()
    assert Endpoint.objects.get(uid="uid-2").released_at is not None
    assert both.gateway.work is not None and len(both.pins) == 1, "it was never its own"


def test_once_the_first_is_gone_the_name_is_free(both: EndpointWorld) -> None:
    both.round()
    Endpoint.objects.filter(uid="uid-1").update(deleting_at="2026-11-30T04:00Z", finalizers=["hearth.dev/endpoint"])
    both.round()
    assert both.gateway.work is None and both.pins == []
    assert "has this name" not in both.condition("Accepted")[2]
