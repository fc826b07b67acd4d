"""Where each kind is listed and watched, and what is made of one object. Remembers who is where, and nothing raw."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar

from controlplane.clusters.documents import Consumer
from controlplane.clusters.gateway import Kind, NotFound, Observed, ObservedNode
from controlplane.clusters.kubernetes import endpoint_objects, names, objects
from controlplane.clusters.kubernetes.client import KubeClient
from controlplane.clusters.kubernetes.pod_events import Launching, pod_event
from controlplane.clusters.kubernetes.pod_starts import has_launches, observed_pod
from controlplane.clusters.kubernetes.pods import consumer_of
from controlplane.clusters.kubernetes.watches import listed

Json = Mapping[str, Any]
Seen = tuple[Observed, bool]  # the object, and whether it has ended for Hearth whatever the change is called
log = logging.getLogger(__name__)

# Terminal pods stay out of the listing, and leave the watch as deletions.
ALIVE = "status.phase!=Succeeded,status.phase!=Failed"


class Source:
    """One kind. ``listed`` and ``changed`` return None for what Hearth has no use for."""

    path: ClassVar[str]
    query: ClassVar[Mapping[str, object]] = {}

    def __init__(self, kinds: Kinds) -> None:
        self.kinds = kinds

    def begin(self) -> None:
        """A complete listing starts."""

    def is_there(self) -> bool:
        """Whether the cluster has the kind at all."""
        return True

    def listed(self, item: Json) -> Observed | None:
        raise NotImplementedError

    def changed(self, change: str, item: Json) -> Seen | None:
        made = self.listed(item)
        return None if made is None else (made, False)

    def same(self, before: Observed, now: Observed) -> bool:
        """Whether a modification says nothing new."""
        return before == now

    def late(self) -> Sequence[Observed]:
        """What came earlier and can be told only now."""
        return ()


class Nodes(Source):
    path = names.NODES

    def listed(self, item: Json) -> Observed | None:
        node = objects.observed_node(item, datetime.now(UTC))
        self.kinds.node_uids[node.name] = node.uid
        return node

    def changed(self, change: str, item: Json) -> Seen | None:
        node = objects.observed_node(item, datetime.now(UTC))
        uids = self.kinds.node_uids
        if change != "DELETED":
            uids[node.name] = node.uid
        elif uids.get(node.name) == node.uid:
            del uids[node.name]
        return node, False

    def same(self, before: Observed, now: Observed) -> bool:
        return isinstance(before, ObservedNode) and isinstance(now, ObservedNode) and objects.same_node(before, now)


class NodeCaches(Source):
    path = names.NODE_CACHES

    def listed(self, item: Json) -> Observed | None:
        try:
            cache = objects.observed_node_cache(item)
        except ValueError as error:
            # One object that somebody spoilt must not hide the others. Nothing is removed because it is not seen.
            log.warning("NodeCache %s cannot be read: %s", item["metadata"]["name"], error)
            return None
        if cache.status is None:
            return cache
        return dataclasses.replace(cache, status=self.kinds.client.clock.from_server(cache.status))


class Consumers(Source):
    path = names.PODS
    query: ClassVar[Mapping[str, object]] = {"fieldSelector": ALIVE}

    def begin(self) -> None:
        self.kinds.learn_nodes()
        self.kinds.consumers = {}

    def listed(self, item: Json) -> Observed | None:
        consumer = consumer_of(item, "")
        if consumer is None:
            return None
        uid = self.kinds.node_uid(consumer.node_name) if consumer.node_name else ""
        if uid is None:
            return None
        consumer = dataclasses.replace(consumer, node_uid=uid)
        self.kinds.consumers[consumer.uid] = consumer
        return consumer

    def changed(self, change: str, item: Json) -> Seen | None:
        uid = item["metadata"]["uid"]
        if change != "DELETED" and (consumer := self.listed(item)) is not None:
            return consumer, False
        known = self.kinds.consumers.pop(uid, None)
        if known is not None:
            return known, True
        if change != "DELETED":
            return None
        consumer = consumer_of(item, "", ended=True)
        if consumer is None:
            return None
        node_uid = self.kinds.node_uids.get(consumer.node_name, "")
        return dataclasses.replace(consumer, node_uid=node_uid), True


class Pods(Source):
    """Those whose starts are launches, placed or not."""

    path = names.PODS

    def begin(self) -> None:
        self.kinds.launching.turn()

    def listed(self, item: Json) -> Observed | None:
        pod = observed_pod(item)
        if pod is not None:
            self.kinds.launching.add(pod.uid, listed=True)
        return pod

    def changed(self, change: str, item: Json) -> Seen | None:
        pod = observed_pod(item)
        if pod is None:
            return None
        self.kinds.launching.add(pod.uid)
        return pod, False


class Events(Source):
    """What agents say of their nodes, and what is said of the pods whose starts are launches."""

    path = names.ALL_EVENTS
    query: ClassVar[Mapping[str, object]] = {"fieldSelector": "reason!=Unhealthy"}

    def begin(self) -> None:
        launching = self.kinds.launching
        if launching.is_empty:
            found, _ = listed(self.kinds.client, names.PODS, {}, _launching_uid, only_metadata=True)
            launching.learn(found)

    def listed(self, item: Json) -> Observed | None:
        if objects.reporter_of(item) == names.AGENT_MANAGER:
            return objects.observed_event(item)
        event = pod_event(item)
        return event if event is not None and self.kinds.launching.takes(event) else None

    def late(self) -> Sequence[Observed]:
        return self.kinds.launching.late()


def _launching_uid(item: Json) -> str | None:
    return str(item["metadata"]["uid"]) if has_launches(item["metadata"]) else None


class Endpoints(Source):
    """Of one of the vendor's kinds, which a cluster may have or not."""

    def __init__(self, kinds: Kinds, kind: Kind) -> None:
        super().__init__(kinds)
        self._kind = kind.value
        self._plural = endpoint_objects.PLURALS[self._kind]
        self.path = f"{endpoint_objects.API}/{self._plural}"  # type: ignore[misc]

    def is_there(self) -> bool:
        try:
            return endpoint_objects.has_kind(self.kinds.client.get(endpoint_objects.API), self._plural)
        except NotFound:
            return False

    def listed(self, item: Json) -> Observed | None:
        return endpoint_objects.observed_endpoint(item, self._kind)


class Kinds:
    """The sources of one gateway and what they share: node uids by name, and the consumers that were told."""

    def __init__(self, client: KubeClient) -> None:
        self.client = client
        self.node_uids: dict[str, str] = {}
        self.consumers: dict[str, Consumer] = {}
        self.launching = Launching()
        self._sources: Mapping[Kind, Source] = {
            Kind.NODE: Nodes(self),
            Kind.NODE_CACHE: NodeCaches(self),
            Kind.CONSUMER: Consumers(self),
            Kind.POD: Pods(self),
            Kind.EVENT: Events(self),
            Kind.ENDPOINT: Endpoints(self, Kind.ENDPOINT),
            Kind.JUMPSTART_MODEL: Endpoints(self, Kind.JUMPSTART_MODEL),
        }

    def source(self, kind: Kind) -> Source:
        return self._sources[kind]

    def learn_nodes(self) -> None:
        """Who has which name now, for the pods that only say the name."""

        def pair(item: Json) -> tuple[str, str]:
            return item["metadata"]["name"], item["metadata"]["uid"]

        pairs, _ = listed(self.client, names.NODES, {}, pair, only_metadata=True)
        self.node_uids = dict(pairs)

    def node_uid(self, name: str) -> str | None:
        """The uid of the incarnation that has the name; None when there is no such node."""
        if name not in self.node_uids:
            try:
                node = self.client.get(f"{names.NODES}/{name}", only_metadata="PartialObjectMetadata")
            except NotFound:
                return None
            self.node_uids[name] = node["metadata"]["uid"]
        return self.node_uids[name]

    def consumers_on(self, node_name: str, node_uid: str) -> tuple[Consumer, ...]:
        """A fresh listing of one node's consumers."""
        query = {"fieldSelector": f"spec.nodeName={node_name},{ALIVE}"}
        found, _ = listed(self.client, names.PODS, query, lambda pod: consumer_of(pod, node_uid))
        return tuple(found)

    def pod_names(self) -> Mapping[str, str]:
        """Pod uid to ``namespace/name`` of the consumers that were told."""
        return {uid: consumer.name for uid, consumer in self.consumers.items()}
