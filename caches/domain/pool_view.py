"""What the planner is told about one pool: frozen facts, gathered afresh for every decision.

Sizes are bytes, rates bytes per second, times aware UTC, fractions 0..1. ``None`` always means unknown, never zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, time, timedelta
from enum import StrEnum

from controlplane.clusters.documents import Action, ArtifactKind, EntryState, NodeState


class PlacementType(StrEnum):
    ALL = "All"
    COUNT = "Count"
    PERCENT = "Percent"


@dataclass(frozen=True, slots=True)
class Placement:
    """How many of the pool's matching nodes must hold the artifact, spread evenly over a node label when given."""

    type: PlacementType = PlacementType.ALL
    value: int = 100  # nodes for COUNT, percent (1..100, rounded up) for PERCENT
    spread_label: str = ""


@dataclass(frozen=True, slots=True)
class DailyWindow:
    """Transfers for a pin start between ``start`` and ``end`` local time; an end before the start wraps midnight."""

    start: time
    end: time
    time_zone: str


@dataclass(frozen=True, slots=True)
class ArtifactFacts:
    """What an artifact is and where its bytes come from. Of an image ``size_bytes`` is what it takes of the store's
    disk, unpacked: nothing where the nodes keep images on another one."""

    digest: str
    name: str  # "model version", for people
    kind: ArtifactKind
    size_bytes: int
    connection: str
    uri: str
    witness: str = ""
    moved_bytes: int | None = None  # what a whole transfer moves where that is not ``size_bytes``: images are packed


@dataclass(frozen=True, slots=True)
class PinView:
    """One pin as it concerns this pool. Higher priority wins; ``needed_at`` (a known launch) outranks recency."""

    id: str
    digest: str
    priority: int
    created_at: datetime
    placement: Placement = field(default_factory=Placement)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    window: DailyWindow | None = None
    needed_at: datetime | None = None
    suspended: bool = False  # nothing new is fetched, what is there stays protected
    kind: ArtifactKind = ArtifactKind.WEIGHTS


@dataclass(frozen=True, slots=True)
class HoldView:
    """Keeps an artifact where it already is (rollback hold, retention after an unpin) until a time; None: no end."""

    digest: str
    reason: str
    until: datetime | None
    node_uids: frozenset[str] | None = None  # None: every node of the pool


@dataclass(frozen=True, slots=True)
class EntryView:
    """One artifact on one node as last observed, with what is currently desired of it."""

    digest: str
    state: EntryState
    size_bytes: int
    bytes_on_disk: int
    desired: Action | None
    attempts: int = 0
    reason: str = ""
    retry_at: datetime | None = None
    ready_at: datetime | None = None
    last_used_at: datetime | None = None
    evict_requested: bool = False  # a person asked for this eviction
    verify_round: int = 0
    retry_round: int = 0
    unlabeled_at: datetime | None = None  # since when its ready-label is away for an eviction


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node incarnation. ``in_use`` None: the consumers could not be listed, so nothing may be evicted. It holds
    ANY_DIGEST where somebody uses the store without saying what of it."""

    name: str
    uid: str
    state: NodeState
    labels: Mapping[str, str]
    joined_at: datetime
    capacity_bytes: int | None
    other_bytes: int
    orphan_bytes: int
    entries: tuple[EntryView, ...]
    in_use: frozenset[str] | None
    partials: Mapping[str, int] = field(default_factory=dict)  # unfinished trees among the orphans, by digest


@dataclass(frozen=True, slots=True)
class PoolPolicy:
    """Capacity watermarks, pacing and eviction rules of a pool."""

    high_watermark: float = 0.85  # never planned over
    low_watermark: float = 0.75  # pressure eviction goes down to here
    max_downloads_per_node: int = 2
    max_downloads: int = 16  # running at once in the pool
    max_requests_per_node: int = 8
    node_bytes_per_second: int | None = None
    evict_grace: timedelta = timedelta(minutes=10)  # after the last use or, never used, after becoming ready
    settle: timedelta = timedelta(seconds=0)  # a new node is left alone for so long
    paused: bool = False


@dataclass(frozen=True, slots=True)
class Throughput:
    """Measured transfers from one source: ``samples`` 0 means that nothing was measured and no time is estimated."""

    bytes_per_second: float | None = None
    samples: int = 0


@dataclass(frozen=True, slots=True)
class PoolView:
    """Everything a plan depends on beside the time."""

    cluster: str
    pool: str
    policy: PoolPolicy
    nodes: tuple[NodeView, ...]
    pins: tuple[PinView, ...]
    artifacts: Mapping[str, ArtifactFacts]  # every digest named by a pin, hold or entry that Hearth knows
    holds: tuple[HoldView, ...] = ()
    throughput: Mapping[str, Throughput] = field(default_factory=dict)  # by connection name


@dataclass(frozen=True, slots=True)
class SharedLimits:
    """Limits that span pools: downloads running at once by connection name, and in the whole cluster."""

    max_downloads_by_connection: Mapping[str, int] = field(default_factory=dict)
    max_downloads: int | None = None
