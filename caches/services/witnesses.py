"""The witness: what the first node computed over an artifact's bytes, compared with every later node's."""

from __future__ import annotations

from caches.models import Artifact
from controlplane.clusters.documents import EntryState, EntryStatus, Reason

LONGEST = 80  # what a row holds; nothing longer is a witness of ours


def witness_check(*, artifact: Artifact, entry: EntryStatus) -> tuple[EntryState, str, str]:
    """State, reason and message to store. A Ready entry with another witness is stored as Failed and verified again.

    The agent checks by itself once its desired line carries the witness; this closes the gap before that.
    """
    if entry.state != EntryState.READY or not 0 < len(entry.witness) <= LONGEST:
        return entry.state, entry.reason, entry.message
    if not artifact.witness:
        Artifact.objects.filter(pk=artifact.pk, witness="").update(witness=entry.witness)
        artifact.refresh_from_db(fields=["witness"])
    if artifact.witness == entry.witness:
        return entry.state, entry.reason, entry.message
    message = f"Its bytes are not those of the other nodes: witness {entry.witness}, expected {artifact.witness}."
    return EntryState.FAILED, Reason.INTEGRITY_MISMATCH, message
