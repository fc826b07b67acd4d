"""A small local fleet with its rows: the real gateway and link, observed as the watcher does, driven step by step."""

from __future__ import annotations

import hashlib
import sqlite3
import weakref
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from caches.agent.link import NodeLink
from caches.domain.manifests import manifest_build, manifest_encode
from caches.domain.plans import Plan
from caches.models import Artifact, CacheEntry, ModelVersion, PoolLoop, SourceConnection
from caches.services.loop.rounds import pool_reconcile
from caches.sinks import CachesSink
from controlplane.clusters import node_rows
from controlplane.clusters.documents import (
    Action,
    Algorithm,
    CapacityStatus,
    Desired,
    DesiredEntry,
    EntryState,
    EntryStatus,
    FileRecord,
    NodeCacheSpec,
    NodeCacheStatus,
    Orphan,
)
from controlplane.clusters.gateway import Kind, ObservedNode, ObservedNodeCache
from controlplane.clusters.local.database import FILE_NAME
from controlplane.clusters.local.fleet import LocalFleet
from controlplane.clusters.local.link import LocalLink
from controlplane.clusters.local.nodes import node_set_ready
from controlplane.clusters.models import Cluster, Node, NodePool
from controlplane.clusters.registry import gateway_for
from tests import factories

MIB = 1024 * 1024


class World:
    """One cluster with one pool ``gpu``; nodes have 1,000 MiB unless told otherwise."""

    def __init__(self, folder: Path, *, nodes: int = 2, capacity_bytes: int = 1000 * MIB, **pool: Any) -> None:
        self.fleet = LocalFleet(folder)
        self.fleet.create(nodes=0)
        # While one connection stays open, no other has to sync the disk when it closes: half of a test's time.
        keeper = sqlite3.connect(folder / FILE_NAME, check_same_thread=False)
        keeper.execute("SELECT count(*) FROM meta").fetchone()
        weakref.finalize(self, keeper.close)
        self.folder = folder
        self.begin(factories.cluster(address=str(folder)), **pool)
        for number in range(1, nodes + 1):
            self.add(f"n{number}", capacity_bytes=capacity_bytes)
        self.observe()

    def begin(self, cluster: Cluster, **pool: Any) -> None:
        """The rows of a cluster, and nothing on it yet."""
        self.cluster = cluster
        self.pool: NodePool = factories.pool(
            of=cluster, name="gpu", selector={"hearth.dev/pool": "gpu"}, **{"evict_grace_seconds": 0, **pool}
        )
        self.gateway = gateway_for(cluster)
        self.sink = CachesSink()
        self.links: dict[str, NodeLink] = {}
        self.held: dict[str, dict[str, EntryStatus]] = {}
        self._heard: dict[Kind, object] = {}

    def add(self, name: str, *, capacity_bytes: int = 1000 * MIB) -> None:
        made = self.fleet.add(name, pool="gpu", capacity_bytes=capacity_bytes)
        self._start(name, made.uid)

    def replace(self, name: str) -> None:
        made = self.fleet.replace(name)
        self._start(name, made.uid)

    def _start(self, name: str, uid: str) -> None:
        with self.fleet.store.write() as session:
            node_set_ready(session, name, uid, True)
        self.links[name] = LocalLink(self.folder, name, uid)
        self.held[name] = {}
        self.report(name)

    def node(self, name: str) -> Node:
        return Node.objects.get(cluster=self.cluster, name=name, lost_at=None)

    def entry(self, name: str, version: ModelVersion) -> CacheEntry:
        return CacheEntry.objects.get(node=self.node(name), artifact=version.artifact)

    def loop(self) -> PoolLoop:
        return PoolLoop.objects.get(pool=self.pool)

    def observe(self, *, news_only: bool = False) -> None:
        """List everything and deliver it, rows first and then the sink, as the watcher does. ``news_only`` delivers no
        listing that is like the one before: cheaper, and right where nobody touched the rows meanwhile."""
        for kind in (Kind.NODE, Kind.NODE_CACHE, Kind.CONSUMER):
            items = self.gateway.list(kind).items
            if news_only and items == self._heard.get(kind):
                continue
            self._heard[kind] = items
            at = datetime.now(UTC)
            if kind is Kind.NODE:
                nodes = [item for item in items if isinstance(item, ObservedNode)]
                node_rows.nodes_relisted(cluster_id=self.cluster.pk, items=nodes, at=at)
            caches = [item for item in items if isinstance(item, ObservedNodeCache)]
            node_rows.node_statuses(cluster_id=self.cluster.pk, items=caches, at=at)
            self.sink.relisted(str(self.cluster.pk), kind, items, at)
            node_rows.cluster_contacted(cluster_id=self.cluster.pk, at=at, nodes_too=True)
        self.pool.refresh_from_db()

    def reconcile(self) -> Plan:
        """A round, later than any patience that the cluster asked for."""
        PoolLoop.objects.filter(pool=self.pool, not_before__isnull=False).update(not_before=None)
        plan = pool_reconcile(pool_id=self.pool.pk)
        assert plan is not None, self.loop().error
        return plan

    def desired(self, name: str) -> dict[str, Action]:
        return {line.digest: line.action for line in self.spec(name).desired}

    def line(self, name: str, version: ModelVersion) -> DesiredEntry:
        assert version.artifact is not None
        return next(line for line in self.spec(name).desired if line.digest == version.artifact.digest)

    def spec(self, name: str) -> NodeCacheSpec:
        found = self.known(name)
        assert found is not None
        return found.spec

    def known(self, name: str) -> Desired | None:
        """What the cluster tells this node's agent now."""
        return self.links[name].desired()

    def disk(self, name: str) -> tuple[int, int]:
        """Capacity and other bytes."""
        return self.links[name].disk() or (0, 0)

    def report(self, name: str, *statuses: EntryStatus, orphans: tuple[Orphan, ...] = (), **fields: Any) -> None:
        """The agent of this node says that it holds exactly what ``held`` and ``statuses`` say."""
        link, held = self.links[name], self.held[name]
        held.update({status.digest: status for status in statuses})
        known = self.known(name)
        capacity, other = self.disk(name)
        used = sum(status.bytes_done for status in held.values()) + sum(orphan.bytes for orphan in orphans)
        status = NodeCacheStatus(
            node_name=name,
            node_uid=link.node_uid,
            observed_generation=known.generation if known else 0,
            reported_at=datetime.now(UTC),
            capacity=CapacityStatus(capacity, used, other, 0),
            entries=tuple(held.values()),
            orphans=orphans,
        )
        link.report(replace(status, **fields))

    def obey(self, *names: str) -> None:
        """Every agent does at once what it is told, then reports."""
        for name in names or tuple(self.links):
            held = self.held[name]
            for line in self.spec(name).desired:
                if line.action is Action.EVICT:
                    held.pop(line.digest, None)
                else:
                    held[line.digest] = ready(line.digest, line.size_bytes, line)
            self.report(name)

    def warm(self, version: ModelVersion, *names: str) -> None:
        """The version is Ready, labelled and wanted by nobody on these nodes (none named: on all)."""
        assert version.artifact is not None
        for name in names or tuple(self.links):
            self.report(name, ready(version.artifact.digest, version.artifact.size_bytes))
        self.observe()
        self.reconcile()
        self.observe(news_only=True)

    def settle(self, rounds: int = 3) -> Plan:
        """Plan, obey, observe, until a round tells the cluster nothing new."""
        before = self._told()
        for number in range(rounds):
            plan = self.reconcile()
            if number and self._told() == before:
                return plan
            self.obey()
            before = self._told()
            self.observe(news_only=True)
        return self.reconcile()

    def _told(self) -> int:
        """The store's version: every change of anything counts."""
        with self.fleet.store.read() as session:
            return session.version()


def ready(digest: str, size: int, line: DesiredEntry | None = None, **fields: Any) -> EntryStatus:
    now = datetime.now(UTC)
    made = EntryStatus(
        digest=digest,
        state=EntryState.READY,
        bytes_done=size,
        bytes_total=size,
        bytes_moved=size,
        started_at=now,
        ready_at=now,
        verified_at=now,
        verify_round=line.verify_round if line else 0,
        retry_round=line.retry_round if line else 0,
    )
    return replace(made, **fields)


def failed(digest: str, reason: str, line: DesiredEntry | None = None, **fields: Any) -> EntryStatus:
    rounds = (line.verify_round, line.retry_round) if line else (0, 0)
    made = EntryStatus(digest, EntryState.FAILED, reason=reason, message="It failed.", attempts=1)
    return replace(made, verify_round=rounds[0], retry_round=rounds[1], **fields)


def version_of(size_bytes: int, *, connection: SourceConnection | None = None, **fields: Any) -> Any:
    """An Available ModelVersion whose manifest is real: one file of that size."""
    checksum = hashlib.sha256(str(factories._n()).encode()).hexdigest()
    manifest = manifest_build([FileRecord("model.bin", size_bytes, Algorithm.SHA256, checksum, checksum[:16])])
    artifact: Artifact = factories.artifact(
        digest=manifest.digest, size_bytes=size_bytes, files_count=1, manifest=manifest_encode(manifest)
    )
    if connection is not None:
        fields["connection"] = connection
    return factories.version(artifact=artifact, **fields)
