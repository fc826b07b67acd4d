"""Reports of launches from outside: each is taken in or refused for itself, and the caller learns which."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from django.utils import timezone

from caches.domain.launches.observations import Observation
from caches.domain.launches.reports import Report, ReportError, observation_of, report_of
from caches.domain.launches.words import launch_id
from caches.models import Launch
from caches.services.launches.ingest import Sighting, sightings_record
from controlplane.clusters.models import Cluster
from controlplane.errors import Denied, FieldError, Invalid, Missing


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why the item at ``index`` was not taken in."""

    index: int
    field: str
    code: str
    detail: str


@dataclass(frozen=True, slots=True)
class Taken:
    """``recorded`` were new, ``repeated`` were there already, ``refused`` were not taken in."""

    recorded: int
    repeated: int
    refused: tuple[Refusal, ...]


def reports_ingest(*, items: Sequence[object], allowed: Callable[[str], None]) -> Taken:
    """Take in what can be taken in. ``allowed`` raises Denied for a cluster that the caller may not report of."""
    now = timezone.now()
    clusters = {cluster.name: cluster for cluster in Cluster.objects.all()}
    verdicts: dict[str, Refusal | None] = {}
    refused: list[Refusal] = []
    grouped: dict[tuple[str, str, str, int], list[Observation]] = defaultdict(list)
    for index, item in enumerate(items):
        try:
            report = report_of(item, now)
        except ReportError as error:
            refused.append(Refusal(index, error.field, error.code, error.detail))
            continue
        if report.cluster not in verdicts:
            verdicts[report.cluster] = _verdict(report, clusters, allowed)
        verdict = verdicts[report.cluster]
        if verdict is not None:
            refused.append(Refusal(index, verdict.field, verdict.code, verdict.detail))
            continue
        names = (report.cluster, report.pod_uid, report.container, report.restart_count)
        grouped[names].append(report.observation)
    sightings = [
        Sighting(clusters[cluster].pk, cluster, pod, container, restarts, tuple(seen))
        for (cluster, pod, container, restarts), seen in grouped.items()
    ]
    recorded = sightings_record(items=sightings)
    return Taken(recorded, len(items) - len(refused) - recorded, tuple(refused))


def phases_ingest(
    *, key: UUID, names: Mapping[str, Any] | None, phases: Sequence[Mapping[str, Any]], allowed: Callable[[str], None]
) -> Taken:
    """Phases of one launch. ``names`` (cluster, pod_uid, container, restart_count) make it where nobody saw it yet.

    Raises Missing for a launch that nobody saw when ``names`` do not say what it is, Invalid with every wrong field.
    """
    now = timezone.now()
    sighting = _launch_named(key, names, allowed)
    found: list[Observation] = []
    wrong: list[FieldError] = []
    for index, phase in enumerate(phases):
        try:
            found.append(observation_of(phase, now))
        except ReportError as error:
            wrong.append(FieldError(f"phases.{index}.{error.field}", error.code, error.detail))
    if wrong:
        raise Invalid(
            "launch:user:phases",
            "A phase cannot be what it says; none was taken in.",
            next_step="Correct the fields that are named.",
            errors=wrong,
        )
    recorded = sightings_record(items=[replace(sighting, observations=tuple(found))])
    return Taken(recorded, len(found) - recorded, ())


def _verdict(report: Report, clusters: Mapping[str, Cluster], allowed: Callable[[str], None]) -> Refusal | None:
    try:
        allowed(report.cluster)
    except Denied as error:
        return Refusal(0, "cluster", error.code, error.detail)
    if report.cluster not in clusters:
        return Refusal(0, "cluster", "launch:user:cluster", "There is no such cluster.")
    return None


def _launch_named(key: UUID, names: Mapping[str, Any] | None, allowed: Callable[[str], None]) -> Sighting:
    launch = Launch.objects.filter(pk=key).select_related("cluster").first()
    if launch is not None:
        allowed(launch.cluster.name)
        names = {
            "cluster": launch.cluster.name,
            "pod_uid": launch.pod_uid,
            "container": launch.container,
            "restart_count": launch.restart_count,
        }
    elif names is None or launch_id(**names) != key:
        raise Missing(
            "launch:user:not-found",
            "Nobody has seen this launch yet, and the body does not name it.",
            next_step="Send cluster, pod_uid, container and restart_count with the phases; the id follows from them.",
        )
    else:
        allowed(names["cluster"])
    cluster = Cluster.objects.filter(name=names["cluster"]).first()
    if cluster is None:
        raise Missing("launch:user:cluster", "There is no such cluster.", next_step="Look at GET /api/v1/clusters.")
    return Sighting(cluster.pk, cluster.name, names["pod_uid"], names["container"], names["restart_count"], ())
