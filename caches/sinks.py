"""What caches does with what the watcher sees: mirror entries, remember consumers, and mark the pools that changed."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence
from datetime import datetime, timedelta
from time import monotonic
from uuid import UUID

from caches.services.consumers_seen import consumers_changed, consumers_relisted
from caches.services.entries import entries_close_lost, statuses_mirror
from caches.services.loop.rounds import pools_mark_dirty
from caches.services.projecting import node_caches_compare
from caches.services.projections import projections_forget
from caches.services.unknown_copies import unknown_copies_record
from controlplane.celery import publish_on_commit
from controlplane.clusters.documents import Consumer
from controlplane.clusters.endpoints import ObservedEndpoint
from controlplane.clusters.gateway import EventType, Kind, Observed, ObservedNode, ObservedNodeCache, WatchEvent
from controlplane.clusters.models import Node, NodePool
from controlplane.serving.services import ENDPOINT_LABEL

BATCH = 200
# Other bytes on a disk that moved by less than this change no plan worth making.
CAPACITY_STEP_BYTES = 16 * 1024 * 1024
AGAIN_SECONDS = 1.0  # between two rounds of a cluster's endpoints that changes ask for; a sweep asks for the last one
LEAST_FRESHNESS = timedelta(seconds=1)  # that a pool can have: a shorter silence is not looked at


class CachesSink:
    """One in the watcher's process. What it remembers only saves rounds: the first listing marks all."""

    def __init__(self) -> None:
        self._facts: dict[tuple[str, str, Kind], Hashable] = {}
        self._reported: dict[tuple[str, str], datetime] = {}  # by cluster and node uid
        self._asked: dict[str, float] = {}  # when a round of a cluster's endpoints was asked for last

    def relisted(self, cluster_id: str, kind: Kind, items: tuple[Observed, ...], at: datetime) -> None:
        """The complete set of one kind."""
        cluster = UUID(cluster_id)
        if kind is Kind.NODE:
            entries_close_lost(cluster_id=cluster)
            pools_mark_dirty(pool_ids=NodePool.objects.filter(cluster_id=cluster).values_list("pk", flat=True))
            self._forget(cluster_id, keep={item.uid for item in items if isinstance(item, ObservedNode)})
            self._facts |= self._news(cluster_id, kind, items)
        elif kind is Kind.NODE_CACHE:
            caches = [item for item in items if isinstance(item, ObservedNodeCache)]
            projections_forget(cluster_id=cluster, present={cache.node_uid for cache in caches})
            self._mirror(cluster_id, caches)
        elif kind is Kind.CONSUMER:
            consumers_relisted(cluster_id=cluster, items=[item for item in items if isinstance(item, Consumer)], at=at)

    def changed(self, cluster_id: str, events: tuple[WatchEvent, ...], at: datetime) -> None:
        """Increments in order; only the last one of each object counts."""
        cluster = UUID(cluster_id)
        if nodes := [e.object for e in events if isinstance(e.object, ObservedNode)]:
            entries_close_lost(cluster_id=cluster)
            deleted_nodes = {
                e.object.uid for e in events if isinstance(e.object, ObservedNode) and e.type is EventType.DELETED
            }
            self._mark_news(cluster_id, Kind.NODE, nodes, also=deleted_nodes)
            for uid in deleted_nodes:
                self._facts.pop((cluster_id, uid, Kind.NODE), None)
                self._facts.pop((cluster_id, uid, Kind.NODE_CACHE), None)
                self._reported.pop((cluster_id, uid), None)
        last = {e.object.node_uid: e for e in events if isinstance(e.object, ObservedNodeCache)}
        if last:
            deleted = [uid for uid, event in last.items() if event.type is EventType.DELETED]
            if deleted:
                projections_forget(cluster_id=cluster, gone=deleted)
            alive = [e.object for e in last.values() if e.type is not EventType.DELETED]
            self._mirror(cluster_id, [item for item in alive if isinstance(item, ObservedNodeCache)])
        consumers = {e.object.uid: (e.type, e.object) for e in events if isinstance(e.object, Consumer)}
        if consumers:
            gone = [uid for uid, (type_, _) in consumers.items() if type_ is EventType.DELETED]
            seen = [consumer for type_, consumer in consumers.values() if type_ is not EventType.DELETED]
            consumers_changed(cluster_id=cluster, seen=seen, gone=gone, at=at)
            self._mark(cluster, {consumer.node_uid for _, consumer in consumers.values()})
        if any(_is_news_of_endpoint(event.object) for event in events):
            self._ask(cluster_id)

    def _ask(self, cluster_id: str) -> None:
        """Have the cluster's endpoints looked at. What a sweep sends is forgotten where workers have much to do."""
        now = monotonic()
        if now - self._asked.get(cluster_id, -AGAIN_SECONDS) >= AGAIN_SECONDS:
            self._asked[cluster_id] = now
            publish_on_commit("caches.endpoints_round", cluster_id)

    def _mirror(self, cluster_id: str, caches: Sequence[ObservedNodeCache]) -> None:
        cluster = UUID(cluster_id)
        for start in range(0, len(caches), BATCH):
            node_caches_compare(cluster_id=cluster, caches=caches[start : start + BATCH])
            statuses_mirror(cluster_id=cluster, caches=caches[start : start + BATCH])
            unknown_copies_record(cluster_id=cluster, caches=caches[start : start + BATCH])
        self._mark_news(cluster_id, Kind.NODE_CACHE, caches)
        self._mark_returned(cluster_id, caches)

    def _mark_returned(self, cluster_id: str, caches: Sequence[ObservedNodeCache]) -> None:
        """A node that was silent for so long that nothing was planned for it is planned for at once when it reports."""
        told = {(cluster_id, c.node_uid): c.status.reported_at for c in caches if c.status is not None}
        gaps = {key[1]: at - self._reported[key] for key, at in told.items() if key in self._reported}
        self._reported |= told
        if longer := {uid: gap for uid, gap in gaps.items() if gap > LEAST_FRESHNESS}:
            found = Node.objects.filter(cluster_id=UUID(cluster_id), uid__in=longer, pool__isnull=False)
            limits = found.values_list("uid", "pool_id", "pool__freshness_seconds")
            silent = {pool for uid, pool, limit in limits if longer[uid].total_seconds() > limit}
            if silent:
                pools_mark_dirty(pool_ids=silent)

    def _mark_news(
        self, cluster_id: str, kind: Kind, items: Iterable[Observed | None], also: Iterable[str] = ()
    ) -> None:
        news = self._news(cluster_id, kind, items)
        self._mark(UUID(cluster_id), {*(uid for _, uid, _ in news), *also})
        self._facts |= news  # not before: what could not be marked is news again the next time

    def _forget(self, cluster_id: str, keep: Collection[str]) -> None:
        """Nodes that a complete listing does not have any more."""
        self._facts = {key: facts for key, facts in self._facts.items() if key[0] != cluster_id or key[1] in keep}
        self._reported = {key: at for key, at in self._reported.items() if key[0] != cluster_id or key[1] in keep}

    def _news(
        self, cluster_id: str, kind: Kind, items: Iterable[Observed | None]
    ) -> dict[tuple[str, str, Kind], Hashable]:
        """The planning facts that are others than last time, by node uid."""
        news: dict[tuple[str, str, Kind], Hashable] = {}
        for item in items:
            if isinstance(item, ObservedNode):
                uid, facts = item.uid, _node_facts(item)
            elif isinstance(item, ObservedNodeCache) and item.status is not None:
                uid, facts = item.node_uid, _store_facts(item)
            else:
                continue
            key = (cluster_id, uid, kind)
            if self._facts.get(key) != facts:
                news[key] = facts
            else:
                news.pop(key, None)  # it changed, and changed back
        return news

    def _mark(self, cluster_id: UUID, uids: Iterable[str]) -> None:
        if wanted := list(uids):
            pools = Node.objects.filter(cluster_id=cluster_id, uid__in=wanted, pool__isnull=False)
            pools_mark_dirty(pool_ids=set(pools.values_list("pool_id", flat=True)))


def _is_news_of_endpoint(item: Observed | None) -> bool:
    """A pod of one; a document that nobody has looked at yet, or that is to go. Not the status that a round wrote."""
    if isinstance(item, Consumer):
        return ENDPOINT_LABEL in item.labels
    if not isinstance(item, ObservedEndpoint):
        return False
    return item.deleting_at is not None or item.status.get("observedGeneration") != item.generation


def _node_facts(node: ObservedNode) -> Hashable:
    return (node.ready, node.schedulable, tuple(sorted(node.labels.items())), node.taints, node.terminating_at)


def _store_facts(cache: ObservedNodeCache) -> Hashable:
    status = cache.status
    if status is None:
        return None
    orphans = tuple((orphan.name, orphan.bytes) for orphan in status.orphans)
    return (status.capacity.capacity_bytes, status.capacity.other_bytes // CAPACITY_STEP_BYTES, orphans)
