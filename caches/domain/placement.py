"""Which nodes a Count or Percent pin takes: those that hold or fetch the artifact first, then even over the label."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

from caches.domain.board import Board
from caches.domain.capacity import Ledger
from caches.domain.claims import targets_of
from caches.domain.demand import home_weight, required_count, spread_choose
from caches.domain.eviction import make_room
from caches.domain.pool_view import PinView, PlacementType
from caches.domain.states import is_in_flight, is_present
from caches.domain.text import plural
from controlplane.clusters.documents import Action, EntryState, NodeState

# Tiers, best first. Within one tier the label's values are filled evenly.
_MINE, _PRESENT, _COMING, _ROOM, _AWAY, _LEAVING, _WAITING, _FULL = range(8)
Ranked = tuple[tuple[object, ...], Ledger]


def choose_nodes(board: Board, pin: PinView) -> list[Ledger]:
    """The nodes on which this pin wants its artifact, given what stronger pins have taken. Stable and deterministic."""
    targets = targets_of(board, pin)
    if pin.placement.type is PlacementType.ALL:
        return targets
    count = required_count(pin.placement, len(targets))
    if pin.placement.type is PlacementType.COUNT and pin.placement.value > len(targets):
        wanted = plural(pin.placement.value, "node")
        board.notes.append(
            f"pin {pin.id}: {board.name(pin.digest)} is wanted on {wanted}, only {len(targets)} of the pool match"
        )
    tiers: dict[int, list[Ranked]] = {}
    for ledger in targets:
        tier, cost = _tier(board, pin, ledger)
        weight = home_weight(pin.digest, ledger.node.uid)
        tiers.setdefault(tier, []).append(((*cost, weight, ledger.node.uid), ledger))
    label = pin.placement.spread_label
    taken: Counter[Hashable] = Counter()
    chosen: list[Ranked] = []
    for _, ranked in sorted(tiers.items()):
        chosen += spread_choose(
            ranked,
            count - len(chosen),
            lambda item: item[1].node.labels.get(label, "") if label else "",
            lambda item: item[0],
            taken,
        )
        if len(chosen) >= count:
            break
    return [ledger for _, ledger in chosen]


def _tier(board: Board, pin: PinView, ledger: Ledger) -> tuple[int, tuple[int, ...]]:
    """(tier, cost within it)."""
    digest = pin.digest
    if digest in ledger.lines:
        return _MINE, (0,)
    entry = ledger.entries.get(digest)
    state = entry.state if entry is not None else EntryState.ABSENT
    seen = ledger.node.state in (NodeState.READY, NodeState.UNKNOWN)
    if is_present(state) or (is_in_flight(state) and digest not in ledger.withdrawn):
        if digest in ledger.going:
            return _LEAVING, (0,)
        if not seen:
            return _AWAY, (0 if is_present(state) else 1,)
        if digest in ledger.claims:
            return _MINE, (0 if is_present(state) else 1,)
        return (_PRESENT if is_present(state) else _COMING), (0,)
    if ledger.node.state is not NodeState.READY or ledger.limit is None:
        return _WAITING, (0,)
    if board.now < ledger.node.joined_at + board.view.policy.settle:
        return _WAITING, (0,)
    return _room_tier(board, pin, ledger)


def _room_tier(board: Board, pin: PinView, ledger: Ledger) -> tuple[int, tuple[int, ...]]:
    """A node that could start: one that has begun before, then one with room, then one that must evict."""
    digest = pin.digest
    entry = ledger.entries.get(digest)
    need = ledger.need(digest, board.view.artifacts[digest].size_bytes)
    if need <= ledger.free:
        cost = 0
    else:
        victims = make_room(board.guard, ledger, digest, need, pin.priority)
        if victims is None:
            return _FULL, (0,)
        cost = 2 if any(item.priority is not None for item in victims) else 1
    if ledger.blocked > pin.priority:
        cost = 3
    begun = digest in ledger.node.partials or (
        entry is not None and (entry.state is EntryState.FAILED or entry.desired is Action.ENSURE)
    )
    busy = ledger.running >= board.view.policy.max_downloads_per_node
    return _ROOM, (0 if begun else 1, cost, 1 if busy else 0)
