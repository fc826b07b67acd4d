"""From what holders say of an image on a node to the state of its entry. Pure.

Holders are proof of presence. Their absence proves nothing about the bytes: those are the node's own affair, and the
only word on them is the list that the node itself keeps.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from caches.domain.states import is_permanent
from controlplane.clusters.documents import EntryState

RETRY_AFTER = timedelta(minutes=5)  # a kubelet backs off for as long as that, and goes on by itself
STILL_THERE = "Nothing holds it any more; its node removes it when its disk needs the room."
NOT_KNOWN = "Nothing holds it any more; the node's list is too long to tell whether it is still there."
NOT_YET = "Its holder is not there yet."
TAKEN = "Its node no longer lists it, although it is held: somebody removed it there. It is pulled again."


class Held(Protocol):
    """What a holder says of its image on its node (controlplane.clusters.gateway.ImagePresence)."""

    @property
    def ready(self) -> bool | None: ...
    @property
    def reason(self) -> str: ...
    @property
    def message(self) -> str: ...
    @property
    def leaving(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class ImageState:
    state: EntryState
    reason: str = ""
    message: str = ""

    @property
    def retries(self) -> bool:
        """Whether the node tries again by itself with a chance that it works."""
        return self.state is EntryState.FAILED and not is_permanent(self.reason)


def held_state(seen: Held | None) -> ImageState:
    """The state where the image is wanted."""
    if seen is None or seen.leaving:
        return ImageState(EntryState.QUEUED, message=NOT_YET)
    if seen.ready:
        return ImageState(EntryState.READY)
    if seen.ready is None:
        return ImageState(EntryState.QUEUED, message=seen.message)
    if seen.reason:
        return ImageState(EntryState.FAILED, seen.reason, seen.message)
    return ImageState(EntryState.DOWNLOADING, message=seen.message)


def let_go_state(old: EntryState, seen: Held | None, listed: bool | None) -> ImageState | None:
    """The state where the image is not wanted; None: nothing new. ``listed``: whether its node says that it has it,
    None where its list does not tell all."""
    if seen is not None and not seen.leaving:
        return None  # the holder was not told yet
    if seen is not None:
        return ImageState(EntryState.EVICTING, message=seen.message) if old is not EntryState.ABSENT else None
    if old is EntryState.ABSENT:
        return None
    if listed:
        return ImageState(EntryState.EVICTING, message=STILL_THERE)
    return ImageState(EntryState.ABSENT, message="" if listed is False else NOT_KNOWN)
