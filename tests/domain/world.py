"""Small frozen worlds for planner tests: one call makes one fact, everything else has a plain default."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from caches.domain.plans import Plan
from caches.domain.pool_view import (
    ArtifactFacts,
    EntryView,
    HoldView,
    NodeView,
    PinView,
    Placement,
    PlacementType,
    PoolPolicy,
    PoolView,
    Throughput,
)
from controlplane.clusters.documents import Action, ArtifactKind, EntryState, NodeState

GIB = 2**30
NOW = datetime(2026, 3, 4, 12, 0, tzinfo=UTC)
LONG_AGO = NOW - timedelta(days=30)


def artifact(digest: str, size: int = 10, *, connection: str = "store") -> ArtifactFacts:
    """Sizes in these helpers are GIB."""
    return ArtifactFacts(digest, f"{digest} v1", ArtifactKind.WEIGHTS, size * GIB, connection, f"s3://bucket/{digest}")


def pin(digest: str, priority: int = 500, **fields: Any) -> PinView:
    fields.setdefault("id", f"pin-{digest}")
    fields.setdefault("created_at", LONG_AGO)
    return PinView(digest=digest, priority=priority, **fields)


def count(number: int, spread: str = "") -> Placement:
    return Placement(PlacementType.COUNT, number, spread)


def percent(number: int) -> Placement:
    return Placement(PlacementType.PERCENT, number)


def entry(digest: str, state: EntryState = EntryState.READY, size: int = 10, **fields: Any) -> EntryView:
    """Ready long ago and never used, or as ``state`` and ``on_disk`` (GIB) say."""
    there = size if state in (EntryState.READY, EntryState.REPAIRING, EntryState.VERIFYING, EntryState.EVICTING) else 0
    fields["bytes_on_disk"] = fields.pop("on_disk", there) * GIB
    fields.setdefault("desired", Action.ENSURE)
    if state is EntryState.READY:
        fields.setdefault("ready_at", LONG_AGO)
    return EntryView(digest=digest, state=state, size_bytes=size * GIB, **fields)


def node(name: str, *entries: EntryView, capacity: int | None = 100, **fields: Any) -> NodeView:
    """A ready node whose consumers are known to be none; ``other`` and ``orphans`` in GIB."""
    fields.setdefault("uid", f"uid-{name}")
    fields.setdefault("state", NodeState.READY)
    fields.setdefault("labels", {})
    fields.setdefault("joined_at", LONG_AGO - timedelta(days=1))
    fields.setdefault("in_use", frozenset())
    fields["other_bytes"] = fields.pop("other", 0) * GIB
    fields["orphan_bytes"] = fields.pop("orphans", 0) * GIB
    size = capacity * GIB if capacity is not None else None
    return NodeView(name=name, capacity_bytes=size, entries=tuple(entries), **fields)


def view(
    nodes: Iterable[NodeView],
    pins: Iterable[PinView] = (),
    sizes: Mapping[str, int] | None = None,
    **fields: Any,
) -> PoolView:
    """A pool with a high watermark of 100 %, so that the numbers in a test are the numbers on the disk."""
    nodes, pins = tuple(nodes), tuple(pins)
    artifacts = {pin.digest: artifact(pin.digest) for pin in pins}
    for each in nodes:
        for item in each.entries:
            artifacts[item.digest] = artifact(item.digest, item.size_bytes // GIB)
    for digest, size in (sizes or {}).items():
        artifacts[digest] = artifact(digest, size)
    policy = fields.pop("policy", None) or PoolPolicy(high_watermark=1.0, low_watermark=0.8, max_downloads_per_node=8)
    if changes := fields.pop("with_policy", None):
        policy = replace(policy, **changes)
    fields.setdefault("artifacts", artifacts)
    return PoolView(cluster="c", pool="p", policy=policy, nodes=nodes, pins=pins, **fields)


def hold(digest: str, until: datetime | None = None, *nodes: str) -> HoldView:
    return HoldView(digest, "rollback", until, frozenset(nodes) if nodes else None)


def measured(rate: float = GIB, samples: int = 5) -> dict[str, Throughput]:
    return {"store": Throughput(rate, samples)}


def moved(plan: Plan) -> list[tuple[str, str]]:
    """(node, digest) of every move in order."""
    return [(move.node, move.digest) for move in plan.moves]


def evicted(plan: Plan) -> list[tuple[str, str]]:
    return [(item.node, item.digest) for item in plan.evictions]


def waiting(plan: Plan) -> dict[tuple[str, str], str]:
    return {(item.node, item.digest): item.reason.value for item in plan.waits}


def lines(plan: Plan, name: str) -> dict[str, str]:
    """digest -> "Action reason" of one node."""
    return {item.digest: f"{item.action.value} {item.reason}" for item in plan.desired[f"uid-{name}"]}
