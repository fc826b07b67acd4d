"""What the watcher sees of endpoints and their pods, as rows."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from controlplane.clusters.documents import Consumer
from controlplane.clusters.endpoints import ObservedEndpoint
from controlplane.clusters.gateway import EventType, Kind, Observed, ObservedNode, WatchEvent
from controlplane.serving.services import (
    endpoints_missing,
    endpoints_observe,
    instances_forget,
    instances_observe,
    instances_place,
)

ENDPOINT_KINDS = (Kind.ENDPOINT, Kind.JUMPSTART_MODEL)


class ServingSink:
    """See controlplane.clusters.gateway.ObservationSink."""

    def relisted(self, cluster_id: str, kind: Kind, items: tuple[Observed, ...], at: datetime) -> None:
        cluster = UUID(cluster_id)
        if kind in ENDPOINT_KINDS:
            seen = [item for item in items if isinstance(item, ObservedEndpoint)]
            endpoints_observe(cluster_id=cluster, items=seen, at=at)
            endpoints_missing(cluster_id=cluster, at=at, kind=kind.value, present={item.uid for item in seen})
        elif kind is Kind.CONSUMER:
            pods = [item for item in items if isinstance(item, Consumer)]
            instances_observe(cluster_id=cluster, items=pods, at=at, complete=True)
        elif kind is Kind.NODE:
            nodes = {item.uid for item in items if isinstance(item, ObservedNode)}
            instances_place(cluster_id=cluster, node_uids=nodes)

    def changed(self, cluster_id: str, events: tuple[WatchEvent, ...], at: datetime) -> None:
        """Increments in order; only the last one of each object counts."""
        cluster = UUID(cluster_id)
        last = {e.object.uid: e for e in events if isinstance(e.object, (ObservedEndpoint, Consumer))}
        alive = [event.object for event in last.values() if event.type is not EventType.DELETED]
        ended = [event.object for event in last.values() if event.type is EventType.DELETED]
        if endpoints := [item for item in alive if isinstance(item, ObservedEndpoint)]:
            endpoints_observe(cluster_id=cluster, items=endpoints, at=at)
        if gone := {item.uid for item in ended if isinstance(item, ObservedEndpoint)}:
            endpoints_missing(cluster_id=cluster, at=at, gone=gone)
        if pods := [item for item in alive if isinstance(item, Consumer)]:
            instances_observe(cluster_id=cluster, items=pods, at=at)
        if nodes := {event.object.uid for event in events if isinstance(event.object, ObservedNode)}:
            instances_place(cluster_id=cluster, node_uids=nodes)
        if left := {item.uid for item in ended if isinstance(item, Consumer)}:
            instances_forget(cluster_id=cluster, uids=left)
