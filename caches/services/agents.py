"""One agent on every node of a pool, where the cluster has no supervisor that starts them by itself."""

from __future__ import annotations

import hashlib
from datetime import datetime, timedelta

from django.conf import settings

from caches.models import PoolLoop
from controlplane.clusters.codec import dumps
from controlplane.clusters.gateway import ClusterGateway, Conflict, PoolAgent, Refused
from controlplane.clusters.models import ClusterType, NodePool

AGAIN_AFTER = timedelta(minutes=5)  # in case somebody removed or changed it


def pool_agent(pool: NodePool) -> PoolAgent:
    """The agents of this pool as they should be."""
    return PoolAgent(
        pool=pool.name,
        image=settings.AGENT_IMAGE,
        cache_path=pool.cache_path,
        node_selector=dict(pool.selector),
        server=settings.AGENT_API_SERVER,
        image_pull_secrets=tuple(settings.AGENT_PULL_SECRETS),
    )


def agents_apply(*, pool: NodePool, gateway: ClusterGateway, now: datetime) -> list[str]:
    """Apply the pool's agents when they changed or long ago; returns what could not be done, as sentences."""
    if pool.cluster.type == ClusterType.LOCAL:
        return []
    if not settings.AGENT_IMAGE:
        return ["No node gets an agent, because HEARTH_AGENT_IMAGE is not set. Set it and restart the workers."]
    agent = pool_agent(pool)
    agent_hash = hashlib.sha256(dumps(agent).encode()).hexdigest()
    fresh = PoolLoop.objects.filter(pool=pool, agent_hash=agent_hash, agent_applied_at__gt=now - AGAIN_AFTER)
    if fresh.exists():
        return []
    try:
        gateway.apply_agent(agent)
    except (Conflict, Refused) as error:
        return [f"The agents of {pool.full_name} could not be applied: {error}"]
    PoolLoop.objects.filter(pool=pool).update(agent_hash=agent_hash, agent_applied_at=now)
    return []
