"""The witness: the first node's sum is every later node's measure, and nothing that is no witness ever becomes one."""

from __future__ import annotations

from typing import Any

import pytest

from caches.models import Artifact
from caches.services.witnesses import witness_check
from controlplane.clusters.documents import EntryState, EntryStatus
from tests import factories

pytestmark = pytest.mark.django_db


def status(artifact: Artifact, witness: str, state: EntryState = EntryState.READY, **fields: Any) -> EntryStatus:
    return EntryStatus(artifact.digest, state, witness=witness, **fields)


def test_the_first_one_is_kept_and_the_next_is_measured_by_it() -> None:
    artifact = factories.artifact()
    assert witness_check(artifact=artifact, entry=status(artifact, "one"))[0] is EntryState.READY
    assert Artifact.objects.get().witness == "one"
    assert witness_check(artifact=artifact, entry=status(artifact, "one"))[0] is EntryState.READY
    state, reason, message = witness_check(artifact=artifact, entry=status(artifact, "two"))
    assert (state, reason) == (EntryState.FAILED, "IntegrityMismatch")
    assert "witness two, expected one" in message
    assert Artifact.objects.get().witness == "one"


def test_of_two_nodes_at_once_one_is_first_and_the_other_is_measured() -> None:
    artifact = factories.artifact()
    stale = Artifact.objects.get()  # read before the other node's status was stored
    witness_check(artifact=artifact, entry=status(artifact, "one"))
    assert witness_check(artifact=stale, entry=status(artifact, "two"))[0] is EntryState.FAILED
    assert Artifact.objects.get().witness == "one"


@pytest.mark.parametrize("state", [state for state in EntryState if state is not EntryState.READY])
def test_only_a_ready_copy_testifies(state: EntryState) -> None:
    artifact = factories.artifact()
    given = status(artifact, "one", state, reason="Internal", message="why")
    assert witness_check(artifact=artifact, entry=given) == (state, "Internal", "why")
    assert Artifact.objects.get().witness == ""


@pytest.mark.parametrize("witness", ["", "x" * 81])
def test_what_is_no_witness_says_nothing(witness: str) -> None:
    artifact = factories.artifact()
    assert witness_check(artifact=artifact, entry=status(artifact, witness))[0] is EntryState.READY
    assert Artifact.objects.get().witness == ""
    Artifact.objects.update(witness="one")
    artifact.refresh_from_db()
    assert witness_check(artifact=artifact, entry=status(artifact, witness))[0] is EntryState.READY
