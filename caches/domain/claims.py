"""Before anything is admitted: which pin claims which entry where it already is, and what goes whatever comes after."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

from caches.domain.board import Board
from caches.domain.capacity import Claim, Going, Ledger, committed
from caches.domain.demand import home_weight, required_count, selects, spread_choose
from caches.domain.plans import EvictReason
from caches.domain.pool_view import PinView, PlacementType
from caches.domain.states import is_in_flight, is_moving_bytes, is_present
from caches.domain.text import size_text
from controlplane.clusters.documents import EntryState, NodeState

_SEEN = (NodeState.READY, NodeState.UNKNOWN)


def targets_of(board: Board, pin: PinView) -> list[Ledger]:
    """The nodes that the pin's selector takes, in name order."""
    if not pin.node_selector:
        return board.ledgers
    return [ledger for ledger in board.ledgers if selects(pin.node_selector, ledger.node.labels)]


def claim_entries(board: Board) -> None:
    """Let every pin claim what is there already, the strongest first; Count and Percent claim what they need."""
    for pin in board.pins:
        targets = targets_of(board, pin)
        if pin.placement.type is not PlacementType.ALL:
            targets = _claimed_holders(pin, targets)
        for ledger in targets:
            if pin.digest not in ledger.entries:
                continue
            known = ledger.claims.get(pin.digest)
            if known is None:
                ledger.claims[pin.digest] = Claim(pin, not pin.suspended)
            elif not known.active and not pin.suspended:
                ledger.claims[pin.digest] = Claim(known.pin, True)


def _claimed_holders(pin: PinView, targets: list[Ledger]) -> list[Ledger]:
    need = required_count(pin.placement, len(targets))
    chosen: list[Ledger] = []
    taken: Counter[Hashable] = Counter()
    label = pin.placement.spread_label
    groups: dict[int, list[Ledger]] = {}
    for ledger in targets:
        tier = _holding_tier(ledger, pin.digest)
        if tier is not None:
            groups.setdefault(tier, []).append(ledger)
    for _, group in sorted(groups.items()):
        chosen += spread_choose(
            group,
            need - len(chosen),
            lambda ledger: ledger.node.labels.get(label, "") if label else "",
            lambda ledger: (home_weight(pin.digest, ledger.node.uid), ledger.node.uid),
            taken,
        )
    return chosen


def _holding_tier(ledger: Ledger, digest: str) -> int | None:
    """How well this node holds the artifact: 0 best, None not at all."""
    entry = ledger.entries.get(digest)
    if entry is None or ledger.node.state not in _SEEN:
        return None
    if is_present(entry.state):
        return 0 if ledger.node.state is NodeState.READY else 1
    if is_in_flight(entry.state):
        return 2
    return 3 if entry.state is EntryState.FAILED else None


def settle_existing(board: Board) -> None:
    """Evict what goes in any case (asked by a person, unfinished, pressure) and count what runs."""
    wanted = {pin.digest for pin in board.pins}
    suspended = [pin for pin in board.pins if pin.suspended]
    for ledger in board.ledgers:
        for digest in sorted(ledger.entries):
            _settle_entry(board, ledger, digest, suspended)
        for digest in sorted(ledger.node.partials):
            if digest not in wanted and digest not in ledger.entries and digest in board.view.artifacts:
                _evict_unfinished(board, ledger, digest, ledger.node.partials[digest])
        _relieve_pressure(board, ledger)
        board.running += ledger.running


def _settle_entry(board: Board, ledger: Ledger, digest: str, suspended: list[PinView]) -> None:
    entry = ledger.entries[digest]
    state = entry.state
    claim = ledger.claims.get(digest)
    if digest not in board.view.artifacts:
        return
    if state is EntryState.EVICTING:
        go(ledger, digest, EvictReason.MANUAL if entry.evict_requested else EvictReason.LRU, "it is being removed")
        return
    if board.guard.is_image(digest) and _is_unreferenced(board, ledger, digest):
        go(ledger, digest, EvictReason.UNREFERENCED, "no pin wants it any more")
        return
    unfinished = is_in_flight(state) or state is EntryState.FAILED
    if entry.evict_requested and (is_present(state) or unfinished):
        protection = board.guard.protection(ledger, entry, manual=True)
        if protection is None:
            go(ledger, digest, EvictReason.MANUAL, "a person asked for it")
            return
        board.notes.append(
            f"node {ledger.node.name}: {board.name(digest)} was asked to go and stays, protected by {protection.value}"
        )
    withdrawn = ledger.node.state is NodeState.TERMINATING
    if unfinished and claim is None:
        if any(pin.digest == digest and _selects(pin, ledger) for pin in suspended):
            withdrawn = True
        elif _evict_unfinished(board, ledger, digest, entry.bytes_on_disk):
            return
    if is_in_flight(state) and (withdrawn or (claim is not None and not claim.active)):
        ledger.book(digest, entry.bytes_on_disk, 0)
        ledger.withdrawn.add(digest)
    elif is_moving_bytes(state):
        ledger.moving.add(digest)


def _is_unreferenced(board: Board, ledger: Ledger, digest: str) -> bool:
    """No pin may want the image here, suspended or not, and nothing holds it."""
    wanted = any(pin.digest == digest and _selects(pin, ledger) for pin in board.pins)
    return not wanted and board.guard.hard(ledger, digest) is None


def _selects(pin: PinView, ledger: Ledger) -> bool:
    return selects(pin.node_selector, ledger.node.labels)


def _evict_unfinished(board: Board, ledger: Ledger, digest: str, on_disk: int) -> bool:
    if board.guard.hard(ledger, digest) is not None:
        return False
    go(ledger, digest, EvictReason.UNFINISHED, f"no pin wants it any more, {size_text(on_disk)} of it are here")
    return True


def _relieve_pressure(board: Board, ledger: Ledger) -> None:
    """Above the high watermark, evict what nothing protects, the least recently used first, down to the low one."""
    node, policy = ledger.node, board.view.policy
    if node.capacity_bytes is None:
        return
    used = ledger.used_on_disk()
    high, low = int(policy.high_watermark * node.capacity_bytes), int(policy.low_watermark * node.capacity_bytes)
    if used <= high:
        return
    text = f"the disk holds {size_text(used)}, over the high watermark of {size_text(high)}"
    for candidate in board.guard.candidates(ledger)[0]:
        if used <= low:
            return
        if candidate.entry.digest not in ledger.going:
            go(ledger, candidate.entry.digest, EvictReason.PRESSURE, text)
            used -= candidate.entry.bytes_on_disk
    if used > high:
        board.notes.append(
            f"node {node.name}: {text}, and what is left there is protected; {size_text(used - high)} too much"
        )


def go(ledger: Ledger, digest: str, reason: EvictReason, detail: str, room_for: str = "") -> None:
    """Mark an entry as going and free what it holds."""
    ledger.going[digest] = Going(reason, detail, room_for)
    ledger.moving.discard(digest)
    ledger.book(digest, 0, 0)
    if digest not in ledger.entries:
        ledger.book(digest, -ledger.node.partials.get(digest, 0), 0)


def stay(ledger: Ledger, digest: str) -> None:
    """Undo ``go`` for an entry that is still there."""
    del ledger.going[digest]
    written, reserved = committed(ledger.entries[digest])
    ledger.book(digest, written, reserved)
    if is_moving_bytes(ledger.entries[digest].state):
        ledger.moving.add(digest)
