"""How one target counts for a gate, whoever asks: a pin's Operation, an endpoint's gate, what a cache's mirror says."""

from __future__ import annotations

from caches.domain.gating import Target
from caches.models import CacheEntry
from controlplane.clusters.documents import Action, EntryState


def is_answered(entry: CacheEntry) -> bool:
    """False while the node has not yet acted on the last request to try again: its failure is an old one."""
    return entry.observed_retry_round >= entry.retry_round


def counted(name: str, entry: CacheEntry | None, *, refused: bool, unknown: bool) -> Target:
    """The target ``name``. ``refused``: the planner has no room for it; ``unknown``: nobody knows what it holds now.

    A failure that was asked to be tried again counts as one that comes, and on a silent node as unknown all the same:
    neither what it last said nor what it was asked to do is news of it.
    """
    state = EntryState(entry.state) if entry is not None else EntryState.ABSENT
    if entry is not None and state is EntryState.READY and entry.desired == Action.EVICT:
        state = EntryState.EVICTING
    if entry is not None and state is EntryState.FAILED and not is_answered(entry):
        state = EntryState.QUEUED
    there = entry is not None and entry.state == EntryState.READY
    return Target(
        node=name,
        state=state,
        reason=entry.reason if entry is not None and state is EntryState.FAILED else "",
        refused=refused and not there,
        unknown=unknown,
    )
