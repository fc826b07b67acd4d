"""What would go next on one node: what goes now, then in the order in which it would go, protected entries last."""

from __future__ import annotations

from collections.abc import Sequence

from caches.domain.board import Board
from caches.domain.capacity import Ledger
from caches.domain.eviction import lru_key
from caches.domain.plans import EvictReason, ForecastEntry, Protection
from caches.domain.pool_view import EntryView
from caches.domain.states import is_present
from caches.domain.text import time_text
from controlplane.clusters.documents import EntryState

# Those that end by themselves soonest come first among the protected.
_LAST: Sequence[Protection] = (
    Protection.GRACE,
    Protection.PINNED,
    Protection.HELD,
    Protection.IN_USE,
    Protection.REFERENCES_UNKNOWN,
    Protection.NODE_NOT_READY,
)


def forecast_ledger(board: Board, ledger: Ledger) -> tuple[ForecastEntry, ...]:
    """The forecast from a board on which everything is decided."""
    rows: list[tuple[tuple[object, ...], EntryView, EvictReason, str, Protection | None]] = []
    for digest, entry in ledger.entries.items():
        if digest not in board.view.artifacts or entry.state in (EntryState.ABSENT, EntryState.LOST):
            continue
        going = ledger.going.get(digest)
        if going is not None:
            first = 0 if going.reason is EvictReason.MANUAL else 1
            rows.append(((first, 0, *lru_key(entry)), entry, going.reason, going.detail, None))
            continue
        protection = board.guard.protection(ledger, entry)
        if protection is None and digest in ledger.lines and ledger.lines[digest].pin_id:
            protection = Protection.PINNED
        reason = EvictReason.PRIORITY if protection is Protection.PINNED else EvictReason.LRU
        if protection is None and not is_present(entry.state):
            reason = EvictReason.UNFINISHED
        rank = (2, 0) if protection is None else (3 + _LAST.index(protection), _priority(ledger, digest))
        rows.append(((*rank, *lru_key(entry)), entry, reason, _detail(board, ledger, entry, protection), protection))
    rows.sort(key=lambda row: row[0])
    return tuple(
        ForecastEntry(
            rank=number,
            digest=entry.digest,
            artifact=board.name(entry.digest),
            bytes=entry.bytes_on_disk,
            reason=reason,
            detail=detail,
            last_used_at=entry.last_used_at,
            protected_by=protection,
        )
        for number, (_, entry, reason, detail, protection) in enumerate(rows, start=1)
    )


def _priority(ledger: Ledger, digest: str) -> int:
    claim = ledger.claims.get(digest)
    return claim.pin.priority if claim is not None else 0


def _detail(board: Board, ledger: Ledger, entry: EntryView, protection: Protection | None) -> str:
    if protection is Protection.PINNED:
        claim = ledger.claims.get(entry.digest)
        priority = f" with priority {claim.pin.priority}" if claim is not None else ""
        return f"pinned{priority}; only a pin of higher priority can displace it, and only where nothing else suffices"
    if protection is Protection.HELD:
        hold = board.guard.hold(ledger, entry.digest)
        until = f" until {time_text(hold.until)}" if hold is not None and hold.until is not None else ""
        return f"held{until}: {hold.reason if hold is not None else 'hold'}"
    if protection is Protection.IN_USE:
        return "a running consumer on this node mounts it"
    if protection is Protection.REFERENCES_UNKNOWN:
        return "the node's consumers could not be listed, so nothing is evicted here"
    if protection is Protection.NODE_NOT_READY:
        return f"the node is {ledger.node.state.value}, nothing is evicted here"
    since = entry.last_used_at or entry.ready_at
    word = "last used" if entry.last_used_at is not None else "ready and never used since"
    used = f"{word} {time_text(since)}" if since is not None else "never used"
    if protection is Protection.GRACE and since is not None:
        return f"{used}; in grace until {time_text(since + board.view.policy.evict_grace)}"
    return f"no pin wants it, {used}"


def forecast_node(board: Board, node_uid: str) -> tuple[ForecastEntry, ...]:
    """Empty for a node that is not in the pool or is lost."""
    for ledger in board.ledgers:
        if ledger.node.uid == node_uid:
            return forecast_ledger(board, ledger)
    return ()
