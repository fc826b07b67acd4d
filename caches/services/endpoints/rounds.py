"""One round over the endpoints of a cluster: observe rows → decide → apply. Short, and repeating it is harmless."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import structlog
from celery.exceptions import SoftTimeLimitExceeded
from django.db import InterfaceError, OperationalError
from django.utils import timezone

from caches.domain.endpoints.specs import GROUP, EndpointReading, read_endpoint
from caches.domain.endpoints.status import StatusFacts
from caches.models import EndpointToken, ShownMirror
from caches.selectors.endpoints import namesake
from caches.services.endpoints.mirrors import image_mirrors_write
from caches.services.endpoints.refusals import with_next_step
from caches.services.endpoints.release import endpoint_release
from caches.services.endpoints.serving import Outcome, endpoint_serve, holds_end, name_taken, own_name, refused_outcome
from caches.services.endpoints.shown import endpoint_show
from caches.services.endpoints.tokens import tokens_release
from controlplane.clusters.endpoints import FINALIZER, EndpointOwner
from controlplane.clusters.gateway import ClusterGateway, Conflict, GatewayError, Refused
from controlplane.clusters.models import Cluster
from controlplane.clusters.registry import gateway_for
from controlplane.locks import advisory_lock
from controlplane.serving.models import STATIC_KIND, Endpoint

log = structlog.get_logger(__name__)


def clusters_with_endpoints() -> list[UUID]:
    """Clusters that have an endpoint to look after, show the cache of one, or have its token."""
    rows = Endpoint.objects.filter(gone_at__isnull=True).exclude(kind=STATIC_KIND).values_list("cluster_id", flat=True)
    left = (model.objects.values_list("cluster_id", flat=True) for model in (ShownMirror, EndpointToken))
    return sorted({*rows, *(cluster_id for ids in left for cluster_id in ids)})


def endpoints_round(*, cluster_id: UUID) -> int:
    """Look at every endpoint of the cluster. The number that was looked at; 0 when another worker is at it, or when
    the kinds are somebody else's: those are observed and never touched."""
    with advisory_lock(f"endpoints:{cluster_id}") as mine:
        cluster = Cluster.objects.filter(pk=cluster_id).first()
        if not mine or cluster is None:
            return 0
        gateway = gateway_for(cluster)
        rows = Endpoint.objects.filter(cluster=cluster, gone_at__isnull=True).exclude(kind=STATIC_KIND)
        try:
            if gateway.endpoint_owner() is not EndpointOwner.HEARTH:
                rows.exclude(unwritten={}).update(unwritten={})  # their statuses are somebody else's now
                tokens_release(cluster=cluster, gateway=gateway)  # also where the kinds were taken away
                return 0
        except GatewayError as error:
            log.warning("endpoints.unanswered", cluster=cluster.name, error=str(error)[:300])
            return 0
        done = 0
        for endpoint in rows.select_related("cluster"):
            try:
                endpoint_round(endpoint=endpoint, gateway=gateway)
                done += 1
            except GatewayError as error:
                # The others are looked at all the same; this one is again in the next round.
                log.warning("endpoint.unanswered", endpoint=endpoint.full_name, error=str(error)[:300])
            except (OperationalError, InterfaceError, SoftTimeLimitExceeded):
                raise  # the database is away, or the time is up: nobody can be looked at
            except Exception:
                # Those that come after it would be looked at no more for as long as it lasts.
                log.exception("endpoint.bug", endpoint=endpoint.full_name)
        try:
            tokens_release(cluster=cluster, gateway=gateway)
            image_mirrors_write(cluster=cluster, gateway=gateway, now=timezone.now())
        except GatewayError as error:
            log.warning("endpoints.unanswered", cluster=cluster.name, error=str(error)[:300])
        return done


def endpoint_round(*, endpoint: Endpoint, gateway: ClusterGateway) -> None:
    """One endpoint. GatewayError when the cluster does not answer; everything is repeated then."""
    if endpoint.deleting_at is not None:
        if FINALIZER in endpoint.finalizers:
            _let_go(endpoint, gateway)
        return
    reading = endpoint_reading(endpoint)
    outcome = refused_outcome(endpoint, reading)
    problem = _hold(endpoint, gateway)
    if reading.spec is not None and problem is None:
        try:
            name_taken(namesake(endpoint))
            outcome = endpoint_serve(endpoint=endpoint, reading=reading, spec=reading.spec, gateway=gateway)
        except (Conflict, Refused) as error:
            problem = error
    else:
        holds_end(endpoint)
    if problem is not None:
        # The cluster will not do it: said where people look, and tried again.
        outcome = replace(outcome, status=replace(outcome.status, problem=with_next_step(problem)))
    endpoint_show(endpoint=endpoint, outcome=outcome, gateway=gateway, now=timezone.now())


def _hold(endpoint: Endpoint, gateway: ClusterGateway) -> GatewayError | None:
    """Nothing is made for one that could go unnoticed: why the cluster does not take the finalizer, if it does not.
    Somebody who writes the object at that very moment is no reason to say anything."""
    if FINALIZER not in endpoint.finalizers:
        try:
            gateway.set_endpoint_finalizer(own_name(endpoint), endpoint.uid, True)
        except Refused as error:
            return error
    return None


def _let_go(endpoint: Endpoint, gateway: ClusterGateway) -> None:
    """Release it; where the cluster will not have that, its status says what the deletion waits for."""
    try:
        endpoint_release(endpoint=endpoint, gateway=gateway)
    except (Conflict, Refused) as error:
        now, waits = timezone.now(), f"The deletion waits: {with_next_step(error)}"
        facts = StatusFacts(endpoint.name, endpoint.generation, now, deleting=True, problem=waits)
        endpoint_show(endpoint=endpoint, outcome=Outcome(facts), gateway=gateway, now=now)
        raise


def endpoint_reading(endpoint: Endpoint) -> EndpointReading:
    """The stored document, read."""
    metadata = {"name": endpoint.name, "namespace": endpoint.namespace, "annotations": endpoint.annotations}
    return read_endpoint(
        {"apiVersion": f"{GROUP}/v1", "kind": endpoint.kind, "metadata": metadata, "spec": endpoint.document}
    )
