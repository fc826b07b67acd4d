"""How one target counts for a gate: what was said lately, what was asked for since, and what nobody knows."""

from __future__ import annotations

from typing import Any

import pytest

from caches.domain.gating import Target
from caches.models import CacheEntry
from caches.selectors.gate_counting import counted
from controlplane.clusters.documents import EntryState

FAILED = {"state": "Failed", "reason": "AccessDenied"}


@pytest.mark.parametrize(
    ("entry", "seen", "target"),
    [
        (None, {}, Target("n1", EntryState.ABSENT)),
        (None, {"refused": True}, Target("n1", EntryState.ABSENT, refused=True)),
        ({"state": "Ready"}, {"refused": True}, Target("n1", EntryState.READY)),  # it is there: no room is needed
        ({"state": "Ready"}, {"unknown": True}, Target("n1", EntryState.READY, unknown=True)),
        ({"state": "Ready", "desired": "Evict"}, {}, Target("n1", EntryState.EVICTING)),
        (FAILED, {}, Target("n1", EntryState.FAILED, "AccessDenied")),
        (FAILED | {"retry_round": 1}, {}, Target("n1", EntryState.QUEUED)),
        (FAILED | {"retry_round": 1, "observed_retry_round": 1}, {}, Target("n1", EntryState.FAILED, "AccessDenied")),
        # A silent node that was asked to try again: neither its old failure nor the request is news of it.
        (FAILED | {"retry_round": 1}, {"unknown": True}, Target("n1", EntryState.QUEUED, unknown=True)),
        (FAILED | {"retry_round": 1}, {"refused": True}, Target("n1", EntryState.QUEUED, refused=True)),
    ],
)
def test_what_a_target_counts_as(entry: dict[str, Any] | None, seen: dict[str, bool], target: Target) -> None:
    row = CacheEntry(**entry) if entry is not None else None
    assert counted("n1", row, **{"refused": False, "unknown": False, **seen}) == target
