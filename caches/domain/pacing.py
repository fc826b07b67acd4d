"""Taking moves and evictions out of finished plans: limits that span pools, and evictions that must wait a moment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from caches.domain.plans import DesiredItem, Move, MoveReason, Plan, Wait, WaitReason
from caches.domain.pool_view import SharedLimits
from controlplane.clusters.documents import Action

# These run already, or their agent starts them by itself: they take a place first and are never deferred.
_GO_ON = (MoveReason.IN_FLIGHT, MoveReason.REPAIR, MoveReason.RETRY)


def pace_plans(plans: Sequence[Plan], limits: SharedLimits) -> tuple[Plan, ...]:
    """The same plans with moves over a shared limit turned into waits, and evictions undone that only they needed."""
    running: Counter[str] = Counter()
    fresh: list[tuple[int, int, int]] = []
    for number, plan in enumerate(plans):
        for position, move in enumerate(plan.moves):
            if move.reason in _GO_ON:
                running[move.source] += 1
            else:
                fresh.append((-move.priority, position, number))
    total = running.total()
    deferred: list[dict[int, str]] = [{} for _ in plans]
    for _, position, number in sorted(fresh):
        source = plans[number].moves[position].source
        at_source = limits.max_downloads_by_connection.get(source)
        if at_source is not None and running[source] >= at_source:
            deferred[number][position] = (
                f"{running[source]} of {at_source} transfers from {source} are running or come first"
            )
        elif limits.max_downloads is not None and total >= limits.max_downloads:
            deferred[number][position] = (
                f"{total} of {limits.max_downloads} transfers of the cluster are running or come first"
            )
        else:
            running[source] += 1
            total += 1
    note = "Limits shared with other pools defer some transfers: the time is a lower bound."
    return tuple(
        _defer(plan, why, WaitReason.PACING, note=note) if why else plan
        for plan, why in zip(plans, deferred, strict=True)
    )


def hold_back(plan: Plan, leaving: Collection[tuple[str, str]]) -> Plan:
    """The plan without the evictions of ``leaving`` (node uid, digest): they wait, and so does what needs the room."""
    held = {(item.node_uid, item.digest) for item in plan.evictions} & set(leaving)
    if not held:
        return plan
    nodes = {uid for uid, _ in held}
    why = {
        position: "Its room is made in a moment: nobody must start any more on what goes."
        for position, move in enumerate(plan.moves)
        if move.after_evictions and move.node_uid in nodes and move.reason not in _GO_ON
    }
    return _defer(plan, why, WaitReason.EVICTION, spared=held)


def _defer(
    plan: Plan,
    why: Mapping[int, str],
    reason: WaitReason,
    *,
    spared: Collection[tuple[str, str]] = (),
    note: str = "",
) -> Plan:
    moves = [move for position, move in enumerate(plan.moves) if position not in why]
    gone = {(plan.moves[position].node_uid, plan.moves[position].digest) for position in why}
    waits = [_wait(plan.moves[position], reason, text) for position, text in sorted(why.items())]
    spared = set(spared) | {
        (item.node_uid, item.digest) for item in plan.evictions if (item.node_uid, item.room_for) in gone
    }
    desired = dict(plan.desired)
    for uid in {uid for uid, _ in gone | spared}:
        desired[uid] = _lines(uid, plan.desired[uid], gone, spared)
    order = {(uid, item.digest): item.order for uid, lines in desired.items() for item in lines}
    return replace(
        plan,
        moves=tuple(replace(move, order=order[(move.node_uid, move.digest)]) for move in moves),
        evictions=tuple(item for item in plan.evictions if (item.node_uid, item.digest) not in spared),
        waits=plan.waits + tuple(waits),
        desired=desired,
        notes=(*plan.notes, note) if note else plan.notes,
    )


def _wait(move: Move, reason: WaitReason, text: str) -> Wait:
    return Wait(move.node, move.node_uid, move.digest, move.artifact, reason, text, None, move.pin_id, move.bytes)


def _lines(
    uid: str, lines: Sequence[DesiredItem], gone: set[tuple[str, str]], spared: set[tuple[str, str]]
) -> tuple[DesiredItem, ...]:
    evict = [item for item in lines if item.action is Action.EVICT and (uid, item.digest) not in spared]
    ensure = [item for item in lines if item.action is Action.ENSURE and (uid, item.digest) not in gone]
    kept = [DesiredItem(digest, Action.ENSURE, 0, "Kept") for at, digest in sorted(spared) if at == uid]
    return tuple(replace(item, order=number) for number, item in enumerate([*evict, *ensure, *kept]))
