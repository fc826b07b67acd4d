"""What the planner answers: dry run, forecast, admission and the real thing are this one shape.

Every line carries a reason. ``Plan.desired`` is what is projected into each node's NodeCache; the other lists say what
that changes. Sizes are bytes, times aware UTC.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum

from controlplane.clusters.documents import Action


class MoveReason(StrEnum):
    PINNED = "Pinned"
    REPAIR = "Repair"
    NEW_NODE = "NewNode"
    RETRY = "Retry"
    IN_FLIGHT = "InFlight"


class EvictReason(StrEnum):
    MANUAL = "Manual"
    LRU = "LeastRecentlyUsed"
    PRIORITY = "LowerPriority"
    PRESSURE = "DiskPressure"
    UNREFERENCED = "Unreferenced"  # an image that no pin wants any more: only what is referenced is held
    UNFINISHED = "Unfinished"  # a partial download that no pin wants any more


class WaitReason(StrEnum):
    WINDOW = "Window"
    PACING = "Pacing"
    PAUSED = "Paused"
    NODE_NOT_READY = "NodeNotReady"
    SETTLING = "Settling"
    RETRY_LATER = "RetryLater"
    SUSPENDED = "Suspended"
    EVICTION = "Eviction"  # its room is made by an eviction that is being confirmed


class Protection(StrEnum):
    """Why an entry may not be evicted now."""

    IN_USE = "InUse"
    PINNED = "Pinned"
    HELD = "Held"
    GRACE = "Grace"
    REFERENCES_UNKNOWN = "ReferencesUnknown"
    NODE_NOT_READY = "NodeNotReady"


@dataclass(frozen=True, slots=True)
class DesiredItem:
    """One projected line for one node: see documents.DesiredEntry."""

    digest: str
    action: Action
    order: int
    reason: str  # a MoveReason, EvictReason, or "Kept"
    pin_id: str = ""


@dataclass(frozen=True, slots=True)
class Move:
    node: str
    node_uid: str
    digest: str
    artifact: str  # name for people
    bytes: int  # still to be transferred
    source: str  # connection name
    estimated_seconds: float | None
    order: int
    reason: MoveReason
    pin_id: str
    after_evictions: bool = False  # its room is made by evictions of the same plan
    priority: int = 0  # of the strongest pin that wants it; pace() compares pools by it


@dataclass(frozen=True, slots=True)
class Eviction:
    node: str
    node_uid: str
    digest: str
    artifact: str
    bytes: int
    reason: EvictReason
    detail: str
    last_used_at: datetime | None
    restore_seconds: float | None  # how long fetching it again would take, by the same estimate
    room_for: str = ""  # the digest whose move needs this room, "" where nothing particular does


@dataclass(frozen=True, slots=True)
class Refusal:
    node: str
    node_uid: str
    digest: str
    artifact: str
    reason: str  # a documents.Reason value, usually InsufficientCapacity
    detail: str
    need_bytes: int
    free_bytes: int
    reserved_bytes: int
    next_step: str
    pin_id: str = ""
    until: datetime | None = None  # when graces and holds alone will have made the room; None: waiting does not help


@dataclass(frozen=True, slots=True)
class Wait:
    node: str
    node_uid: str
    digest: str
    artifact: str
    reason: WaitReason
    detail: str
    until: datetime | None
    pin_id: str = ""
    bytes: int = 0  # still to be transferred once it may


@dataclass(frozen=True, slots=True)
class Plan:
    """``desired`` maps a node uid to its lines, most valuable first. ``estimate_basis`` counts measured transfers.

    ``total_bytes`` and ``estimated_seconds`` cover the moves and what only waits for its turn (WaitReason.PACING).
    """

    pool: str
    moves: tuple[Move, ...] = ()
    evictions: tuple[Eviction, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    waits: tuple[Wait, ...] = ()
    desired: Mapping[str, tuple[DesiredItem, ...]] = field(default_factory=dict)
    total_bytes: int = 0
    estimated_seconds: float | None = None
    estimate_basis: int = 0
    notes: tuple[str, ...] = ()  # e.g. "node a-3: consumers unknown, nothing is evicted"
    cluster: str = ""

    @property
    def transfers(self) -> int:
        """How many there are to come: those that may start, and those that only wait for their turn."""
        return len(self.moves) + sum(wait.reason is WaitReason.PACING for wait in self.waits)

    def about(self, digests: Collection[str]) -> Plan:
        """The part that is about these artifacts: what else the pool does meanwhile is nobody's cost of them. Its time
        is the whole plan's, which their transfers share."""
        moves = tuple(move for move in self.moves if move.digest in digests)
        waits = tuple(wait for wait in self.waits if wait.digest in digests)
        later = sum(wait.bytes for wait in waits if wait.reason is WaitReason.PACING)
        return replace(
            self,
            moves=moves,
            waits=waits,
            evictions=tuple(one for one in self.evictions if one.room_for in digests),
            refusals=tuple(one for one in self.refusals if one.digest in digests),
            desired={
                uid: tuple(line for line in lines if line.digest in digests) for uid, lines in self.desired.items()
            },
            total_bytes=sum(move.bytes for move in moves) + later,
        )


@dataclass(frozen=True, slots=True)
class ForecastEntry:
    """One entry in the order in which it would go; ``protected_by`` is None for what may go now."""

    rank: int
    digest: str
    artifact: str
    bytes: int
    reason: EvictReason
    detail: str
    last_used_at: datetime | None
    protected_by: Protection | None


@dataclass(frozen=True, slots=True)
class Check:
    """One link of the why-not-warm chain, in the order in which the planner asks."""

    check: str
    passed: bool | None  # None: not reached, or unknown
    detail: str
