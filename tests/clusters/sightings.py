"""What a cluster may say, for tests of rows."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from controlplane.clusters.documents import CapacityStatus, NodeCacheSpec, NodeCacheStatus, Orphan
from controlplane.clusters.gateway import EventType, Kind, ObservedNode, ObservedNodeCache, WatchEvent

T0 = datetime(2026, 1, 1, tzinfo=UTC)


def seen(name: str, uid: str = "", **fields: Any) -> ObservedNode:
    """A ready node of pool-a."""
    given: dict[str, Any] = {
        "name": name,
        "uid": uid or f"uid-{name}",
        "labels": {"hearth.dev/pool": "pool-a"},
        "ready": True,
        "schedulable": True,
        "created_at": T0,
    }
    return ObservedNode(**(given | fields))


def event(type_: EventType, node: ObservedNode) -> WatchEvent:
    return WatchEvent(type_, Kind.NODE, "t", node)


def report(uid: str, at: datetime, *, used: int = 1) -> ObservedNodeCache:
    """A node cache whose agent reported ``at``."""
    status = NodeCacheStatus(
        node_name="a-1",
        node_uid=uid,
        observed_generation=1,
        reported_at=at,
        capacity=CapacityStatus(1000, used, 3, 4),
        orphans=(Orphan("sha256-ff", 9, True),),
        agent_version="1.0",
    )
    return ObservedNodeCache("a-1", uid, 1, NodeCacheSpec("a-1", uid, "pool-a"), status)
