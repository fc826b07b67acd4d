"""One agent on every node of a pool, where the cluster has no supervisor that starts them by itself."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime, timedelta

from django.conf import settings

from caches.models import NodeProjection, PoolLoop
from caches.services.loop.fan_out import fan_out
from caches.services.loop.round_budget import RoundBudget
from controlplane.audit.services import SYSTEM, audit_write
from controlplane.clusters.codec import dumps
from controlplane.clusters.documents import POOL_LABEL
from controlplane.clusters.gateway import ClusterGateway, Conflict, PoolAgent, Refused
from controlplane.clusters.models import ClusterType, Node, NodePool
from controlplane.clusters.node_labels import node_labels_told

AGAIN_AFTER = timedelta(minutes=5)  # in case somebody removed or changed it


def pool_agent(pool: NodePool) -> PoolAgent:
    """The agents of this pool as they should be."""
    return PoolAgent(
        pool=pool.name,
        image=settings.AGENT_IMAGE,
        cache_path=pool.cache_path,
        node_selector={POOL_LABEL: pool.name},
        server=settings.AGENT_API_SERVER,
        image_pull_secrets=tuple(settings.AGENT_PULL_SECRETS),
        source_paths=tuple(pool.source_paths),
    )


def agents_apply(
    *, pool: NodePool, gateway: ClusterGateway, now: datetime, budget: RoundBudget | None = None
) -> list[str]:
    """Apply the pool's agents when they changed or long ago; returns what could not be done, as sentences."""
    if pool.cluster.type == ClusterType.LOCAL:
        return []
    if not settings.AGENT_IMAGE:
        return ["No node gets an agent, because HEARTH_AGENT_IMAGE is not set. Set it and restart the workers."]
    problems = _nodes_mark(pool, gateway, budget)
    agent = pool_agent(pool)
    agent_hash = hashlib.sha256(dumps(agent).encode()).hexdigest()
    fresh = PoolLoop.objects.filter(pool=pool, agent_hash=agent_hash, agent_applied_at__gt=now - AGAIN_AFTER)
    if fresh.exists():
        return problems
    try:
        gateway.apply_agent(agent)
    except (Conflict, Refused) as error:
        return [*problems, f"The agents of {pool.full_name} could not be applied: {error}"]
    PoolLoop.objects.filter(pool=pool).update(agent_hash=agent_hash, agent_applied_at=now)
    return problems


def _nodes_mark(pool: NodePool, gateway: ClusterGateway, budget: RoundBudget | None) -> list[str]:
    """Label the pool's nodes as its own, and take the label from those that it does not have any more."""
    live = Node.objects.filter(cluster=pool.cluster, lost_at=None).order_by("name")
    ours: list[tuple[Node, str | None]] = [
        (node, pool.name) for node in live.filter(pool=pool).exclude(**{"labels__contains": {POOL_LABEL: pool.name}})
    ]
    ours += [(node, None) for node in live.filter(labels__contains={POOL_LABEL: pool.name}).exclude(pool=pool)]
    answers, failure = fan_out(
        lambda item: gateway.set_node_labels(item[0].name, item[0].uid, {POOL_LABEL: item[1]}), ours, budget=budget
    )
    done = [answer.item for answer in answers if answer.error is None]
    node_labels_told({node.pk: {POOL_LABEL: value} for node, value in done})
    _audit_put_back(pool, [node for node, value in done if value is not None])
    if failure is not None and not isinstance(failure, Refused):
        raise failure
    problems = [] if failure is None else [f"Nodes of {pool.full_name} get no agent: {failure}"]
    for answer in answers:
        # Refused by a policy of the cluster; or its incarnation is gone, and the watcher will say so.
        name = answer.item[0].name
        if isinstance(answer.error, Refused):
            problems.append(f"{name} gets no agent: {answer.error}")
        elif answer.error is not None:
            problems.append(f"{name}: {answer.error}")
    return problems


def _audit_put_back(pool: NodePool, nodes: Sequence[Node]) -> None:
    """Of nodes that were just marked, those that had been before: somebody took the mark away, or wrote another. The
    name of another pool is how a node looks that has just moved here from it."""
    begun = NodeProjection.objects.filter(node__in=nodes, generation__gt=0).values_list("node_id", flat=True)
    pools = set(NodePool.objects.filter(cluster_id=pool.cluster_id).values_list("name", flat=True)) if nodes else set()
    marked_before = set(begun)
    for node in nodes:
        found = node.labels.get(POOL_LABEL)
        if node.pk in marked_before and found not in pools:
            audit_write(
                actor=SYSTEM,
                action="node.label-restored",
                object_type="node",
                object_id=str(node.pk),
                object_name=node.name,
                before={POOL_LABEL: found},
                after={"labels": [POOL_LABEL]},
                message="Somebody changed the label that says which pool the node belongs to: it is back.",
            )
