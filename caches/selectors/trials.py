"""Endpoints that a trial made for itself (caches.services.launches.trial_fleet): nobody is to send requests there."""

from __future__ import annotations

from uuid import UUID

from django.db.models import Q

from caches.domain.launches.words import TRIAL_NAME, TRIAL_NAMESPACE, TRIAL_SHORT_NAMES
from controlplane.clusters.models import ClusterType
from controlplane.operations.models import Operation
from controlplane.serving.models import Endpoint


def of_a_trial() -> Q:
    """A condition on endpoints, the same as models.launches.OF_TRIALS of their launches."""
    return Q(cluster__type=ClusterType.LOCAL, namespace=TRIAL_NAMESPACE, name__regex=TRIAL_SHORT_NAMES)


def trial_name(operation_id: UUID) -> str:
    """Of its endpoint. The last digits of the id are random."""
    return f"{TRIAL_NAME}{operation_id.hex[-8:]}"


def trial_endpoint(operation: Operation) -> Endpoint | None:
    """The newest that it made, which may be gone; None before there is one."""
    cluster, name = operation.params.get("cluster_id"), trial_name(operation.pk)
    return Endpoint.objects.filter(of_a_trial(), cluster=cluster, name=name).order_by("-pk").first()
