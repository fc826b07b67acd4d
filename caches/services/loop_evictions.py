"""Confirming evictions: first the ready-label goes, then the cluster is asked afresh who uses the bytes.

What the watcher saw is never enough. A plan is made again with each fresh listing, until it evicts only what was
confirmed; where no listing can be had, the node's references are unknown and the planner evicts nothing there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from uuid import UUID

import structlog

from caches.domain.plans import Plan
from caches.domain.pool_view import PoolView
from controlplane.clusters.gateway import ClusterGateway, GatewayError

ROUNDS = 3
LABEL_PREFIX = "hearth.dev/weights-cache-ready."

log = structlog.get_logger(__name__)


def ready_label(artifact_id: UUID) -> str:
    """The node label that says that the artifact is Ready there."""
    return f"{LABEL_PREFIX}{artifact_id}"


def evictions_confirm(
    *, view: PoolView, gateway: ClusterGateway, decide: Callable[[PoolView], Plan], ids: Mapping[str, UUID]
) -> Plan:
    """The plan of ``decide`` in which every eviction is confirmed: label gone, and no use in a listing after that."""
    plan = decide(view)
    cleared: set[tuple[str, str]] = set()
    in_use: dict[str, frozenset[str] | None] = {}
    for _ in range(ROUNDS):
        wanted = {(eviction.node_uid, eviction.digest) for eviction in plan.evictions}
        if wanted <= cleared:
            return plan
        for uid in sorted({uid for uid, _ in wanted - cleared}):
            digests = {digest for node_uid, digest in wanted if node_uid == uid}
            in_use[uid] = _listed(view, gateway, uid, digests, ids)
            cleared |= {(uid, digest) for digest in digests}
        plan = decide(_with_use(view, in_use))
    # It keeps wanting others: count those as used, so that only confirmed ones go this time.
    late = {(e.node_uid, e.digest) for e in plan.evictions} - cleared
    for uid, digest in late:
        known = in_use.get(uid)
        in_use[uid] = None if known is None else known | {digest}
    plan = decide(_with_use(view, in_use)) if late else plan
    return plan if all((e.node_uid, e.digest) in cleared for e in plan.evictions) else decide(_blind(view))


def _listed(
    view: PoolView, gateway: ClusterGateway, uid: str, digests: set[str], ids: Mapping[str, UUID]
) -> frozenset[str] | None:
    """Take the labels away, then list. None when either cannot be had."""
    node = next(node for node in view.nodes if node.uid == uid)
    try:
        labels = {ready_label(ids[digest]): None for digest in digests if digest in ids}
        if labels:
            gateway.set_node_labels(node.name, uid, labels)
        return frozenset().union(*(consumer.digests for consumer in gateway.consumers(node.name, uid)))
    except GatewayError as error:
        log.warning("eviction.unconfirmed", node=node.name, error=f"{type(error).__name__}: {error}")
        return None


def _with_use(view: PoolView, in_use: Mapping[str, frozenset[str] | None]) -> PoolView:
    nodes = tuple(
        dataclasses.replace(node, in_use=in_use[node.uid]) if node.uid in in_use else node for node in view.nodes
    )
    return dataclasses.replace(view, nodes=nodes)


def _blind(view: PoolView) -> PoolView:
    return _with_use(view, dict.fromkeys((node.uid for node in view.nodes), None))
