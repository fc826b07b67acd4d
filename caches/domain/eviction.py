"""What may go: protections, the order in which candidates go, and the smallest set that makes enough room."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from caches.domain.capacity import Ledger
from caches.domain.demand import selects
from caches.domain.plans import EvictReason, Protection
from caches.domain.pool_view import EntryView, HoldView, PinView, PoolView
from caches.domain.states import is_present
from controlplane.clusters.documents import ANY_DIGEST, Action, ArtifactKind, EntryState, NodeState

_OLDEST = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Candidate:
    """An entry that may go. ``priority`` is None where no pin wants it."""

    entry: EntryView
    bytes: int
    priority: int | None


@dataclass(slots=True)
class Guard:
    """Protections in one pool at one time, and the candidates of each node, worked out once."""

    view: PoolView
    now: datetime
    _holds: dict[str, list[HoldView]] = field(default_factory=dict)
    _pins: dict[str, list[PinView]] = field(default_factory=dict)
    _candidates: dict[str, tuple[list[Candidate], list[Candidate]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for pin in self.view.pins:
            self._pins.setdefault(pin.digest, []).append(pin)
        for hold in self.view.holds:
            if hold.until is None or hold.until > self.now:
                self._holds.setdefault(hold.digest, []).append(hold)

    def hold(self, ledger: Ledger, digest: str) -> HoldView | None:
        """The hold that keeps this artifact on this node now."""
        for hold in self._holds.get(digest, ()):
            if hold.node_uids is None or ledger.node.uid in hold.node_uids:
                return hold
        return None

    def hard(self, ledger: Ledger, digest: str, *, manual: bool = False) -> Protection | None:
        """What no plan may overrule. A person may still clear a cordoned node."""
        state = ledger.node.state
        if state is not NodeState.READY and not (manual and state is NodeState.CORDONED):
            return Protection.NODE_NOT_READY
        if self.is_image(digest):
            # Letting go of one harms nobody: what runs it keeps it.
            return Protection.HELD if self.hold(ledger, digest) else None
        if ledger.node.in_use is None:
            return Protection.REFERENCES_UNKNOWN
        if digest in ledger.node.in_use or ANY_DIGEST in ledger.node.in_use:
            return Protection.IN_USE
        return Protection.HELD if self.hold(ledger, digest) else None

    def is_image(self, digest: str) -> bool:
        """Whether it is held by its reference alone, and its bytes are the node's own affair once it is let go."""
        facts = self.view.artifacts.get(digest)
        return facts is not None and facts.kind is ArtifactKind.IMAGE

    def in_grace(self, entry: EntryView) -> bool:
        """Used, or ready and never used, too recently."""
        since = entry.last_used_at or entry.ready_at
        return since is not None and self.now < since + self.view.policy.evict_grace

    def frees_at(self, ledger: Ledger, entry: EntryView, below: int) -> datetime | None:
        """When the end of its grace and holds alone lets a move of priority ``below`` push it out; None: never, or now.

        What pods and pins will do by then is not known: it is a promise only while they stay as they are.
        """
        if not is_present(entry.state) or self.hard(ledger, entry.digest) not in (None, Protection.HELD):
            return None
        claim = ledger.claims.get(entry.digest)
        if claim is not None and claim.pin.priority >= below:
            return None
        holds = [
            hold.until
            for hold in self._holds.get(entry.digest, ())
            if hold.node_uids is None or ledger.node.uid in hold.node_uids
        ]
        ends = [until for until in holds if until is not None]
        if len(ends) < len(holds):
            return None
        since = entry.last_used_at or entry.ready_at
        if claim is None and since is not None:
            ends.append(since + self.view.policy.evict_grace)
        last = max(ends, default=None)
        return last if last is not None and last > self.now else None

    def protection(self, ledger: Ledger, entry: EntryView, *, manual: bool = False) -> Protection | None:
        """The first protection that holds, or None. A manual request outranks grace and nothing else."""
        hard = self.hard(ledger, entry.digest, manual=manual)
        if hard is not None:
            return hard
        if entry.digest in ledger.claims:
            return Protection.PINNED
        return Protection.GRACE if is_present(entry.state) and not manual and self.in_grace(entry) else None

    def candidates(self, ledger: Ledger) -> tuple[list[Candidate], list[Candidate]]:
        """(what no pin wants, in LRU order; what pins want, the least valuable first), without what is protected."""
        known = self._candidates.get(ledger.node.uid)
        if known is None:
            known = self._candidates[ledger.node.uid] = self._find(ledger)
        return known

    def _find(self, ledger: Ledger) -> tuple[list[Candidate], list[Candidate]]:
        loose: list[Candidate] = []
        pinned: list[Candidate] = []
        for entry in ledger.entries.values():
            if self.is_image(entry.digest):
                continue  # its node frees the bytes when it sees fit: nobody can count on that room
            displaceable = is_present(entry.state) or (entry.state is EntryState.FAILED and entry.bytes_on_disk > 0)
            if not displaceable or entry.digest not in self.view.artifacts or self.hard(ledger, entry.digest):
                continue
            priority = self._priority(ledger, entry)
            size = ledger.amounts.get(entry.digest, (0, 0))[0]
            if priority is not None:
                pinned.append(Candidate(entry, size, priority))
            elif is_present(entry.state) and not self.in_grace(entry):
                loose.append(Candidate(entry, size, None))
        loose.sort(key=lambda item: lru_key(item.entry))
        pinned.sort(key=lambda item: (item.priority, lru_key(item.entry)))
        return loose, pinned

    def _priority(self, ledger: Ledger, entry: EntryView) -> int | None:
        """The priority that protects an entry: its claim's, or a pin's that has enough copies elsewhere.

        Such a surplus copy is worth no more than a claimed one, so grace must not protect it better.
        """
        claim = ledger.claims.get(entry.digest)
        if claim is not None:
            return claim.pin.priority
        if not self.in_grace(entry):
            return None
        labels = ledger.node.labels
        naming = (pin for pin in self._pins.get(entry.digest, ()) if selects(pin.node_selector, labels))
        return max((pin.priority for pin in naming), default=None)

    def open_candidates(self, ledger: Ledger, below: int) -> list[Candidate]:
        """What a move of priority ``below`` could still push out, in the order in which it would."""
        loose, pinned = self.candidates(ledger)
        taken = ledger.going.keys() | ledger.promised
        found = [item for item in loose if item.entry.digest not in taken and item.entry.digest not in ledger.lines]
        for item in pinned:
            if item.priority is not None and item.priority >= below:
                break
            if item.entry.digest not in taken:
                found.append(item)
        return found


def lru_key(entry: EntryView) -> tuple[int, datetime, str]:
    """Least recently used first; one that was told to go already comes before everything else of its class."""
    told = entry.desired is Action.EVICT
    return (0 if told else 1, entry.last_used_at or entry.ready_at or _OLDEST, entry.digest)


def smallest_set(candidates: Sequence[Candidate], shortage: int) -> list[Candidate] | None:
    """The fewest candidates in their order that free ``shortage`` bytes; None where all together would not.

    Taken from the front until it suffices, then those that turned out not to be needed are given back, the most
    valuable first. So a displaced entry could never be brought back by displacing a less valuable one.
    """
    chosen: list[Candidate] = []
    freed = 0
    for candidate in candidates:
        if freed >= shortage:
            break
        chosen.append(candidate)
        freed += candidate.bytes
    if freed < shortage:
        return None
    for candidate in reversed(chosen.copy()):
        if freed - candidate.bytes >= shortage:
            chosen.remove(candidate)
            freed -= candidate.bytes
    return chosen


def make_room(guard: Guard, ledger: Ledger, digest: str, need: int, priority: int) -> list[Candidate] | None:
    """Who has to go so that ``need`` bytes fit: an empty list where they fit, None where nothing helps."""
    shortage = need - ledger.free
    if shortage <= 0:
        return []
    found = [item for item in guard.open_candidates(ledger, priority) if item.entry.digest != digest]
    return smallest_set(found, shortage)


def evict_reason(candidate: Candidate) -> EvictReason:
    """Why a candidate goes when room is needed."""
    return EvictReason.LRU if candidate.priority is None else EvictReason.PRIORITY
