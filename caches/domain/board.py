"""The working state of one plan: the pins in order of value, the books of every node, and what was decided so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from caches.domain.capacity import Ledger, open_ledger
from caches.domain.demand import by_value
from caches.domain.estimates import Estimator
from caches.domain.eviction import Guard
from caches.domain.plans import Move, MoveReason, Refusal, Wait, WaitReason
from caches.domain.pool_view import PinView, PoolView
from caches.domain.text import plural
from controlplane.clusters.documents import NodeState

# One artifact on one node: (node uid, digest).
Place = tuple[str, str]


@dataclass(slots=True)
class Board:
    """Mutable while ``plan`` runs and never seen by anybody else."""

    view: PoolView
    now: datetime
    pins: list[PinView]
    ledgers: list[Ledger]
    guard: Guard
    estimator: Estimator
    running: int = 0
    moves: list[tuple[int, Move]] = field(default_factory=list)
    waits: dict[Place, Wait] = field(default_factory=dict)
    refusals: dict[Place, Refusal] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def name(self, digest: str) -> str:
        """The artifact's name for people."""
        facts = self.view.artifacts.get(digest)
        return facts.name if facts is not None else digest[:19]

    def move(self, ledger: Ledger, digest: str, count: int, reason: MoveReason, pin: PinView | None, rank: int) -> None:
        """Record a transfer that runs or may start; whatever was said against it is void."""
        facts = self.view.artifacts[digest]
        count = count if facts.moved_bytes is None else facts.moved_bytes
        place = (ledger.node.uid, digest)
        self.waits.pop(place, None)
        self.refusals.pop(place, None)
        made = Move(
            node=ledger.node.name,
            node_uid=ledger.node.uid,
            digest=digest,
            artifact=facts.name,
            bytes=count,
            source=facts.connection,
            estimated_seconds=self.estimator.seconds(facts.connection, count),
            order=0,
            reason=reason,
            pin_id=pin.id if pin is not None else "",
            after_evictions=any(going.room_for == digest for going in ledger.going.values()),
            priority=pin.priority if pin is not None else 0,
        )
        self.moves.append((rank, made))

    def wait(
        self,
        ledger: Ledger,
        pin: PinView,
        reason: WaitReason,
        detail: str,
        until: datetime | None = None,
        count: int = 0,
    ) -> None:
        """Record why nothing starts here now; the strongest pin's reason stands, a refusal outranks it."""
        place = (ledger.node.uid, pin.digest)
        if place in self.refusals or place in self.waits:
            return
        node = ledger.node
        name = self.name(pin.digest)
        facts = self.view.artifacts[pin.digest]
        count = count if facts.moved_bytes is None else facts.moved_bytes
        self.waits[place] = Wait(node.name, node.uid, pin.digest, name, reason, detail, until, pin.id, count)


def open_board(view: PoolView, now: datetime) -> Board:
    """The board before any decision. Lost nodes take no part; pins whose artifact is not known are noted."""
    ledgers = [
        open_ledger(node, view.policy)
        for node in sorted(view.nodes, key=lambda node: (node.name, node.uid))
        if node.state is not NodeState.LOST
    ]
    pins = by_value(pin for pin in view.pins if pin.digest in view.artifacts)
    board = Board(view, now, pins, ledgers, Guard(view, now), Estimator(view))
    unknown = sorted(pin.id for pin in view.pins if pin.digest not in view.artifacts)
    board.notes.extend(
        f"pin {pin_id}: its artifact is not in the catalogue, nothing is planned for it" for pin_id in unknown
    )
    return board


def note_blind_nodes(board: Board) -> None:
    """Say where nothing is evicted because the planner cannot see enough."""
    texts: dict[str, list[str]] = {}
    for ledger in board.ledgers:
        node = ledger.node
        if not node.entries:
            continue
        if node.state is not NodeState.READY:
            texts.setdefault(f"the node is {node.state.value}, nothing is evicted there", []).append(node.name)
        elif node.in_use is None:
            texts.setdefault("consumers unknown, nothing is evicted", []).append(node.name)
    for text, names in texts.items():
        if len(names) <= 10:
            board.notes.extend(f"node {name}: {text}" for name in names)
        else:
            board.notes.append(f"{plural(len(names), 'node')} ({', '.join(names[:3])}, ...): {text}")
