"""Hearth's own control plane, in the test process, over a real cluster: rows, watcher, loop, operations, a store."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from django.db import connections
from django.utils import timezone

from caches.agent.store import name_of
from caches.models import CacheEntry, ModelVersion, SourceConnection
from caches.services.catalogue import version_register
from caches.services.connections import connection_create
from caches.services.endpoints.rounds import clusters_with_endpoints, endpoints_round
from caches.services.images.observing import pool_images_observe, pools_to_observe
from caches.services.loop import rounds
from caches.services.loop.rounds import pool_reconcile, pools_due
from caches.sources.secrets import write_secret
from controlplane.audit.services import SYSTEM
from controlplane.clusters.documents import EntryState, NodeCacheSpec
from controlplane.clusters.gateway import ClusterGateway, Kind, ObservedNodeCache
from controlplane.clusters.kubernetes import names
from controlplane.clusters.kubernetes.client import KubeClient
from controlplane.clusters.kubernetes.gateway import KubernetesGateway
from controlplane.clusters.models import Cluster, ClusterType, Node, NodePool
from controlplane.clusters.registry import gateway_for
from controlplane.embedded.kube import cgroups
from controlplane.embedded.kube.cluster import KubeCluster
from controlplane.embedded.kube.node import KubeNode
from controlplane.embedded.seaweed import S3
from controlplane.management.commands.watch_cluster import watch_clusters
from controlplane.operations.models import ACTIVE_STATES, Operation
from controlplane.operations.steps import operation_step
from tests.kube.forward import Forward
from tests.sources.conftest import Bucket, make_bucket

MIB = 1024 * 1024
LABEL = "hearth.test/pool"
POOL = "gpu"
SECRET = "model-reader"
IMAGES_EVERY = 1.0  # seconds: what it costs is a list of pods
log = logging.getLogger(__name__)
AGENT_PODS = f"/api/v1/namespaces/{names.NODES_NAMESPACE}/pods"


class HearthOnKube:
    """One cluster row, one pool over the nodes that carry the label, one S3 connection that pods reach too."""

    def __init__(self, cluster: KubeCluster, s3: S3, forward: Forward, **pool: Any) -> None:
        self.kube, self.forward, self.since = cluster, forward, datetime.now(UTC)
        keys = {"access_key_id": s3.access_key, "secret_access_key": s3.secret_key}
        self.bucket: Bucket = make_bucket(s3.endpoint, keys)
        write_secret(SECRET, keys)
        self.row = Cluster.objects.create(
            name="real", type=ClusterType.KUBERNETES, address=f"{cluster.kubeconfig}#hearth"
        )
        fields: dict[str, Any] = {
            "selector": {LABEL: POOL}, "cache_path": str(cluster.cache_path), "evict_grace_seconds": 0,
            "status_interval_seconds": 0.5, "freshness_seconds": 30, "high_watermark": 0.9, "low_watermark": 0.8,
        }  # fmt: skip
        self.pool = NodePool.objects.create(cluster=self.row, name=POOL, **(fields | pool))
        self.connection: SourceConnection = connection_create(
            actor=SYSTEM, name="models", type="S3", endpoint=forward.endpoint, region=s3.region,
            secret_name=SECRET, allowed=[self.bucket.name],
        )  # fmt: skip
        self.gateway: ClusterGateway = gateway_for(self.row)
        assert isinstance(self.gateway, KubernetesGateway)
        self.client: KubeClient = self.gateway.client
        self.digests: set[str] = set()
        self._images_at = 0.0
        self._later: dict[UUID, float] = {}  # pools that a round wants looked at again, and when

    @contextmanager
    def running(self) -> Iterator[HearthOnKube]:
        stopping = threading.Event()
        thread = threading.Thread(target=watch_clusters, args=([], stopping), kwargs={"round_seconds": 1.0})
        thread.start()
        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(rounds, "publish", self._publish)
                yield self
        finally:
            stopping.set()
            thread.join(60)
            self._clear()
            connections.close_all()

    def _clear(self) -> None:
        """Nothing is wanted of any node any more, and no tree of this test is left on one."""
        for item in self.gateway.list(Kind.NODE_CACHE).items:
            assert isinstance(item, ObservedNodeCache)
            if item.node_name in self.kube.nodes and item.spec.desired:
                self.gateway.apply_node_cache(
                    NodeCacheSpec(node_name=item.node_name, node_uid=item.node_uid, pool=POOL)
                )
        for digest in self.digests:
            self.gateway.delete_manifest(digest)
            for node in self.kube.nodes.values():
                for part in ("weights", "partial", "state"):
                    shutil.rmtree(self.store(node) / part / name_of(digest), ignore_errors=True)

    # -- driving -----------------------------------------------------------------------------------------------

    def _publish(self, task: str, pool_id: str, *, countdown: float = 0.0) -> bool:
        """A round has itself sent again, once the scheduler has heard of what it changed."""
        assert task == "caches.pool_reconcile"
        self._later[UUID(pool_id)] = time.monotonic() + countdown
        return True

    def step(self) -> None:
        """What a worker would do now."""
        again = {pool_id for pool_id, at in self._later.items() if at <= time.monotonic()}
        for pool_id in {*pools_due(now=timezone.now()), *again}:
            self._later.pop(pool_id, None)
            pool_reconcile(pool_id=pool_id)
        for operation_id in Operation.objects.filter(state__in=ACTIVE_STATES).values_list("pk", flat=True):
            operation_step(operation_id=operation_id)
        for cluster_id in clusters_with_endpoints():
            endpoints_round(cluster_id=cluster_id)
        if time.monotonic() >= self._images_at:
            self._images_at = time.monotonic() + IMAGES_EVERY
            for pool_id in pools_to_observe():
                pool_images_observe(pool_id=pool_id)

    def until(self, condition: Callable[[], object], what: str, *, seconds: float = 150.0) -> float:
        """Work until the condition holds; the seconds it took. The limit is for a machine that does much else."""
        started = time.monotonic()
        while not condition():
            began = time.monotonic()
            assert began - started < seconds, f"{what}: not within {seconds:g} s; {self.said()}"
            self.step()
            # What is waited for is mostly nodes at work, and they need the processors more than another look.
            time.sleep(min(0.5, max(0.05, time.monotonic() - began)))
        took = time.monotonic() - started
        log.info("%s: %.1f s", what, took)
        return took

    def said(self) -> str:
        """What a person would look at first."""
        loop = getattr(self.pool, "loop", None)
        if loop is not None:
            loop.refresh_from_db()
        entries = CacheEntry.objects.values_list("node__name", "state", "reason", "message", "bytes_done")
        return f"loop: {loop.error if loop else ''}; entries: {list(entries)}; cluster: {self.row.error}"

    # -- models ------------------------------------------------------------------------------------------------

    def model(self, name: str, size: int, *, files: int = 2) -> ModelVersion:
        """A registered version of ``files`` files that hold ``size`` bytes together, unlike any other."""
        for number in range(files):
            content = noise(f"{self.bucket.name}/{name}/{number}", size // files)
            self.bucket.put(f"{name}/model-{number}.safetensors", content, ChecksumAlgorithm="SHA256")
        version, operation = version_register(
            actor=SYSTEM, model=name, version="v1", connection=self.connection, uri=f"s3://{self.bucket.name}/{name}"
        )
        while not operation_step(operation_id=operation.pk):
            pass
        version.refresh_from_db()
        assert version.artifact is not None, Operation.objects.get(pk=operation.pk).error
        self.digests.add(version.artifact.digest)
        return version

    # -- what is there -----------------------------------------------------------------------------------------

    def node(self, name: str) -> Node | None:
        return Node.objects.filter(cluster=self.row, name=name, lost_at=None).first()

    def reports(self, *nodes: str) -> bool:
        """Whether each node's agent has spoken in this test; what an earlier one left in a NodeCache says nothing."""
        rows = [self.node(name) for name in nodes]
        return all(row and row.reported_at and row.reported_at > self.since and row.ready for row in rows)

    def entry(self, node: str, version: ModelVersion) -> CacheEntry | None:
        return CacheEntry.objects.filter(node__name=node, node__lost_at=None, artifact=version.artifact).first()

    def is_ready(self, version: ModelVersion, *nodes: str) -> bool:
        entries = [self.entry(name, version) for name in nodes]
        return all(entry is not None and entry.state == EntryState.READY for entry in entries)

    def labels(self, node: str) -> dict[str, str]:
        return dict(self.client.get(f"{names.NODES}/{node}")["metadata"]["labels"])

    def cache(self, node: str) -> ObservedNodeCache | None:
        found = [item for item in self.gateway.list(Kind.NODE_CACHE).items if isinstance(item, ObservedNodeCache)]
        return next((item for item in found if item.node_name == node), None)

    def moved(self, node: str, version: ModelVersion) -> int:
        """Bytes of the artifact that are on the node's disk, published or not."""
        assert version.artifact is not None
        name = name_of(version.artifact.digest)
        store = self.store(self.kube.nodes[node])
        return max(_allocated(store / "partial" / name), _allocated(store / "weights" / name))

    def store(self, node: KubeNode) -> Any:
        return node.store / "hearth"

    def content(self, node: str, version: ModelVersion) -> dict[str, str]:
        """SHA-256 of every published file on the node's disk."""
        assert version.artifact is not None
        tree = self.store(self.kube.nodes[node]) / "weights" / name_of(version.artifact.digest)
        return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in tree.glob("*.safetensors")}

    def wanted_content(self, version: ModelVersion, *, files: int = 2) -> dict[str, str]:
        size = version.artifact.size_bytes if version.artifact else 0
        names_of = {number: f"{self.bucket.name}/{version.model.name}/{number}" for number in range(files)}
        return {
            f"model-{number}.safetensors": hashlib.sha256(noise(seed, size // files)).hexdigest()
            for number, seed in names_of.items()
        }

    def agent_pod(self, node: str) -> dict[str, Any] | None:
        """The running agent of a node."""
        query = {"fieldSelector": f"spec.nodeName={node}", "labelSelector": "app.kubernetes.io/name=hearth-agent"}
        found = [pod for pod in self.client.get(AGENT_PODS, query)["items"] if not _is_leaving(pod)]
        return found[0] if found else None


def agents(node: KubeNode) -> list[int]:
    """Processes of agents on a node."""
    found = []
    for pid in cgroups.processes(node.cgroup):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if b"caches.agent\0--kubernetes" in command and b"--root" in command:
            found.append(pid)
    return found


def noise(seed: str, size: int) -> bytes:
    """Bytes that no compression helps and nobody else has."""
    return hashlib.shake_128(seed.encode()).digest(size)


def seconds_since(text: str, until: str) -> float:
    """Between two times of the API server."""
    return (_time(until) - _time(text)).total_seconds()


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def _is_leaving(pod: dict[str, Any]) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp")) or pod["status"].get("phase") in ("Failed", "Succeeded")


def _allocated(folder: Any) -> int:
    """Bytes on the disk, while an agent works there."""
    found = 0
    for place, _, files in os.walk(folder):
        for name in files:
            with suppress(FileNotFoundError):
                found += os.lstat(os.path.join(place, name)).st_blocks * 512
    return found
