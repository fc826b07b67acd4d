"""Controlled trials: which there were, how far one is, and what its launches took."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db.models import Q, QuerySet

from caches.domain.launches.period import Period
from caches.domain.launches.trials import KindResult, Measured, results_of
from caches.domain.launches.words import TRIAL_NAMESPACE, EventClass
from caches.models import Launch, ModelVersion, VersionState
from caches.models.launches import OF_TRIALS
from caches.selectors.nodes import Targets
from caches.selectors.operations import operations_list
from caches.selectors.trials import trial_name
from controlplane.clusters.models import Cluster, ClusterType
from controlplane.errors import Missing
from controlplane.operations.models import ACTIVE_STATES, Operation, OperationKind


@dataclass(frozen=True, slots=True)
class TrialProgress:
    """``done`` of ``total`` launches are measured. ``coming`` is the kind that is provoked next, None for the one that
    comes before all and is not measured; ``eta_seconds`` from the pace so far, None before the first and at the end."""

    done: int
    total: int
    coming: EventClass | None
    eta_seconds: float | None


def trials_list(*, targets: Targets = None) -> QuerySet[Operation]:
    """Trials that the reader may see, newest first."""
    return operations_list(targets=targets).filter(kind=OperationKind.LAUNCH_TRIAL)


def trials_within(period: Period, *, targets: Targets = None) -> int:
    """How many ran at some time of the period: what they provoked is among its launches."""
    ran = Q(ended_at__isnull=True) | Q(ended_at__gte=period.since)
    begun = Q() if period.open else Q(created_at__lt=period.until)
    return trials_list(targets=targets).filter(ran, begun).count()


def trial_get(*, operation_id: UUID, targets: Targets = None) -> Operation:
    """Raises errors.Missing, also for one that the reader may not see."""
    found = trials_list(targets=targets).filter(pk=operation_id).first()
    if found is None:
        raise Missing("trial:user:not-found", "There is no such trial.", next_step="Look at the list of trials.")
    return found


def trial_cluster(operation: Operation) -> str:
    """The name of the cluster that it runs in, which may be gone."""
    return operation.subject_name.partition(" ")[0]


def trial_progress(operation: Operation) -> TrialProgress:
    params = operation.params
    order, done, at = params.get("order", []), len(params.get("_launches", [])), params.get("_at", 0)
    active = operation.state in ACTIVE_STATES
    coming = EventClass(order[at - 1]) if active and 0 < at <= len(order) else None
    return TrialProgress(done, len(order), coming, operation.eta_seconds if active else None)


def trial_found(params: Mapping[str, Any]) -> dict[str, Any]:
    """``kinds`` and ``launches`` of a trial's result, from what is measured so far."""
    pairs = params.get("_launches", [])
    found = Launch.objects.defer("phases").in_bulk([UUID(key) for _, key in pairs])
    measured = [(key, _measured(EventClass(kind), found.get(UUID(key)))) for kind, key in pairs]
    target = float(params["target_seconds"])
    return {
        "kinds": [_document(one) for one in results_of([one for _, one in measured], target)],
        "launches": [
            {
                "id": key,
                "wanted": one.wanted.value,
                "event_class": one.found.value,
                "weights": one.weights,
                "ready_seconds": one.ready_seconds,
                "idle_seconds": one.idle_seconds,
            }
            for key, one in measured
        ],
    }


def trial_beside(operation: Operation) -> list[dict[str, Any]]:
    """``not_measured`` of a trial's result: what it provoked beside, first of all the launch that prepares an endpoint
    and a node, because the first of a version at an endpoint is a new version. In the order in which they began."""
    params = operation.params
    measured = [UUID(key) for _, key in params.get("_launches", [])]
    name = f"{TRIAL_NAMESPACE}/{trial_name(operation.pk)}"
    rows = Launch.objects.filter(OF_TRIALS, cluster=params["cluster_id"], endpoint_name=name).exclude(pk__in=measured)
    columns = ("id", "event_class", "weights", "ready_seconds")
    return [{**row, "id": str(row["id"])} for row in rows.order_by("began_at", "id").values(*columns)]


def launches_kept(found: Mapping[str, Any]) -> frozenset[str]:
    """Ids of a result's launches that have a page still."""
    keys = [UUID(one["id"]) for one in (*found["launches"], *found.get("not_measured", ()))]
    return frozenset(str(key) for key in Launch.objects.filter(pk__in=keys).values_list("pk", flat=True))


def versions_to_try() -> QuerySet[ModelVersion]:
    """Those whose files an engine of the local fleet can serve."""
    rows = ModelVersion.objects.filter(state=VersionState.AVAILABLE, artifact__servable_locally=True)
    return rows.select_related("model", "artifact").defer("artifact__manifest").order_by("model__name", "version")


def clusters_to_try() -> QuerySet[Cluster]:
    return Cluster.objects.filter(type=ClusterType.LOCAL).order_by("name")


def _measured(wanted: EventClass, launch: Launch | None) -> Measured:
    if launch is None:
        return Measured(wanted, EventClass.UNKNOWN, "Unknown", None, None)
    waiting = launch.phase_seconds[0] if launch.phase_seconds else None
    return Measured(wanted, EventClass(launch.event_class), launch.weights, launch.ready_seconds, waiting)


def _document(one: KindResult) -> dict[str, Any]:
    low, high = one.within_interval or (None, None)
    return {
        "event_class": one.wanted.value,
        "runs": one.runs,
        "labelled_so": one.as_wanted,
        "hits": one.hits,
        "seconds": list(one.seconds),
        "median_seconds": one.median,
        "p95_seconds": one.p95,
        "within_target": one.within,
        "within_target_low": low,
        "within_target_high": high,
        "idle_seconds": one.idle_seconds,
    }
