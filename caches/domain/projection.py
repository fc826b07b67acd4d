"""From the board to the plan: the lines of every node, the evictions, and what they cost in bytes and time."""

from __future__ import annotations

from caches.domain.admission import KEPT
from caches.domain.board import Board
from caches.domain.capacity import Ledger, Line
from caches.domain.estimates import Transfer
from caches.domain.plans import DesiredItem, Eviction, Move, MoveReason, Plan, WaitReason
from caches.domain.states import is_in_flight, is_present
from controlplane.clusters.documents import Action, EntryState

_RUNNING = (MoveReason.IN_FLIGHT, MoveReason.REPAIR)


def keep_the_rest(board: Board) -> None:
    """What exists, is known and does not go stays, although no pin wants it."""
    last = len(board.pins)
    for ledger in board.ledgers:
        for digest, entry in ledger.entries.items():
            if digest in ledger.lines or digest in ledger.going or digest not in board.view.artifacts:
                continue
            left = max(0, entry.size_bytes - entry.bytes_on_disk)
            if entry.state is EntryState.READY:
                ledger.lines[digest] = Line(KEPT, "", last)
            elif is_present(entry.state):
                ledger.lines[digest] = Line(MoveReason.REPAIR, "", last)
                board.move(ledger, digest, left, MoveReason.REPAIR, None, last)
            elif is_in_flight(entry.state) and digest not in ledger.withdrawn:
                ledger.lines[digest] = Line(MoveReason.IN_FLIGHT, "", last)
                board.move(ledger, digest, left, MoveReason.IN_FLIGHT, None, last)


def _lines(ledger: Ledger) -> tuple[DesiredItem, ...]:
    """Evict lines first, then Ensure lines, the most valuable first."""
    items: list[DesiredItem] = []
    for digest in sorted(ledger.going):
        items.append(DesiredItem(digest, Action.EVICT, len(items), ledger.going[digest].reason.value))
    for digest, line in sorted(ledger.lines.items(), key=lambda item: (item[1].rank, item[0])):
        items.append(DesiredItem(digest, Action.ENSURE, len(items), str(line.reason), line.pin_id))
    return tuple(items)


def _evictions(board: Board, ledger: Ledger) -> list[Eviction]:
    made = []
    for digest, going in sorted(ledger.going.items()):
        entry = ledger.entries.get(digest)
        facts = board.view.artifacts[digest]
        made.append(
            Eviction(
                node=ledger.node.name,
                node_uid=ledger.node.uid,
                digest=digest,
                artifact=facts.name,
                bytes=entry.bytes_on_disk if entry is not None else ledger.node.partials.get(digest, 0),
                reason=going.reason,
                detail=going.detail,
                last_used_at=entry.last_used_at if entry is not None else None,
                restore_seconds=board.estimator.seconds(facts.connection, facts.size_bytes),
                room_for=going.room_for,
            )
        )
    return made


def to_plan(board: Board) -> Plan:
    """The finished plan. Moves come in the order of value, then by node name."""
    desired = {ledger.node.uid: _lines(ledger) for ledger in board.ledgers}
    order = {(uid, item.digest): item.order for uid, lines in desired.items() for item in lines}
    ranked = sorted(board.moves, key=lambda item: (item[0], item[1].node, item[1].node_uid, item[1].digest))
    moves = tuple(_ordered(move, order[(move.node_uid, move.digest)]) for _, move in ranked)
    waits = tuple(board.waits.values())
    later = [wait for wait in waits if wait.reason is WaitReason.PACING]
    transfers = [Transfer(move.node_uid, move.source, move.bytes, move.reason in _RUNNING) for move in moves]
    transfers += [Transfer(wait.node_uid, board.view.artifacts[wait.digest].connection, wait.bytes) for wait in later]
    seconds = board.estimator.makespan(transfers)
    return Plan(
        cluster=board.view.cluster,
        pool=board.view.pool,
        moves=moves,
        evictions=tuple(item for ledger in board.ledgers for item in _evictions(board, ledger)),
        refusals=tuple(board.refusals.values()),
        waits=waits,
        desired=desired,
        total_bytes=sum(transfer.bytes for transfer in transfers),
        estimated_seconds=seconds,
        estimate_basis=board.estimator.basis(transfer.connection for transfer in transfers)
        if seconds is not None
        else 0,
        notes=tuple(board.notes),
    )


def _ordered(move: Move, order: int) -> Move:
    return Move(
        move.node,
        move.node_uid,
        move.digest,
        move.artifact,
        move.bytes,
        move.source,
        move.estimated_seconds,
        order,
        move.reason,
        move.pin_id,
        move.after_evictions,
        move.priority,
    )
