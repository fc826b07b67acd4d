"""A pin's gate over its targets as they were at the start: open, closed, or failed because it can no longer open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from caches.domain.states import is_permanent
from caches.domain.text import time_text
from controlplane.clusters.documents import EntryState

NAMED = 3  # nodes that a sentence names before it counts


class GateType(StrEnum):
    """All targets, a count, a percentage (rounded up), or after a number of seconds whatever happened."""

    ALL = "All"
    COUNT = "Count"
    PERCENT = "Percent"
    TIMEOUT = "Timeout"


class GateState(StrEnum):
    OPEN = "Open"
    CLOSED = "Closed"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class Target:
    """One node that the gate counts. ``reason`` is a failure's Reason; ``refused``: the planner has no room for it."""

    node: str
    state: EntryState
    reason: str = ""
    refused: bool = False
    unknown: bool = False  # not heard of lately: neither ready nor failed


@dataclass(frozen=True, slots=True)
class Gate:
    """``ready`` of ``required``; ``failed`` targets need somebody's help, ``unknown`` ones may be anything."""

    state: GateState
    reason: str
    ready: int
    required: int
    failed: int = 0
    unknown: int = 0


def gate(gate_type: GateType, value: int, targets: Sequence[Target], *, started_at: datetime, now: datetime) -> Gate:
    """Decide the gate. ``value`` is nodes for Count, percent for Percent, seconds for Timeout, ignored for All.

    Targets whose incarnation is lost no longer count: a count or percentage is taken of those that are left.
    """
    live = [target for target in targets if target.state is not EntryState.LOST]
    ready = sum(_is_ready(target) for target in live)
    failed = [target for target in live if _is_stuck(target)]
    unknown = sum(target.unknown for target in live)
    required = _required(gate_type, value, len(live))
    numbers = (ready, required, len(failed), unknown)
    if targets and not live:
        return Gate(GateState.FAILED, "every target node is gone", *numbers)
    if not targets:
        return Gate(GateState.CLOSED, "no node matches the pin", *numbers)
    if ready >= required:
        nodes = "node" if ready == 1 else "nodes"
        return Gate(GateState.OPEN, f"{ready} {nodes} ready, {required} required", *numbers)
    if gate_type is GateType.TIMEOUT:
        deadline = started_at + timedelta(seconds=value)
        if now >= deadline:
            return Gate(GateState.OPEN, f"the time is up: {ready} of {len(live)} are ready, the rest goes on", *numbers)
        said = f"{ready} of {len(live)} ready, opens at {time_text(deadline)} at the latest"
        return Gate(GateState.CLOSED, said + _troubled(live), *numbers)
    if len(live) - len(failed) < required:
        return Gate(GateState.FAILED, _cannot(required, len(live), failed), *numbers)
    return Gate(GateState.CLOSED, f"{ready} of {required} ready" + _troubled(live), *numbers)


def _troubled(live: Sequence[Target]) -> str:
    """Which of those that are not ready more than time stands in the way of; "" where nothing does."""
    said = cold_words([one for one in live if one.unknown or one.reason or one.refused])
    return f"; not yet: {said}" if said else ""


def waited_for(targets: Sequence[Target]) -> list[Target]:
    """Those that are not ready, first the ones that need somebody's help."""
    cold = [one for one in targets if not _is_ready(one)]
    return sorted(cold, key=lambda one: (not (one.reason or one.refused), one.node))


def cold_words(targets: Sequence[Target]) -> str:
    """The first NAMED of those that are not ready, each with its cause, for a sentence; "" where all are."""
    cold = waited_for(targets)
    named = ", ".join(f"{one.node} ({_cause(one)})" for one in cold[:NAMED])
    return named + (f" and {len(cold) - NAMED} more" if len(cold) > NAMED else "")


def _cause(target: Target) -> str:
    if target.unknown:
        return "not heard of"
    return "no room" if target.refused else target.reason or str(target.state)


def _required(gate_type: GateType, value: int, live: int) -> int:
    if gate_type is GateType.COUNT:
        return value
    if gate_type is GateType.PERCENT:
        return -(-live * value // 100)
    return live


def _is_ready(target: Target) -> bool:
    return target.state is EntryState.READY and not target.unknown


def _is_stuck(target: Target) -> bool:
    if target.unknown or target.state is EntryState.READY:
        return False
    return target.refused or (target.state is EntryState.FAILED and is_permanent(target.reason))


def _cannot(required: int, live: int, failed: Sequence[Target]) -> str:
    """The commonest cause with its nodes, so that the sentence can be acted on."""
    causes: dict[str, list[str]] = {}
    for target in failed:
        causes.setdefault("InsufficientCapacity" if target.refused else target.reason, []).append(target.node)
    text = f"{required} copies are required and only {live - len(failed)} of {live} can become ready"
    if causes:
        cause, nodes = max(sorted(causes.items()), key=lambda item: len(item[1]))
        more = f" and {len(nodes) - 3} more" if len(nodes) > 3 else ""
        text += f": {cause} on {', '.join(sorted(nodes)[:3])}{more}"
    return text
