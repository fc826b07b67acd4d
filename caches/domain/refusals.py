"""A refusal with the numbers that add up, and what to do about it."""

from __future__ import annotations

import math
from datetime import datetime

from caches.domain.board import Board
from caches.domain.capacity import Ledger
from caches.domain.plans import Protection, Refusal
from caches.domain.pool_view import PinView
from caches.domain.text import second_text, size_text
from controlplane.clusters.documents import NodeState, Reason

_WORDS = {
    Protection.IN_USE: "in use",
    Protection.PINNED: "pinned with the same or a higher priority",
    Protection.HELD: "held",
    Protection.GRACE: "used or ready too recently",
    Protection.REFERENCES_UNKNOWN: "on a node whose consumers are unknown",
    Protection.NODE_NOT_READY: f"on a node that is not {NodeState.READY.value}",
}


def refuse(board: Board, pin: PinView, ledger: Ledger, need: int) -> None:
    """Record InsufficientCapacity: ``need > free - reserved``, and nothing that may go would close the gap."""
    place = (ledger.node.uid, pin.digest)
    if place in board.refusals:
        return
    board.waits.pop(place, None)
    free = max(0, ledger.free + ledger.reserved)
    reserved = ledger.reserved
    could_go = sum(item.bytes for item in board.guard.open_candidates(ledger, pin.priority))
    until = _until(board, pin, ledger, need - ledger.free - could_go)
    node, policy = ledger.node, board.view.policy
    capacity = node.capacity_bytes or 0
    detail = (
        f"needs {size_text(need)}; {size_text(free)} are free under the high watermark of "
        f"{policy.high_watermark:.0%} of {size_text(capacity)}, {size_text(reserved)} of them are reserved"
    )
    if could_go:
        detail += f", and evicting all that may go would free only {size_text(could_go)} more"
    next_step = _next_step(board, pin, ledger, need, free - reserved + could_go)
    if until is not None:
        detail += f"; until {second_text(until)} the eviction grace or a hold keeps what would make the room"
        next_step = f"Wait until {second_text(until)}: enough may go on {node.name} then. Or: {next_step}"
    board.refusals[place] = Refusal(
        node=node.name,
        node_uid=node.uid,
        digest=pin.digest,
        artifact=board.name(pin.digest),
        reason=Reason.INSUFFICIENT_CAPACITY.value,
        detail=detail,
        need_bytes=need,
        free_bytes=free,
        reserved_bytes=reserved,
        next_step=next_step,
        pin_id=pin.id,
        until=until,
    )


def _until(board: Board, pin: PinView, ledger: Ledger, shortage: int) -> datetime | None:
    """When waiting alone will have let enough go; None where something else is in the way as well."""
    now_open = {item.entry.digest for item in board.guard.open_candidates(ledger, pin.priority)}
    taken = now_open | ledger.going.keys() | ledger.promised | ledger.lines.keys() | {pin.digest}
    ends = [
        (end, ledger.amounts.get(digest, (0, 0))[0])
        for digest, entry in ledger.entries.items()
        if digest not in taken and (end := board.guard.frees_at(ledger, entry, pin.priority)) is not None
    ]
    for end, size in sorted(ends):
        shortage -= size
        if shortage <= 0:
            return end
    return None


def _next_step(board: Board, pin: PinView, ledger: Ledger, need: int, available: int) -> str:
    missing = size_text(need - available)
    node, policy = ledger.node, board.view.policy
    outside = node.other_bytes + node.orphan_bytes
    # The exact smallest disk, rounded up: the sentence must be true when it is followed.
    smallest = math.ceil((need + outside) / policy.high_watermark)
    if smallest > (node.capacity_bytes or 0):
        if need <= int(policy.high_watermark * (node.capacity_bytes or 0)):
            return (
                f"Free {missing} of what is not Hearth's on {node.name}: {size_text(outside)} lie outside its entries."
            )
        return f"Pin it to nodes with a disk of at least {size_text(smallest)}, or to fewer nodes."
    held: dict[Protection, int] = {}
    for digest, entry in ledger.entries.items():
        protection = board.guard.protection(ledger, entry)
        size = ledger.amounts.get(digest, (0, 0))[0]
        if protection is not None and size and digest != pin.digest and digest not in ledger.going:
            held[protection] = held.get(protection, 0) + size
    if not held:
        return f"Choose nodes with {missing} more room than {node.name}, raise this pin's priority, or unpin something."
    parts = ", ".join(
        f"{size_text(size)} {_WORDS[kind]}" for kind, size in sorted(held.items(), key=lambda item: (-item[1], item[0]))
    )
    return f"Free {missing} on {node.name} (there are {parts}), raise this pin's priority, or choose other nodes."
