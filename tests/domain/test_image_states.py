"""What holders say becomes an entry's state; what nobody says becomes none."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from caches.domain.image_states import NOT_KNOWN, NOT_YET, STILL_THERE, held_state, let_go_state
from controlplane.clusters.documents import EntryState, Reason


@dataclass(frozen=True)
class Said:
    ready: bool | None = False
    reason: str = ""
    message: str = ""
    leaving: bool = False


@pytest.mark.parametrize(
    ("said", "state", "message"),
    [
        (None, EntryState.QUEUED, NOT_YET),
        (Said(message="pulls"), EntryState.DOWNLOADING, "pulls"),
        (Said(True), EntryState.READY, ""),
        (Said(None, message="older"), EntryState.QUEUED, "older"),
        (Said(False, Reason.ACCESS_DENIED, "401"), EntryState.FAILED, "401"),
        (Said(True, leaving=True), EntryState.QUEUED, NOT_YET),  # somebody took the holder away: it comes back
    ],
)
def test_it_follows_the_holder_of_what_is_wanted(said: Said | None, state: EntryState, message: str) -> None:
    found = held_state(said)

    assert (found.state, found.message) == (state, message)


@pytest.mark.parametrize(
    ("reason", "retries"),
    [
        (Reason.SOURCE_UNAVAILABLE, True),
        (Reason.INSUFFICIENT_CAPACITY, True),
        (Reason.NODE_UNAVAILABLE, True),
        (Reason.ACCESS_DENIED, False),
        (Reason.INVALID_REQUEST, False),
        (Reason.INTEGRITY_MISMATCH, False),
    ],
)
def test_it_knows_which_failures_may_pass_by_themselves(reason: Reason, retries: bool) -> None:
    assert held_state(Said(False, reason, "x")).retries is retries
    assert not held_state(Said(True)).retries


@pytest.mark.parametrize(
    ("old", "said", "listed", "state", "message"),
    [
        (EntryState.READY, Said(True), True, None, ""),  # not told yet
        (EntryState.READY, Said(False, leaving=True, message="goes"), None, EntryState.EVICTING, "goes"),
        (EntryState.READY, None, True, EntryState.EVICTING, STILL_THERE),
        (EntryState.EVICTING, None, True, EntryState.EVICTING, STILL_THERE),
        (EntryState.EVICTING, None, False, EntryState.ABSENT, ""),
        (EntryState.EVICTING, None, None, EntryState.ABSENT, NOT_KNOWN),
        (EntryState.FAILED, None, False, EntryState.ABSENT, ""),
        (EntryState.QUEUED, None, False, EntryState.ABSENT, ""),
        (EntryState.ABSENT, None, True, None, ""),  # somebody else's pull is no copy of ours
        (EntryState.ABSENT, Said(False, leaving=True), None, None, ""),
    ],
)
def test_it_says_of_what_is_let_go_only_what_its_node_says(
    old: EntryState, said: Said | None, listed: bool | None, state: EntryState | None, message: str
) -> None:
    found = let_go_state(old, said, listed)

    assert (None if found is None else found.state) == state
    assert found is None or found.message == message
