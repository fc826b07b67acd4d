"""One pin on one node: keep, go on, start, wait or refuse, with the reason. Called in the order of value."""

from __future__ import annotations

from datetime import datetime

from caches.domain.board import Board
from caches.domain.capacity import Ledger, Line, committed
from caches.domain.claims import go, stay
from caches.domain.eviction import Candidate, evict_reason, make_room
from caches.domain.placement import choose_nodes
from caches.domain.plans import MoveReason, WaitReason
from caches.domain.pool_view import EntryView, PinView
from caches.domain.refusals import refuse
from caches.domain.states import is_in_flight, is_present
from caches.domain.text import plural, size_text, time_text
from caches.domain.windows import is_open, opens_at
from controlplane.clusters.documents import EntryState, NodeState

KEPT = "Kept"
Obstacle = tuple[WaitReason, str, datetime | None]


def admit_pins(board: Board) -> None:
    """Decide every pin on every node that it wants, the most valuable pin first."""
    for rank, pin in enumerate(board.pins):
        window = _window_obstacle(board, pin)
        for ledger in choose_nodes(board, pin):
            if pin.digest not in ledger.lines:
                _decide(board, pin, rank, ledger, window)


def _decide(board: Board, pin: PinView, rank: int, ledger: Ledger, window: Obstacle | None) -> None:
    digest = pin.digest
    entry = ledger.entries.get(digest)
    if entry is None:
        _admit(board, pin, rank, ledger, None, window)
        return
    state = entry.state
    if digest in ledger.going and state is not EntryState.EVICTING and not _recall(board, pin, ledger, entry):
        return
    if is_present(state):
        repairing = state is EntryState.REPAIRING
        ledger.lines[digest] = Line(MoveReason.REPAIR if repairing else KEPT, pin.id, rank)
        if repairing:
            board.move(ledger, digest, max(0, entry.size_bytes - entry.bytes_on_disk), MoveReason.REPAIR, pin, rank)
    elif is_in_flight(state):
        _continue(board, pin, rank, ledger, entry)
    else:
        _admit(board, pin, rank, ledger, entry, window)


def _continue(board: Board, pin: PinView, rank: int, ledger: Ledger, entry: EntryView) -> None:
    written, remainder = committed(entry)
    if pin.suspended:
        board.wait(ledger, pin, *_SUSPENDED, count=remainder)
        return
    if ledger.node.state is NodeState.TERMINATING:
        board.wait(ledger, pin, WaitReason.NODE_NOT_READY, _ENDING, count=remainder)
        return
    if entry.digest in ledger.withdrawn:
        ledger.withdrawn.discard(entry.digest)
        ledger.book(entry.digest, written, remainder)
        _take_slot(board, ledger, entry.digest)
    ledger.lines[entry.digest] = Line(MoveReason.IN_FLIGHT, pin.id, rank)
    board.move(ledger, entry.digest, remainder, MoveReason.IN_FLIGHT, pin, rank)


def _recall(board: Board, pin: PinView, ledger: Ledger, entry: EntryView) -> bool:
    """Keep an entry that was to go in this plan, where there is room for it after all."""
    written, reserved = committed(entry)
    victims = make_room(board.guard, ledger, entry.digest, written + reserved, pin.priority)
    if victims is None:
        refuse(board, pin, ledger, written + reserved)
        return False
    if not _fits_now(ledger, written + reserved, victims):
        board.wait(ledger, pin, WaitReason.PACING, _SPOKEN_FOR, count=written + reserved)
        return False
    _evict(board, ledger, entry.digest, victims)
    before = ledger.running
    stay(ledger, entry.digest)
    board.running += ledger.running - before
    return True


def _admit(
    board: Board, pin: PinView, rank: int, ledger: Ledger, entry: EntryView | None, window: Obstacle | None
) -> None:
    """Something that is not there: start it, or say why not."""
    digest = pin.digest
    failed = entry is not None and entry.state is EntryState.FAILED
    need = ledger.need(digest, board.view.artifacts[digest].size_bytes)
    obstacle = _obstacle(board, pin, ledger)
    if obstacle is not None:
        board.wait(ledger, pin, *obstacle, count=need)
        if failed and not pin.suspended and need <= ledger.free_now:
            _reserve(ledger, digest, need)
            ledger.lines[digest] = Line(MoveReason.RETRY, pin.id, rank)
        return
    # A retry goes on with a transfer that was started inside the window.
    if window is not None and not failed:
        board.wait(ledger, pin, *window, count=need)
        return
    victims = make_room(board.guard, ledger, digest, need, pin.priority)
    if victims is None:
        _no_room(board, pin, ledger, need)
    elif ledger.blocked > pin.priority:
        board.wait(ledger, pin, WaitReason.PACING, f"the room here is kept for {ledger.blocked_by}", count=need)
    elif failed and not _fits_now(ledger, need, victims):
        board.wait(ledger, pin, WaitReason.PACING, _SPOKEN_FOR, count=need)
    elif failed:
        _evict(board, ledger, digest, victims)
        _retry(board, pin, rank, ledger, need)
    else:
        _start(board, pin, rank, ledger, need, victims)


def _start(board: Board, pin: PinView, rank: int, ledger: Ledger, need: int, victims: list[Candidate]) -> None:
    digest = pin.digest
    busy = _no_slot(board, ledger) or ("" if _fits_now(ledger, need, victims) else _SPOKEN_FOR)
    if busy:
        # The room is spoken for, so that nothing weaker is promised it; nothing is evicted before its turn.
        board.wait(ledger, pin, WaitReason.PACING, busy, count=need)
        for victim in victims:
            ledger.promised.add(victim.entry.digest)
            ledger.owed += victim.bytes
            ledger.book(victim.entry.digest, 0, 0)
        ledger.owed -= need
        _reserve(ledger, digest, need)
        return
    _evict(board, ledger, digest, victims)
    ledger.going.pop(digest, None)
    _reserve(ledger, digest, need)
    _take_slot(board, ledger, digest)
    reason = MoveReason.NEW_NODE if ledger.node.joined_at > pin.created_at else MoveReason.PINNED
    ledger.lines[digest] = Line(reason, pin.id, rank)
    board.move(ledger, digest, need, reason, pin, rank)


def _retry(board: Board, pin: PinView, rank: int, ledger: Ledger, need: int) -> None:
    """A failed entry stays desired: its agent keeps count of the attempts and tries again at ``retry_at``."""
    entry = ledger.entries[pin.digest]
    _reserve(ledger, pin.digest, need)
    ledger.lines[pin.digest] = Line(MoveReason.RETRY, pin.id, rank)
    if entry.retry_at is not None and entry.retry_at > board.now:
        cause = f"{entry.reason or 'Failed'} after {plural(entry.attempts, 'attempt')}"
        text = f"{cause}, again at {time_text(entry.retry_at)}"
        board.wait(ledger, pin, WaitReason.RETRY_LATER, text, entry.retry_at, need)
        return
    _take_slot(board, ledger, pin.digest)
    board.move(ledger, pin.digest, need, MoveReason.RETRY, pin, rank)


def _no_room(board: Board, pin: PinView, ledger: Ledger, need: int) -> None:
    """Refuse, or wait where running transfers of lower priority hold the room: they are never stopped, but then go."""
    coming = [
        digest
        for digest, entry in ledger.entries.items()
        if is_in_flight(entry.state)
        and digest in ledger.claims
        and ledger.claims[digest].pin.priority < pin.priority
        and digest not in ledger.going
        and board.guard.hard(ledger, digest) is None
    ]
    later = sum(sum(ledger.amounts[digest]) for digest in coming if digest in ledger.amounts)
    shortage = need - ledger.free - sum(item.bytes for item in board.guard.open_candidates(ledger, pin.priority))
    if later <= 0 or shortage > later:
        refuse(board, pin, ledger, need)
        return
    names = ", ".join(sorted(board.name(digest) for digest in coming))
    text = f"{size_text(need)} fit once the running transfers of lower priority have ended and go: {names}"
    board.wait(ledger, pin, WaitReason.PACING, text, count=need)
    if pin.priority > ledger.blocked:
        ledger.blocked, ledger.blocked_by = pin.priority, board.name(pin.digest)


def _fits_now(ledger: Ledger, need: int, victims: list[Candidate]) -> bool:
    """Whether it fits without counting on evictions that are only made when another move's turn comes."""
    return need - sum(victim.bytes for victim in victims) <= ledger.free_now


def _take_slot(board: Board, ledger: Ledger, digest: str) -> None:
    ledger.moving.add(digest)
    board.running += 1


def _evict(board: Board, ledger: Ledger, room_for: str, victims: list[Candidate]) -> None:
    before = ledger.running
    for victim in victims:
        name = board.name(room_for)
        if victim.priority is None:
            detail = f"makes room for {name}; no pin wants it and it was used least recently"
        else:
            detail = f"makes room for {name}; its pin has the lower priority {victim.priority}"
        go(ledger, victim.entry.digest, evict_reason(victim), detail, room_for)
    board.running += ledger.running - before  # a repair that goes gives its slot back


def _reserve(ledger: Ledger, digest: str, need: int) -> None:
    entry = ledger.entries.get(digest)
    there = entry.bytes_on_disk if entry is not None and entry.state is EntryState.FAILED else 0
    ledger.book(digest, there, need)


def _no_slot(board: Board, ledger: Ledger) -> str:
    policy = board.view.policy
    if ledger.running >= policy.max_downloads_per_node:
        return f"{ledger.running} of {policy.max_downloads_per_node} transfers of this node are running or come first"
    if board.running >= policy.max_downloads:
        return f"{board.running} of {policy.max_downloads} transfers of the pool are running or come first"
    return ""


_SPOKEN_FOR = "the room here is spoken for by a transfer that waits for its turn"
_ENDING = "the end of the node was announced: its bytes would be lost"
_SUSPENDED: Obstacle = (WaitReason.SUSPENDED, "the pin is suspended; resume it to go on", None)


def _obstacle(board: Board, pin: PinView, ledger: Ledger) -> Obstacle | None:
    """The first thing beside window, capacity and pacing that keeps a transfer from starting here now."""
    node, policy = ledger.node, board.view.policy
    if node.state is not NodeState.READY:
        return WaitReason.NODE_NOT_READY, f"the node is {node.state.value}", None
    if pin.suspended:
        return _SUSPENDED
    if policy.paused:
        return WaitReason.PAUSED, "the pool is paused; resume it to go on", None
    settled = node.joined_at + policy.settle
    if board.now < settled:
        return WaitReason.SETTLING, f"the node joined less than {policy.settle} ago", settled
    if ledger.limit is None:
        return WaitReason.NODE_NOT_READY, "the node's agent has not told its disk's capacity yet", None
    return None


def _window_obstacle(board: Board, pin: PinView) -> Obstacle | None:
    if is_open(pin.window, board.now) or pin.window is None:
        return None
    until = opens_at(pin.window, board.now)
    if until is None:
        return WaitReason.WINDOW, f"its window's time zone {pin.window.time_zone!r} is not known", None
    window = f"{pin.window.start:%H:%M}-{pin.window.end:%H:%M} {pin.window.time_zone}"
    return WaitReason.WINDOW, f"transfers start in the window {window}, next at {time_text(until)}", until
