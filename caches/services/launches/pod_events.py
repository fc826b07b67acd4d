"""What a cluster's events say of pods whose launches are known. An event names no run: its time does."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from caches.domain.launches.observations import Observation
from caches.domain.launches.pod_events import pod_event_observations
from caches.domain.launches.words import Clock, Mark
from caches.models import Launch, LaunchObservation
from caches.services.launches.ingest import Sighting, sightings_record
from controlplane.clusters.gateway import ClusterEvent
from controlplane.clusters.models import Cluster

# A run that ends and the next one's first event may show the same second.
TOLERATED = timedelta(seconds=1)
Runs = Mapping[int, datetime | None]  # when each began by its node's clock; None is not known


def pod_events_observe(*, cluster_id: UUID, items: Iterable[ClusterEvent]) -> int:
    """Returns what was new. Events of pods that have no launches say nothing."""
    events = [item for item in items if item.object_kind == "Pod"]
    containers, runs = _known(cluster_id, {event.object_uid for event in events})
    seen: dict[tuple[str, str, int], list[Observation]] = defaultdict(list)
    for event in events:
        if (container := containers.get(event.object_uid)) is None:
            continue
        for one in _said(event):
            seen[event.object_uid, container, _run_of(one, runs[event.object_uid])].append(one)
    if not seen:
        return 0
    name = Cluster.objects.values_list("name", flat=True).get(pk=cluster_id)
    return sightings_record(
        items=[
            Sighting(cluster_id, name, uid, container, run, tuple(some)) for (uid, container, run), some in seen.items()
        ]
    )


def _said(event: ClusterEvent) -> Sequence[Observation]:
    return pod_event_observations(
        reason=event.reason,
        message=event.message,
        at=event.at,
        first_at=event.first_at,
        container=event.container,
        init=event.init,
        reporter=event.reporter,
    )


def _known(cluster_id: UUID, uids: Iterable[str]) -> tuple[Mapping[str, str], Mapping[str, Runs]]:
    """The serving container of each pod that has launches, and its runs."""
    containers: dict[str, str] = {}
    runs: dict[str, dict[int, datetime | None]] = defaultdict(dict)
    launches = Launch.objects.filter(cluster_id=cluster_id, pod_uid__in=set(uids), log__isnull=False)
    for uid, container, run in launches.values_list("pod_uid", "container", "restart_count"):
        containers[uid], runs[uid][run] = container, None
    restarted = LaunchObservation.objects.filter(launch__in=launches.filter(restart_count__gt=0), mark=Mark.RESTARTED)
    for uid, run, at in restarted.values_list("launch__pod_uid", "launch__restart_count", "at"):
        runs[uid][run] = at
    return containers, runs


def _run_of(one: Observation, runs: Runs) -> int:
    """The latest run that had begun by then. What happens to the whole pod happens to the run that goes on."""
    if one.mark is Mark.ENDED:
        return max(runs)
    if one.clock is not Clock.NODE or one.at is None:
        return min(runs)
    moment = one.at + TOLERATED
    return max((run for run, began in runs.items() if began is not None and began <= moment), default=min(runs))
