"""When a new node has what it was brought up for, so that work may come."""

from __future__ import annotations

from caches.domain.plans import MoveReason, Plan, WaitReason
from caches.domain.pool_view import NodeView
from controlplane.clusters.documents import NodeState

# What a node need not wait for: it may last for hours, or for ever, and the slow way still works.
_NOT_AWAITED = (WaitReason.WINDOW, WaitReason.PAUSED, WaitReason.SUSPENDED)
_ATTEMPTS = 3  # failures of one artifact after which it is no longer waited for


def is_warm(plan: Plan, node: NodeView) -> bool:
    """Whether nothing that pins want here is still to come soon. Refused and failing copies are not waited for."""
    if node.state is not NodeState.READY:
        return False
    hopeless = {entry.digest for entry in node.entries if entry.attempts >= _ATTEMPTS}
    coming = any(
        move.node_uid == node.uid and move.pin_id and not (move.reason is MoveReason.RETRY and move.digest in hopeless)
        for move in plan.moves
    )
    awaited = any(
        wait.node_uid == node.uid
        and wait.pin_id
        and wait.reason not in _NOT_AWAITED
        and not (wait.reason is WaitReason.RETRY_LATER and wait.digest in hopeless)
        for wait in plan.waits
    )
    return not coming and not awaited
