"""Caches of endpoints that the vendor's operator reconciles: switched where the model is pinned, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from caches.services.endpoints.cache import endpoint_cache_set
from caches.services.endpoints.documents import endpoint_apply_step
from caches.services.pin_specs import PinSpec
from caches.services.pins import pin_create
from controlplane.audit.models import AuditEvent
from controlplane.audit.services import Actor
from controlplane.clusters.endpoints import EndpointOwner
from controlplane.clusters.gateway import Conflict
from controlplane.errors import Clash, Invalid
from controlplane.operations.models import Operation, OperationKind
from tests.services.endpoints import EndpointWorld

pytestmark = pytest.mark.django_db


def switched(served: EndpointWorld, actor: Actor, **wanted: Any) -> Operation:
    operation = endpoint_cache_set(actor=actor, endpoint_id=served.endpoint.pk, **wanted)
    assert endpoint_apply_step(operation_id=operation.pk)
    return Operation.objects.get(pk=operation.pk)


def test_they_are_switched_once_the_model_is_pinned(served: EndpointWorld, actor: Actor) -> None:
    served.gateway.owner = EndpointOwner.OTHER
    version = served.version()
    served.apply(spec__modelCacheConfig={"weightsCache": {"enabled": False, "hostPath": "/data", "new": 1}})
    with pytest.raises(Clash) as caught:
        endpoint_cache_set(actor=actor, endpoint_id=served.endpoint.pk, weights=True)
    assert caught.value.code == "endpoint:user:not-pinned"

    pin_create(actor=actor, spec=PinSpec(version_id=version.pk, pool_ids=(served.world.pool.pk,)))
    assert switched(served, actor, weights=True, image=True).state == "Succeeded"
    [(of, uid, config)] = served.gateway.caches_set
    assert (of.name, uid) == ("chat-small", "uid-1")
    assert config == {"weightsCache": {"enabled": True, "hostPath": "/data"}, "imageCache": {"enabled": True}}
    assert served.round() == 0 and served.gateway.deployments == [], "and it is still not reconciled"
    [event] = AuditEvent.objects.filter(action="endpoint.cache")
    assert event.after == {"cache": config} and event.actor == "olga"


def test_switching_off_asks_for_no_pin(served: EndpointWorld, actor: Actor) -> None:
    served.gateway.owner = EndpointOwner.OTHER
    served.apply()
    switched(served, actor, weights=False)
    [(_, _, config)] = served.gateway.caches_set
    assert config == {"weightsCache": {"enabled": False}, "imageCache": {"enabled": True}}, "the other stays as it is"


def test_what_somebody_else_holds_is_not_taken(served: EndpointWorld, actor: Actor) -> None:
    served.gateway.owner = EndpointOwner.OTHER
    served.apply()
    operation = endpoint_cache_set(actor=actor, endpoint_id=served.endpoint.pk, image=False)
    served.gateway.problem = Conflict("conflict", ("kubectl",))
    endpoint_apply_step(operation_id=operation.pk)
    operation.refresh_from_db()
    assert operation.state == "Failed" and operation.error is not None
    assert operation.error["code"] == "endpoint:user:held-by-others" and "kubectl" in operation.error["detail"]


def test_endpoints_that_hearth_reconciles_are_changed_by_their_documents(served: EndpointWorld, actor: Actor) -> None:
    served.apply()
    ended = switched(served, actor, image=False)
    assert ended.state == "Failed" and ended.error is not None and ended.error["code"] == "endpoint:user:own-kinds"
    assert served.gateway.caches_set == []


def test_one_that_hearth_holds_is_refused_at_once(served: EndpointWorld, actor: Actor) -> None:
    served.gateway.finalizer = True
    served.apply()
    with pytest.raises(Clash) as caught:
        endpoint_cache_set(actor=actor, endpoint_id=served.endpoint.pk, image=False)
    assert caught.value.code == "endpoint:user:own-kinds" and "document" in caught.value.next_step
    assert not Operation.objects.filter(kind=OperationKind.ENDPOINT_APPLY).exists()


@pytest.mark.parametrize(
    "wanted", [{}, {"host_path": "relative"}, {"host_path": "/a/../b"}, {"host_path": "/" + "a" * 255}]
)
def test_it_refuses_what_says_nothing(served: EndpointWorld, actor: Actor, wanted: dict[str, Any]) -> None:
    served.apply()
    with pytest.raises(Invalid):
        endpoint_cache_set(actor=actor, endpoint_id=served.endpoint.pk, **wanted)


def test_an_endpoint_that_goes_is_left_alone(served: EndpointWorld, actor: Actor) -> None:
    served.apply()
    served.delete()
    with pytest.raises(Clash, match="being deleted"):
        endpoint_cache_set(actor=actor, endpoint_id=served.endpoint.pk, image=False)
