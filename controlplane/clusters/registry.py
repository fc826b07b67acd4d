"""Which gateway speaks to which cluster. The only place that knows the kinds of gateway."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path
from uuid import UUID

from django.conf import settings

from controlplane.clusters.gateway import ClusterGateway, GatewayError
from controlplane.clusters.models import Cluster, ClusterType
from controlplane.errors import Invalid

_lock = threading.Lock()
_gateways: dict[UUID, tuple[str, str, ClusterGateway]] = {}
_overrides: dict[UUID, ClusterGateway] = {}


def gateway_for(cluster: Cluster) -> ClusterGateway:
    """The cluster's gateway, one per process; a changed type or address makes a new one. Connects to nothing yet."""
    with _lock:
        if (override := _overrides.get(cluster.pk)) is not None:
            return override
        known = _gateways.get(cluster.pk)
        if known is None or known[:2] != (cluster.type, cluster.address):
            known = (cluster.type, cluster.address, _open(cluster))
            _gateways[cluster.pk] = known
        return known[2]


def address_problem(type: str, address: str) -> str:
    """Why no cluster of this type can be reached by this address, or "". Connects to nothing."""
    if type != ClusterType.KUBERNETES:
        return ""
    from controlplane.clusters.kubernetes import addresses

    return addresses.address_problem(address)


def cluster_answer(cluster: Cluster) -> str:
    """Ask the cluster once, for a few seconds: "" when it answers, otherwise what is wrong."""
    try:
        if cluster.type == ClusterType.KUBERNETES and cluster.pk not in _overrides:
            from controlplane.clusters.kubernetes.access import access_for
            from controlplane.clusters.kubernetes.client import KubeClient

            client = KubeClient(lambda: access_for(cluster.address), connect_seconds=2.0, read_seconds=3.0)
            client.get("/version")
        else:
            gateway_for(cluster).capabilities()
    except GatewayError as error:
        return str(error)
    return ""


def scheduling_lag(cluster: Cluster) -> timedelta:
    """How long a scheduler may still act on a node's label after it is gone. The local fleet schedules nothing."""
    return timedelta(seconds=0 if cluster.type == ClusterType.LOCAL else settings.SCHEDULING_LAG_SECONDS)


def override_gateway(cluster_id: UUID, gateway: ClusterGateway | None) -> None:
    """For tests: answer with this gateway from now on; None takes the override back."""
    with _lock:
        _overrides.pop(cluster_id, None)
        if gateway is not None:
            _overrides[cluster_id] = gateway


def _open(cluster: Cluster) -> ClusterGateway:
    if cluster.type == ClusterType.LOCAL:
        from controlplane.clusters.local.gateway import LocalGateway

        return LocalGateway(Path(cluster.address))
    if cluster.type == ClusterType.KUBERNETES:
        from controlplane.clusters.kubernetes.gateway import KubernetesGateway

        return KubernetesGateway(cluster.address)
    raise Invalid(
        "cluster:user:unsupported-type",
        f"Cluster {cluster.name} is of type {cluster.type}, which this version cannot speak to.",
        next_step="Use a cluster of type Local or Kubernetes.",
    )
