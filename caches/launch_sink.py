"""What the watcher sees of engines' starts, as observations of launches. Repeating any of it changes nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime
from uuid import UUID

from caches.domain.launch_events import CONTAINER, event_observations
from caches.domain.launch_observations import Observation
from caches.services.launch_ingest import Sighting, launches_ended, sightings_record
from controlplane.clusters.documents import Consumer
from controlplane.clusters.gateway import ClusterEvent, EventType, Kind, Observed, WatchEvent
from controlplane.clusters.models import Cluster
from controlplane.serving.services import ENDPOINT_LABEL

ENGINE = "Engine"


class LaunchSink:
    """See controlplane.clusters.gateway.ObservationSink. It remembers nothing, however many launches go on."""

    def relisted(self, cluster_id: str, kind: Kind, items: tuple[Observed, ...], at: datetime) -> None:
        if kind is Kind.EVENT:
            _events(UUID(cluster_id), items)

    def changed(self, cluster_id: str, events: tuple[WatchEvent, ...], at: datetime) -> None:
        _events(UUID(cluster_id), (event.object for event in events if event.type is not EventType.DELETED))
        gone = [event.object for event in events if event.type is EventType.DELETED]
        ended = [one.uid for one in gone if isinstance(one, Consumer) and ENDPOINT_LABEL in one.labels]
        if ended:
            launches_ended(cluster_id=UUID(cluster_id), pod_uids=ended, at=at)


def _events(cluster_id: UUID, items: Iterable[Observed | None]) -> None:
    runs: dict[tuple[str, int], list[Observation]] = defaultdict(list)
    for item in items:
        if isinstance(item, ClusterEvent) and item.object_kind == ENGINE:
            for run, seen in event_observations(item.reason, item.at, item.message, item.restart_count):
                runs[item.object_uid, run].append(seen)
    if not runs:
        return
    name = Cluster.objects.values_list("name", flat=True).get(pk=cluster_id)
    sightings_record(
        items=[Sighting(cluster_id, name, uid, CONTAINER, run, tuple(seen)) for (uid, run), seen in runs.items()]
    )
