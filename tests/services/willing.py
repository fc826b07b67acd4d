"""A pool of any size as rows, and a cluster that agrees to everything: for what rounds cost, not what they do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from caches.models import CacheEntry
from controlplane.clusters.documents import EntryState
from controlplane.clusters.gateway import Kind, Listing
from controlplane.clusters.models import ClusterType, Node, NodePool
from controlplane.clusters.registry import override_gateway
from tests import factories
from tests.services.world import MIB, version_of


class Willing:
    """Counts its calls; keeps nothing."""

    def __init__(self) -> None:
        self.calls: dict[str, int] = {}

    def list(self, kind: Kind, node_name: str = "") -> Listing:
        return Listing((), "1")

    def apply_node_cache(self, spec: Any, *, take_over: bool = False) -> int:
        self._count("apply_node_cache")
        return 1

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **kwargs: self._count(name)

    def _count(self, name: str) -> None:
        self.calls[name] = self.calls.get(name, 0) + 1

    @property
    def total(self) -> int:
        return sum(self.calls.values())


@contextmanager
def willing_pool(nodes: int, artifacts: int) -> Iterator[tuple[NodePool, Willing]]:
    """``artifacts`` of one MiB pinned to ``nodes`` nodes that may fetch all of them at once. Set an AGENT_IMAGE."""
    cluster, gateway = factories.cluster(type=ClusterType.KUBERNETES), Willing()
    pool = factories.pool(of=cluster, max_downloads=1_000_000, max_downloads_per_node=64, evict_grace_seconds=0)
    now = datetime.now(UTC)
    Node.objects.bulk_create(
        Node(
            cluster=cluster,
            pool=pool,
            name=f"n-{number:04}",
            uid=f"{pool.name}-{number}",
            labels=dict(pool.selector),
            ready=True,
            joined_at=now - timedelta(hours=1),
            observed_at=now,
            reported_at=now,
            capacity_bytes=1000 * MIB,
        )
        for number in range(nodes)
    )
    store = factories.connection(type="S3", allowed=["models"])
    for number in range(artifacts):
        factories.pin(of=version_of(MIB, connection=store, uri=f"s3://models/{number}"), pools=(pool,))
    override_gateway(cluster.pk, gateway)  # type: ignore[arg-type]
    try:
        yield pool, gateway
    finally:
        override_gateway(cluster.pk, None)


def all_ready(pool: NodePool) -> None:
    """As if every agent had reported that all is there."""
    now = datetime.now(UTC)
    CacheEntry.objects.filter(node__pool=pool).update(
        state=EntryState.READY, bytes_done=MIB, bytes_total=MIB, ready_at=now, verified_at=now, observed_at=now
    )
    Node.objects.filter(pool=pool).update(reported_at=now, observed_at=now)
