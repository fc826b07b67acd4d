"""Endpoints and rollouts for pages and REST."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from django.db.models import OuterRef, QuerySet, Subquery
from django.utils import timezone

from caches.domain.gating import Target
from caches.models import Pin, Rollout
from caches.selectors.endpoint_targets import gate_targets
from caches.selectors.nodes import Targets
from controlplane.errors import Missing
from controlplane.serving.models import Endpoint


def endpoints_list(*, targets: Targets = None) -> QuerySet[Endpoint]:
    """Endpoints of the clusters that the reader may see in whole or in part, each with its newest rollout's facts:
    ``rollout_id``, ``rollout_number``, ``rollout_state``, ``rollout_source``, ``rollout_image``."""
    rows = Endpoint.objects.select_related("cluster")
    if targets is not None:
        rows = rows.filter(cluster__name__in={target.partition(".")[0] for target in targets})
    newest = Rollout.objects.filter(endpoint=OuterRef("pk")).order_by("-number")
    return rows.annotate(
        rollout_id=Subquery(newest.values("pk")[:1]),
        rollout_number=Subquery(newest.values("number")[:1]),
        rollout_state=Subquery(newest.values("state")[:1]),
        rollout_message=Subquery(newest.values("message")[:1]),
        rollout_source=Subquery(newest.values("source")[:1]),
        rollout_image=Subquery(newest.values("image")[:1]),
    )


def endpoint_get(*, endpoint_id: UUID, targets: Targets = None) -> Endpoint:
    """One endpoint. Raises errors.Missing, also for one that the reader may not see."""
    found = endpoints_list(targets=targets).filter(pk=endpoint_id).first()
    if found is None:
        raise Missing(
            "endpoint:user:not-found", f"There is no endpoint {endpoint_id}.", next_step="List the endpoints."
        )
    return found


def rollouts_list(*, targets: Targets = None) -> QuerySet[Rollout]:
    """Rollouts of the endpoints that the reader may see, newest first."""
    rows = Rollout.objects.select_related("endpoint__cluster", "version__model", "version__artifact", "previous")
    if targets is not None:
        rows = rows.filter(endpoint__cluster__name__in={target.partition(".")[0] for target in targets})
    return rows.defer("version__artifact__manifest")


def rollout_get(*, rollout_id: UUID, targets: Targets = None) -> Rollout:
    """One rollout. Raises errors.Missing, also for one that the reader may not see."""
    found = rollouts_list(targets=targets).filter(pk=rollout_id).first()
    if found is None:
        raise Missing("rollout:user:not-found", f"There is no rollout {rollout_id}.", next_step="List the rollouts.")
    return found


def rollout_nodes(rollout: Rollout) -> Sequence[Target]:
    """How far each target node of the rollout's weights is; empty where nothing is or was warmed for it."""
    if rollout.version_id is None:
        return ()
    pins = Pin.objects.filter(endpoint=rollout.endpoint_id, version=rollout.version_id, removed_at__isnull=True)
    pins = pins.filter(image=None)  # those of its image hold nothing up
    pin = pins.select_related("version__artifact").prefetch_related("pools").first()
    return gate_targets(pin, now=timezone.now()) if pin is not None else ()
