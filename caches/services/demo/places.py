"""Where the demo's models are kept warm: the folders of the local fleet, or real nodes of a Kubernetes cluster.

Both have the same two pools. What people changed or deleted since is left alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from django.conf import settings

from controlplane.audit.models import AuditEvent, Via
from controlplane.audit.services import Actor
from controlplane.clusters.gateway import Kind, ObservedNode
from controlplane.clusters.local.fleet import DEFAULT_POOLS, LocalFleet
from controlplane.clusters.local.nodes import POOL_LABEL
from controlplane.clusters.models import Cluster, ClusterType, NodePool
from controlplane.clusters.registry import gateway_for
from controlplane.clusters.services import cluster_create, cluster_identified, nodes_relisted, pool_create

DEMO = Actor(name="demo", via=Via.COMMAND)
CLUSTER = "local"
KUBE_CLUSTER = "kube"
# Fit for watching: a person sees a change within two seconds and an eviction within ten, and a transfer takes long
# enough to be seen at all. The pool's page shows the limit.
POOL_SETTINGS: Mapping[str, Any] = {
    "node_bytes_per_second": 16 * 1024 * 1024,
    "status_interval_seconds": 2,
    "freshness_seconds": 15,
    "evict_grace_seconds": 10,
    "scrub_interval_seconds": 600,
}


@dataclass(frozen=True, slots=True)
class KubePlace:
    """A cluster whose nodes carry the pools' label: how Hearth is let in, and the folder that nodes keep models in."""

    kubeconfig: Path
    cache_path: str


def fleet_create(nodes: int) -> Cluster:
    """The cluster ``local``, its pools and node rows, so that the first pins have targets before an agent runs."""
    folder = _own_folder()
    cluster = Cluster.objects.filter(name=CLUSTER).first()
    if cluster is None:
        cluster = cluster_create(actor=DEMO, name=CLUSTER, type=ClusterType.LOCAL, address=str(folder))
    if not is_own_fleet(cluster):
        return cluster  # a person's own cluster of this name
    LocalFleet(folder).create(nodes=nodes)
    _pools_create(cluster, POOL_SETTINGS)
    return _seen(cluster)


def is_own_fleet(cluster: Cluster) -> bool:
    """Whether it is the local fleet that the demo made."""
    return cluster.address == str(_own_folder())


def _own_folder() -> Path:
    return Path(settings.STATE_DIR) / "fleet"


def kube_create(place: KubePlace) -> Cluster:
    """The cluster ``kube``, its pools and node rows."""
    cluster = Cluster.objects.filter(name=KUBE_CLUSTER).first()
    if cluster is None:
        cluster = cluster_create(
            actor=DEMO, name=KUBE_CLUSTER, type=ClusterType.KUBERNETES, address=str(place.kubeconfig)
        )
    if cluster.address != str(place.kubeconfig):
        return cluster  # a person's own cluster of this name
    _pools_create(cluster, {**POOL_SETTINGS, "cache_path": place.cache_path})
    return _seen(cluster)


def _pools_create(cluster: Cluster, values: Mapping[str, Any]) -> None:
    for layout in DEFAULT_POOLS:
        done = AuditEvent.objects.filter(action="pool.create", object_name=f"{cluster.name}.{layout.name}")
        if not done.exists() and not NodePool.objects.filter(cluster=cluster, name=layout.name).exists():
            pool_create(
                actor=DEMO,
                cluster_id=cluster.pk,
                name=layout.name,
                selector={POOL_LABEL: layout.name},
                settings=values,
            )


def _seen(cluster: Cluster) -> Cluster:
    listing = gateway_for(cluster).list(Kind.NODE)
    seen = [item for item in listing.items if isinstance(item, ObservedNode)]
    cluster_identified(cluster_id=cluster.pk, uid=listing.cluster_uid)
    nodes_relisted(cluster_id=cluster.pk, items=seen, at=datetime.now(UTC))
    return cluster
