"""The books of one node: what exists, what is still to be written, what is asked, and what stays free.

Everything is kept under ``high watermark x capacity - other - orphans``. Downloads that run count with their unwritten
remainder, admitted ones with everything they will write, evictions as if they were complete (an agent evicts first).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from caches.domain.plans import EvictReason
from caches.domain.pool_view import EntryView, NodeView, PinView, PoolPolicy
from caches.domain.states import is_in_flight, is_present
from controlplane.clusters.documents import EntryState


@dataclass(frozen=True, slots=True)
class Claim:
    """The strongest pin that wants an entry where it is. ``active``: some pin that is not suspended wants it."""

    pin: PinView
    active: bool


@dataclass(frozen=True, slots=True)
class Going:
    """An eviction of this plan; ``room_for`` is the digest that needs the room."""

    reason: EvictReason
    detail: str
    room_for: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """One Ensure line of this plan; ``rank`` is the pin's place in the order of value."""

    reason: str
    pin_id: str
    rank: int


@dataclass(slots=True)
class Ledger:
    """Mutable while one plan is made, never afterwards. ``limit`` None: the node has not told its capacity."""

    node: NodeView
    limit: int | None
    entries: dict[str, EntryView]
    written: int = 0
    reserved: int = 0
    blocked: int = -1  # lower priorities get no new room here: a stronger pin waits for it
    blocked_by: str = ""
    claims: dict[str, Claim] = field(default_factory=dict)
    going: dict[str, Going] = field(default_factory=dict)
    promised: set[str] = field(default_factory=set)  # would go for a move that still waits for its turn
    owed: int = 0  # what the promised entries hold meanwhile, less what those moves are going to write
    withdrawn: set[str] = field(default_factory=set)  # in flight, and only suspended pins want it or its node ends
    moving: set[str] = field(default_factory=set)  # holds one of the node's download slots
    lines: dict[str, Line] = field(default_factory=dict)
    amounts: dict[str, tuple[int, int]] = field(default_factory=dict)  # digest -> (written, reserved)

    @property
    def free(self) -> int:
        """Room under the watermark; negative where the node is over-committed already."""
        return (self.limit or 0) - self.written - self.reserved

    @property
    def free_now(self) -> int:
        """Room for what starts in this plan, while nothing was evicted yet for moves that wait for their turn."""
        return self.free - max(0, self.owed)

    @property
    def running(self) -> int:
        """Download slots taken, by what runs and by what this plan starts."""
        return len(self.moving)

    def book(self, digest: str, written: int, reserved: int) -> None:
        """Set what one artifact holds on this node."""
        old_written, old_reserved = self.amounts.get(digest, (0, 0))
        self.written += written - old_written
        self.reserved += reserved - old_reserved
        self.amounts[digest] = (written, reserved)

    def need(self, digest: str, size: int) -> int:
        """Bytes that a new or resumed transfer would still write; what its partial tree holds is counted already."""
        entry = self.entries.get(digest)
        there = entry.bytes_on_disk if entry is not None and entry.state is EntryState.FAILED else 0
        return max(0, size - there - self.node.partials.get(digest, 0))

    def holds(self, digest: str) -> bool:
        """A tree is there and stays."""
        entry = self.entries.get(digest)
        return entry is not None and is_present(entry.state) and digest not in self.going

    def used_on_disk(self) -> int:
        """Physical bytes on the disk once this plan's evictions are complete."""
        store = sum(entry.bytes_on_disk for digest, entry in self.entries.items() if digest not in self.going)
        return store + self.node.other_bytes + self.node.orphan_bytes


def committed(entry: EntryView) -> tuple[int, int]:
    """(written, still to be written) of an entry as it is."""
    if is_present(entry.state):
        return max(entry.size_bytes, entry.bytes_on_disk), 0
    if is_in_flight(entry.state):
        return entry.bytes_on_disk, max(0, entry.size_bytes - entry.bytes_on_disk)
    if entry.state in (EntryState.FAILED, EntryState.EVICTING):
        return entry.bytes_on_disk, 0
    return 0, 0  # Absent and Lost; a partial tree that was left behind is among the orphans


def store_limit(node: NodeView, policy: PoolPolicy) -> int | None:
    """What Hearth's entries may take on this node; it may be negative. None: capacity unknown."""
    if node.capacity_bytes is None:
        return None
    return int(policy.high_watermark * node.capacity_bytes) - node.other_bytes - node.orphan_bytes


def open_ledger(node: NodeView, policy: PoolPolicy) -> Ledger:
    """The books before the plan decides anything."""
    ledger = Ledger(node, store_limit(node, policy), {entry.digest: entry for entry in node.entries})
    for entry in node.entries:
        written, reserved = committed(entry)
        if written or reserved:
            ledger.book(entry.digest, written, reserved)
    return ledger
