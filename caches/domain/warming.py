"""When a new node has what it was brought up for, so that work may come."""

from __future__ import annotations

from collections.abc import Iterable

from caches.domain.plans import MoveReason, Plan, WaitReason
from caches.domain.pool_view import NodeView
from controlplane.clusters.documents import NodeState

# What a node need not wait for: it may last for hours, or for ever, and the slow way still works.
_NOT_AWAITED = (WaitReason.WINDOW, WaitReason.PAUSED, WaitReason.SUSPENDED)
_ATTEMPTS = 3  # failures of one artifact after which it is no longer waited for


def warm_nodes(plan: Plan, nodes: Iterable[NodeView]) -> frozenset[str]:
    """The uids of those on which nothing that pins want is still to come soon. Refused and failing copies are not
    waited for."""
    ready = {node.uid: node for node in nodes if node.state is NodeState.READY}
    hopeless = {
        (node.uid, entry.digest) for node in ready.values() for entry in node.entries if entry.attempts >= _ATTEMPTS
    }
    coming = {
        move.node_uid
        for move in plan.moves
        if move.pin_id and not (move.reason is MoveReason.RETRY and (move.node_uid, move.digest) in hopeless)
    }
    awaited = {
        wait.node_uid
        for wait in plan.waits
        if wait.pin_id
        and wait.reason not in _NOT_AWAITED
        and not (wait.reason is WaitReason.RETRY_LATER and (wait.node_uid, wait.digest) in hopeless)
    }
    return frozenset(ready.keys() - coming - awaited)
