"""Every state's look: a tone (colour and tint), an icon and a sentence. Unknown is hatched and never green."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Tone(StrEnum):
    OK = "ok"
    BUSY = "busy"
    WARN = "warn"
    BAD = "bad"
    IDLE = "idle"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Look:
    tone: Tone
    icon: str  # a symbol in static/img/icons.svg
    meaning: str


_OK, _BUSY, _WARN, _BAD, _IDLE, _UNKNOWN = Tone.OK, Tone.BUSY, Tone.WARN, Tone.BAD, Tone.IDLE, Tone.UNKNOWN

LOOKS = {
    # entries
    "Ready": Look(_OK, "check", "Complete, verified and usable."),
    "Downloading": Look(_BUSY, "down", "Bytes are arriving."),
    "Verifying": Look(_BUSY, "shield", "All bytes are there and are being checked."),
    "Repairing": Look(_WARN, "wrench", "A damaged file is being fetched again; not usable until done."),
    "Queued": Look(_IDLE, "clock", "Wanted; waits for its turn."),
    "Absent": Look(_IDLE, "dash", "Not on this node."),
    "Evicting": Look(_BUSY, "trash", "Being removed."),
    "Failed": Look(_BAD, "cross", "The last attempt ended with an error."),
    "Lost": Look(_IDLE, "gone", "The machine that held it is gone."),
    "Unknown": Look(_UNKNOWN, "question", "Nobody has reported for too long: it may or may not be true any more."),
    # nodes
    "NotReady": Look(_BAD, "cross", "The cluster says that it is not ready."),
    "Terminating": Look(_WARN, "gone", "Its end was announced: a node fetches no more, a pod gets no new request."),
    "Cordoned": Look(_WARN, "pause", "No new work is scheduled on the node."),
    # operations and their targets
    "Pending": Look(_IDLE, "clock", "Waits to start."),
    "Running": Look(_BUSY, "spinner", "Is being worked on."),
    "Canceling": Look(_WARN, "pause", "Asked to stop; not acknowledged yet."),
    "Succeeded": Look(_OK, "check", "Done."),
    "Canceled": Look(_IDLE, "stop", "Stopped on request."),
    "Skipped": Look(_IDLE, "dash", "Went away or was no longer wanted."),
    # versions and their drift
    "Resolving": Look(_BUSY, "spinner", "The source is being asked what it holds."),
    "Available": Look(_OK, "check", "Resolved; can be pinned."),
    "Refused": Look(_BAD, "cross", "Cannot be used; the reason is given."),
    "Matches": Look(_OK, "check", "The source still has exactly this."),
    "Moved": Look(_WARN, "alert", "The tag names another image now; this one stays what it was."),
    "Fixed": Look(_OK, "lock", "Named by its digest: it always means the same bytes."),
    "Drifted": Look(_WARN, "alert", "The source changed under the same address."),
    "Unchecked": Look(_UNKNOWN, "question", "Not compared yet."),
    "Unreachable": Look(_BAD, "cross", "It did not answer."),
    # connections, tokens, pins
    "Reachable": Look(_OK, "check", "It answered when it was asked last."),
    "AccessDenied": Look(_BAD, "lock", "The store refused these credentials."),
    "Active": Look(_OK, "check", "In force."),
    "Suspended": Look(_IDLE, "pause", "Nothing new is fetched; what is there stays."),
    "Expired": Look(_IDLE, "clock", "Its time is over."),
    "Revoked": Look(_IDLE, "stop", "Withdrawn."),
    "Warm": Look(_OK, "check", "Every wanted copy is ready."),
    "Warming": Look(_BUSY, "down", "Copies are on their way."),
    "Degraded": Look(_BAD, "alert", "Copies failed or are missing with nothing on the way."),
    "Partial": Look(_WARN, "alert", "Some wanted copies are missing."),
    "Empty": Look(_IDLE, "dash", "Nothing is wanted here."),
    "Removed": Look(_IDLE, "stop", "The pin was removed."),
    "Deleting": Look(_WARN, "trash", "Its nodes are being emptied; it takes no pins."),
    # endpoints and rollouts
    "DeploymentPending": Look(_IDLE, "clock", "Nothing serves yet."),
    "DeploymentInProgress": Look(_BUSY, "spinner", "It is on its way to what its document asks for."),
    "DeploymentComplete": Look(_OK, "check", "It serves what its document asks for."),
    "DeploymentFailed": Look(_BAD, "cross", "It cannot serve what its document asks for; the conditions say why."),
    "DeletionInProgress": Look(_BUSY, "trash", "What was made for it is being removed."),
    "Gone": Look(_WARN, "gone", "The cluster no longer has it."),
    "Preparing": Look(_IDLE, "clock", "Its version is being registered."),
    "WaitingForRoom": Look(_WARN, "pause", "There is no room beside what serves."),
    "Switching": Look(_BUSY, "spinner", "New pods take over."),
    "Holding": Look(_OK, "clock", "It serves; what is pinned of the version before is kept for the way back."),
    "Done": Look(_OK, "check", "It serves, or served until the next one."),
    "Superseded": Look(_IDLE, "stop", "Another version was asked for meanwhile."),
    "RolledBack": Look(_WARN, "stop", "The version before was asked for again."),
    # what the loop did
    "Repaired": Look(_WARN, "wrench", "Another hand had changed it in the cluster, and Hearth put it back."),
    "Deleted": Look(_IDLE, "trash", "It is gone."),
    # previews
    "Fits": Look(_OK, "check", "There is room."),
    "Evicts": Look(_WARN, "trash", "Room must be made first."),
    "CannotFit": Look(_BAD, "cross", "There is no room and none can be made."),
    "Waits": Look(_IDLE, "clock", "Would start later."),
    "Kept": Look(_OK, "check", "Already there."),
}
_NONE = Look(_IDLE, "dash", "")


def look_of(state: str) -> Look:
    """The look of a state's name; a name that is not known looks idle, never fine."""
    return LOOKS.get(state, _NONE)


def words_of(state: str) -> str:
    """ "NotReady" → "Not ready": CamelCase is for machines."""
    words = "".join(f" {letter.lower()}" if letter.isupper() and n else letter for n, letter in enumerate(state))
    return words
