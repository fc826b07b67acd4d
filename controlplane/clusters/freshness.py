"""What a node's facts say about it now. Unknown is derived here, at reading time, and stored nowhere."""

from __future__ import annotations

from datetime import datetime, timedelta

from controlplane.clusters.documents import NodeState

DEFAULT_FRESHNESS_SECONDS = 120.0  # where no pool says otherwise


def is_fresh(at: datetime | None, *, freshness_seconds: float, now: datetime) -> bool:
    """Whether an observation made ``at`` still counts. None never does; a time in the future (skewed clock) does."""
    return at is not None and now - at <= timedelta(seconds=freshness_seconds)


def node_state(
    *,
    ready: bool | None,
    schedulable: bool,
    observed_at: datetime | None,
    reported_at: datetime | None,
    lost_at: datetime | None,
    freshness_seconds: float,
    now: datetime,
    terminating: bool = False,
) -> NodeState:
    """The state of one node row. ``observed_at`` is the cluster's last word, ``reported_at`` the agent's.

    Lost outranks everything. A cluster that has not spoken lately makes all it said Unknown. A node that the cluster
    calls not ready is NotReady however old its agent's report is; a ready one whose agent is silent is Unknown, unless
    its end was announced: nothing more is sent to a Terminating node.
    """
    if lost_at is not None:
        return NodeState.LOST
    if ready is None or not is_fresh(observed_at, freshness_seconds=freshness_seconds, now=now):
        return NodeState.UNKNOWN
    if not ready:
        return NodeState.NOT_READY
    if terminating:
        return NodeState.TERMINATING
    if not is_fresh(reported_at, freshness_seconds=freshness_seconds, now=now):
        return NodeState.UNKNOWN
    return NodeState.READY if schedulable else NodeState.CORDONED
