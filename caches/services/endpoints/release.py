"""An endpoint that goes away: its workload, pins and mirrors first, then the finalizer that held it.

No node is asked: what is on one that is down is evicted by the loop when it comes back.
"""

from __future__ import annotations

from django.utils import timezone

from caches.models import Rollout
from caches.selectors.endpoints import namesake
from caches.services.endpoints.mirrors import image_mirrors_write
from caches.services.endpoints.pins import pins_release
from caches.services.endpoints.rollouts import endpoint_rollouts_end
from caches.services.endpoints.shown import mirrors_remove
from controlplane.audit.services import SYSTEM, audit_write
from controlplane.clusters.endpoints import EndpointName
from controlplane.clusters.gateway import ClusterGateway, Forbidden
from controlplane.serving.models import Endpoint


def endpoint_release(*, endpoint: Endpoint, gateway: ClusterGateway) -> None:
    """Repeating it is harmless; GatewayError leaves the finalizer, and the next round goes on."""
    if namesake(endpoint) is None:  # else what is there by this name is the other one's
        _workload_delete(endpoint, gateway)
    endpoint_rollouts_end(endpoint=endpoint, message="The endpoint was deleted.")
    pins_release(endpoint=endpoint, keep=())
    mirrors_remove(endpoint=endpoint, gateway=gateway)
    image_mirrors_write(cluster=endpoint.cluster, gateway=gateway, now=timezone.now())
    if Endpoint.objects.filter(pk=endpoint.pk, released_at__isnull=True).update(released_at=timezone.now()):
        audit_write(
            actor=SYSTEM,
            action="endpoint.release",
            object_type="endpoint",
            object_id=str(endpoint.pk),
            object_name=endpoint.full_name,
            before={"kind": endpoint.kind, "uid": endpoint.uid},
            after=None,
        )
    gateway.set_endpoint_finalizer(EndpointName(endpoint.kind, endpoint.namespace, endpoint.name), endpoint.uid, False)


def _workload_delete(endpoint: Endpoint, gateway: ClusterGateway) -> None:
    """Where Hearth may not even look it is enough that nothing can be there: a gate is stored as open before anything
    is written behind it. What a database that was lost knew of has the endpoint as its owner, and goes with it."""
    try:
        gateway.delete_served(endpoint.namespace, endpoint.name)
    except Forbidden:
        if Rollout.objects.filter(endpoint=endpoint, opened_at__isnull=False).exists():
            raise
