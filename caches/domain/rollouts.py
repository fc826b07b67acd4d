"""Moving an endpoint to a version: prepare, warm, gate, switch, hold, release. One pure step at a time.

    Preparing ──► (WaitingForRoom) ──► Warming ──► Switching ──► Holding ──► Done
    any but the last ones ──► Failed | Superseded;   Holding ──► RolledBack

A step looks at facts and names the next state. Whoever stores it does so only while the state is still the one that the
step looked at, so that a repeated or late step changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from caches.domain.gating import Gate, GateState
from caches.domain.text import second_text


class RolloutState(StrEnum):
    PREPARING = "Preparing"
    WAITING_FOR_ROOM = "WaitingForRoom"
    WARMING = "Warming"
    SWITCHING = "Switching"
    HOLDING = "Holding"
    DONE = "Done"
    FAILED = "Failed"
    SUPERSEDED = "Superseded"
    ROLLED_BACK = "RolledBack"


FINAL = frozenset({RolloutState.DONE, RolloutState.FAILED, RolloutState.SUPERSEDED, RolloutState.ROLLED_BACK})
SERVED = frozenset({RolloutState.HOLDING, RolloutState.DONE, RolloutState.ROLLED_BACK})  # all its pods, for a while
BEFORE_SWITCH = frozenset({RolloutState.PREPARING, RolloutState.WAITING_FOR_ROOM, RolloutState.WARMING})
_ALLOWED = {
    RolloutState.PREPARING: {RolloutState.WAITING_FOR_ROOM, RolloutState.WARMING, RolloutState.SWITCHING},
    RolloutState.WAITING_FOR_ROOM: {RolloutState.WARMING, RolloutState.SWITCHING},
    RolloutState.WARMING: {RolloutState.SWITCHING, RolloutState.WAITING_FOR_ROOM},
    RolloutState.SWITCHING: {RolloutState.HOLDING, RolloutState.DONE},
    RolloutState.HOLDING: {RolloutState.DONE, RolloutState.ROLLED_BACK},
}


def may_follow(old: RolloutState, new: RolloutState) -> bool:
    """Whether a rollout may go from one state to another; nothing follows a final one."""
    if old in FINAL:
        return False
    if new in (RolloutState.FAILED, RolloutState.SUPERSEDED):
        return True
    return new in _ALLOWED[old]


@dataclass(frozen=True, slots=True)
class VersionFacts:
    """The registration of the version. ``known`` False: it goes on, or ``refused`` says why it cannot be served until
    somebody did something about it."""

    known: bool
    refused: str = ""


@dataclass(frozen=True, slots=True)
class WorkloadFacts:
    """The Deployment as its controller reports it; ``current``: it speaks about the template that was applied last.
    ``waits`` says which pod does not run what it should and why, in one sentence, ``wait_reason`` in a word."""

    current: bool
    wanted: int = 0
    updated: int = 0
    available: int = 0
    total: int = 0  # old pods too
    failed: str = ""  # it made no progress within its time
    wait_reason: str = ""
    waits: str = ""

    @property
    def is_complete(self) -> bool:
        """Every replica is new and serves, and no old one is left."""
        return self.current and self.wanted == self.updated == self.total and self.available >= self.wanted


@dataclass(frozen=True, slots=True)
class Kept:
    """What of the version before is pinned for the way back: nothing else of it is kept."""

    weights: bool = False
    image: bool = False

    def __bool__(self) -> bool:
        return self.weights or self.image

    @property
    def words(self) -> str:
        """As a part of a sentence."""
        named = [name for name, there in (("the weights", self.weights), ("the image", self.image)) if there]
        return " and ".join(named) or "nothing"


@dataclass(frozen=True, slots=True)
class RolloutFacts:
    """Everything a step looks at. ``gate`` None: there is nothing to wait for (no cache, or no node that has one).

    ``no_room`` are the planner's numbers where the new version does not fit; ``released``: a person opened the gate.
    """

    state: RolloutState
    version: VersionFacts
    now: datetime
    no_room: str = ""
    gate: Gate | None = None
    released: bool = False
    workload: WorkloadFacts | None = None
    has_predecessor: bool = False
    hold_seconds: int = 0
    held_until: datetime | None = None
    kept: Kept = Kept()
    superseded: bool = False
    naming: bool = False  # the image's digest is being asked for, which takes a moment


@dataclass(frozen=True, slots=True)
class Step:
    """The state to be in now, and why, for pages and conditions. ``held_until`` is set when Holding begins."""

    state: RolloutState
    reason: str
    message: str
    held_until: datetime | None = None


def advance(facts: RolloutFacts) -> Step:
    """The next step; the same state with a fresh message where nothing moves. One transition at a time."""
    state = facts.state
    if state in FINAL:
        work = facts.workload
        if state is RolloutState.DONE and work is not None and work.current:
            return Step(state, "Complete", _served(work))  # the replicas may have changed since
        return Step(state, str(state), "")
    if facts.superseded and state is not RolloutState.HOLDING:
        return Step(RolloutState.SUPERSEDED, "NewerSpec", "The endpoint's document asks for another version now.")
    if state in BEFORE_SWITCH:
        return _before_switch(facts)
    if state is RolloutState.SWITCHING:
        return _switching(facts)
    return _holding(facts)


def _before_switch(facts: RolloutFacts) -> Step:
    if facts.version.refused:
        return Step(facts.state, "VersionRefused", facts.version.refused)
    if not facts.version.known:
        return Step(facts.state, "Registering", "The version is being registered.")
    if facts.released:
        return _opened(facts, "Released", "A person opened the gate.")
    if facts.no_room:
        return _moved(facts, RolloutState.WAITING_FOR_ROOM, "InsufficientCapacity", facts.no_room)
    if facts.gate is None:
        return _opened(facts, "NothingToWaitFor", "No node has a cache that could be warmed for it.")
    if facts.gate.state is GateState.OPEN:
        return _opened(facts, "GateOpen", _sentence(facts.gate.reason))
    reason = "GateFailed" if facts.gate.state is GateState.FAILED else "Warming"
    return _moved(facts, RolloutState.WARMING, reason, _sentence(facts.gate.reason))


def _opened(facts: RolloutFacts, reason: str, message: str) -> Step:
    if facts.naming:
        # Otherwise pods would start by the tag and be made again by the digest a moment later.
        return Step(facts.state, "ResolvingImage", "The registry is asked for the digest of the image.")
    return _moved(facts, RolloutState.SWITCHING, reason, message)


def _moved(facts: RolloutFacts, state: RolloutState, reason: str, message: str) -> Step:
    assert state is facts.state or may_follow(facts.state, state)
    return Step(state, reason, message)


def _switching(facts: RolloutFacts) -> Step:
    work = facts.workload
    if work is None or not work.current:
        return Step(facts.state, "Applying", "The Deployment is being written.")
    if work.failed:
        return Step(RolloutState.FAILED, "DeploymentFailed", _with_waits(work.failed, work))
    if not work.is_complete:
        made = f"{work.updated} of {work.wanted} new replicas made"
        former = max(work.total - work.updated, 0)
        left = f", {former} of the former left" if former else ""
        told = f"{made}{left}; {work.available} of all {work.total} serve."
        return Step(facts.state, work.wait_reason or "RollingOut", _with_waits(told, work))
    if facts.has_predecessor and facts.hold_seconds > 0:
        until = facts.now + timedelta(seconds=facts.hold_seconds)
        return Step(RolloutState.HOLDING, "Held", held_message(until, facts.kept), until)
    return Step(RolloutState.DONE, "Complete", _served(work))


def _with_waits(told: str, work: WorkloadFacts) -> str:
    return f"{_sentence(told)} {work.waits}" if work.waits else told


def _served(work: WorkloadFacts) -> str:
    if work.available < work.wanted:
        # It came to its end once; what became of its pods since is said of them.
        return f"{work.updated} of {work.wanted} new replicas made; {work.available} serve now."
    return f"{work.available} of {work.wanted} replicas serve."


def _holding(facts: RolloutFacts) -> Step:
    if facts.held_until is None or facts.now >= facts.held_until or facts.released:
        return Step(RolloutState.DONE, "Complete", "The hold of the version before ended.")
    return Step(facts.state, "Held", held_message(facts.held_until, facts.kept), facts.held_until)


def held_message(until: datetime, kept: Kept) -> str:
    """What is said while the version before is held."""
    if not kept:
        return f"Nothing of the version before is kept: none of it is pinned. The hold ends at {second_text(until)}."
    words = kept.words[:1].upper() + kept.words[1:]
    verb = "is" if kept == Kept(image=True) else "are"
    return f"{words} of the version before {verb} kept until {second_text(until)}."


def hold_ended_message(by: str, at: datetime) -> str:
    """What is said from when a person ended the hold until what was held goes."""
    return f"{by} ended the hold at {second_text(at)}: the version before is kept no longer."


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")
