"""What an entry's observed state means and which state may be observed after which.

An agent reports states, not steps, and a report may be late: between two of them an entry can take several steps. So an
observation is accepted when a path of steps leads to it. Only Lost ends a life: that incarnation never comes back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from controlplane.clusters.documents import EntryState, Reason

# One step of an agent (or of the control plane, for Lost) at a time.
STEPS: Mapping[EntryState, frozenset[EntryState]] = {
    EntryState.ABSENT: frozenset(
        {EntryState.QUEUED, EntryState.DOWNLOADING, EntryState.VERIFYING, EntryState.FAILED, EntryState.LOST}
    ),
    EntryState.QUEUED: frozenset(
        {EntryState.DOWNLOADING, EntryState.ABSENT, EntryState.EVICTING, EntryState.FAILED, EntryState.LOST}
    ),
    EntryState.DOWNLOADING: frozenset(
        {
            EntryState.VERIFYING,
            EntryState.QUEUED,
            EntryState.ABSENT,
            EntryState.EVICTING,
            EntryState.FAILED,
            EntryState.LOST,
        }
    ),
    EntryState.VERIFYING: frozenset(
        {
            EntryState.READY,
            EntryState.DOWNLOADING,
            EntryState.REPAIRING,
            EntryState.ABSENT,
            EntryState.EVICTING,
            EntryState.FAILED,
            EntryState.LOST,
        }
    ),
    EntryState.READY: frozenset(
        {EntryState.VERIFYING, EntryState.REPAIRING, EntryState.EVICTING, EntryState.ABSENT, EntryState.LOST}
    ),
    EntryState.REPAIRING: frozenset(
        {EntryState.VERIFYING, EntryState.READY, EntryState.EVICTING, EntryState.FAILED, EntryState.LOST}
    ),
    EntryState.EVICTING: frozenset({EntryState.ABSENT, EntryState.READY, EntryState.FAILED, EntryState.LOST}),
    EntryState.FAILED: frozenset(
        {
            EntryState.QUEUED,
            EntryState.DOWNLOADING,
            EntryState.REPAIRING,
            EntryState.EVICTING,
            EntryState.ABSENT,
            EntryState.LOST,
        }
    ),
    EntryState.LOST: frozenset(),
}

# What an agent says that was told of an artifact and finds no manifest of it: somebody removed it from the cluster.
NO_MANIFEST = "The manifest is not published yet."
_PRESENT = frozenset({EntryState.READY, EntryState.REPAIRING})
_IN_FLIGHT = frozenset({EntryState.QUEUED, EntryState.DOWNLOADING, EntryState.VERIFYING})
_PERMANENT = frozenset(
    {
        Reason.INVALID_REQUEST,
        Reason.ACCESS_DENIED,
        Reason.SOURCE_CHANGED,
        Reason.INTEGRITY_MISMATCH,
        Reason.CANCELED,
    }
)


def _reachable(start: EntryState) -> frozenset[EntryState]:
    seen: set[EntryState] = {start}
    todo = [start]
    while todo:
        for state in STEPS[todo.pop()] - seen:
            seen.add(state)
            todo.append(state)
    return frozenset(seen)


_REACHABLE = {state: _reachable(state) for state in EntryState}


def may_follow(old: EntryState, new: EntryState) -> bool:
    """Whether ``new`` may be observed after ``old``: it is the same state or some steps away."""
    return new in _REACHABLE[old]


def is_present(state: EntryState) -> bool:
    """A published tree is there, perhaps with damage that is being repaired."""
    return state in _PRESENT


def is_in_flight(state: EntryState) -> bool:
    """Bytes of a first copy are arriving or are about to."""
    return state in _IN_FLIGHT


def is_moving_bytes(state: EntryState) -> bool:
    """The entry holds one of the node's download slots."""
    return state in _IN_FLIGHT or state is EntryState.REPAIRING


def any_moving(states: Iterable[EntryState]) -> bool:
    """Whether bytes are on their way somewhere, or about to be."""
    return any(is_moving_bytes(state) or state is EntryState.QUEUED for state in states)


def is_permanent(reason: str) -> bool:
    """A failure that will repeat until somebody changes something. Unknown words count as transient."""
    return reason in _PERMANENT
