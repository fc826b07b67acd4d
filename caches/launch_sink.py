"""What the watcher sees of engines' and pods' starts, as observations of launches. Repeating it changes nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from datetime import datetime
from uuid import UUID

from caches.domain.launches.events import CONTAINER, NODE_LOST, Runs, event_observations
from caches.domain.launches.observations import Observation
from caches.models import Launch
from caches.services.launches.ingest import Sighting, launches_ended, sightings_record
from caches.services.launches.pod_events import pod_events_observe
from caches.services.launches.pods import logs_follow, pods_missing, pods_observe
from controlplane.clusters.documents import Consumer
from controlplane.clusters.gateway import ClusterEvent, EventType, Kind, Observed, WatchEvent
from controlplane.clusters.models import Cluster
from controlplane.clusters.pod_runs import ObservedPod
from controlplane.serving.services import ENDPOINT_LABEL

ENGINE, POD = "Engine", "Pod"


class LaunchSink:
    """See controlplane.clusters.gateway.ObservationSink. It remembers nothing, however many launches go on."""

    def relisted(self, cluster_id: str, kind: Kind, items: tuple[Observed, ...], at: datetime) -> None:
        cluster = UUID(cluster_id)
        if kind is Kind.EVENT:
            _events(cluster, items)
        elif kind is Kind.POD:
            pods = [item for item in items if isinstance(item, ObservedPod)]
            pods_observe(cluster_id=cluster, items=pods, at=at)
            pods_missing(cluster_id=cluster, present={pod.uid for pod in pods}, at=at)

    def changed(self, cluster_id: str, events: tuple[WatchEvent, ...], at: datetime) -> None:
        """Pods before events: what is said of a pod is about launches that are known."""
        cluster = UUID(cluster_id)
        gone = [event.object for event in events if event.type is EventType.DELETED]
        if pods := [event.object for event in events if isinstance(event.object, ObservedPod)]:
            left = {one.uid for one in gone if isinstance(one, ObservedPod)}
            pods_observe(cluster_id=cluster, items=pods, at=at, gone=left)
        _events(cluster, (event.object for event in events if event.type is not EventType.DELETED))
        ended = [one.uid for one in gone if isinstance(one, Consumer) and ENDPOINT_LABEL in one.labels]
        if ended:
            launches_ended(cluster_id=cluster, pod_uids=ended, container=CONTAINER, at=at)


def _events(cluster_id: UUID, items: Iterable[Observed | None]) -> None:
    events = [item for item in items if isinstance(item, ClusterEvent)]
    _engines(cluster_id, [event for event in events if event.object_kind == ENGINE])
    if pods := [event for event in events if event.object_kind == POD]:
        pod_events_observe(cluster_id=cluster_id, items=pods)


def _engines(cluster_id: UUID, events: Iterable[ClusterEvent]) -> None:
    runs: dict[tuple[str, int], list[Observation]] = defaultdict(list)
    lost: list[ClusterEvent] = []
    for event in events:
        if event.reason == NODE_LOST:
            lost.append(event)
            continue
        for run, seen in _said(event):
            runs[event.object_uid, run].append(seen)
    known = runs.keys() | _known(cluster_id, lost)
    for event in lost:  # of one whose starts nobody saw it says nothing
        if mine := [run for uid, run in known if uid == event.object_uid]:
            runs[event.object_uid, max(mine)] += [seen for _, seen in _said(event)]
    if not runs:
        return
    name = Cluster.objects.values_list("name", flat=True).get(pk=cluster_id)
    items = [Sighting(cluster_id, name, uid, CONTAINER, run, tuple(seen)) for (uid, run), seen in runs.items()]
    sightings_record(items=items)
    logs_follow(items=items)


def _said(event: ClusterEvent) -> Runs:
    return event_observations(event.reason, event.at, event.message, event.restart_count, event.object_name)


def _known(cluster_id: UUID, lost: Collection[ClusterEvent]) -> set[tuple[str, int]]:
    """The stored runs of these engines."""
    if not lost:
        return set()
    rows = Launch.objects.filter(cluster=cluster_id, container=CONTAINER, pod_uid__in={one.object_uid for one in lost})
    return set(rows.values_list("pod_uid", "restart_count"))
