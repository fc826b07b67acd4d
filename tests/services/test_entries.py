"""What people ask of one entry: evicted, verified or tried again, in every state and at the wrong moment."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.utils import timezone

from caches.models import CacheEntry, ConsumerSeen, PoolLoop
from caches.services.entries import entry_evict, entry_evict_preview, entry_retry, entry_scrub
from controlplane.audit.models import AuditEvent
from controlplane.audit.services import Actor
from controlplane.clusters.documents import Action, EntryState
from controlplane.clusters.models import Cluster, Node, NodePool
from controlplane.errors import Clash, Missing
from controlplane.operations.models import Operation
from controlplane.operations.services import operation_cancel, operation_retry
from controlplane.operations.steps import operation_step
from tests import factories

pytestmark = pytest.mark.django_db
VERBS = (entry_evict, entry_scrub, entry_retry)


@pytest.fixture
def pool() -> NodePool:
    return factories.pool(name="gpu", of=factories.cluster(name="east"))


def loose(pool: NodePool, state: EntryState = EntryState.READY, **fields: Any) -> CacheEntry:
    """An entry of a version on a fresh node that no pin wants."""
    version = factories.version(model="llama", version="v1")
    node = factories.node(of=pool, name="n1")
    moving = {"bytes_done": 30, "bytes_moved": 30} if state != EntryState.READY else {}
    return factories.entry(on=node, of=version.artifact, state=state, **(moving | fields))


def test_it_names_the_version_in_operation_and_trail(pool: NodePool, actor: Actor) -> None:
    entry = loose(pool)
    operation = entry_evict(actor=actor, entry_id=entry.pk)
    assert operation.subject_name == "llama v1 on n1"
    assert [target.name for target in operation.targets.all()] == ["east.gpu/n1"]
    event = AuditEvent.objects.get(action="entry.evict")
    assert (event.object_name, event.object_id) == ("llama v1 on n1", str(entry.pk))
    assert (event.before, event.after) == ({"state": "Ready"}, {"evict_requested": True})
    assert entry_scrub(actor=actor, entry_id=entry.pk).subject_name == "llama v1 on n1"


def test_it_names_the_digest_where_no_version_does(pool: NodePool, actor: Actor) -> None:
    entry = factories.entry(on=factories.node(of=pool, name="n1"))
    short = entry.artifact.digest[:19]
    assert entry_evict(actor=actor, entry_id=entry.pk).subject_name == f"{short} on n1"
    assert AuditEvent.objects.get(action="entry.evict").object_name == f"{short} on n1"


def test_names_that_are_too_long_for_the_trail_are_cut(pool: NodePool, actor: Actor) -> None:
    version = factories.version(model="m" * 120, version="v" * 120)
    entry = factories.entry(on=factories.node(of=pool, name="n" * 253), of=version.artifact)
    assert len(entry_evict(actor=actor, entry_id=entry.pk).subject_name) == 300
    assert len(AuditEvent.objects.get(action="entry.evict").object_name) == 300


@pytest.mark.parametrize("verb", VERBS)
def test_an_entry_that_nobody_knows_is_missing(actor: Actor, verb: Any) -> None:
    with pytest.raises(Missing) as refused:
        verb(actor=actor, entry_id=uuid4())
    assert refused.value.code == "entry:user:not-found"


EVICTABLE = {"Queued", "Downloading", "Verifying", "Ready", "Repairing", "Failed"}


@pytest.mark.parametrize("state", list(EntryState))
def test_what_can_be_evicted(pool: NodePool, actor: Actor, state: EntryState) -> None:
    entry = loose(pool, state, reason="Internal" if state is EntryState.FAILED else "")
    if state.value in EVICTABLE | {"Evicting"}:
        assert entry_evict(actor=actor, entry_id=entry.pk).state == "Pending"
        entry.refresh_from_db()
        assert entry.evict_requested_at is not None
        return
    with pytest.raises(Clash) as refused:
        entry_evict(actor=actor, entry_id=entry.pk)
    assert refused.value.code == "entry:user:not-there" and refused.value.detail == "llama v1 is not on n1."
    entry.refresh_from_db()
    assert entry.evict_requested_at is None and not Operation.objects.exists()


@pytest.mark.parametrize("state", list(EntryState))
def test_only_what_is_ready_can_be_verified(pool: NodePool, actor: Actor, state: EntryState) -> None:
    entry = loose(pool, state)
    if state in (EntryState.READY, EntryState.REPAIRING):
        assert entry_scrub(actor=actor, entry_id=entry.pk).params["round"] == 1
        return
    with pytest.raises(Clash) as refused:
        entry_scrub(actor=actor, entry_id=entry.pk)
    assert refused.value.code == "entry:user:not-ready" and state.value in refused.value.detail
    entry.refresh_from_db()
    assert entry.verify_round == 0 and not AuditEvent.objects.exists()


@pytest.mark.parametrize("state", list(EntryState))
def test_only_what_has_failed_can_be_retried(pool: NodePool, actor: Actor, state: EntryState) -> None:
    entry = loose(pool, state, reason="SourceUnavailable")
    if state is EntryState.FAILED:
        assert entry_retry(actor=actor, entry_id=entry.pk).retry_round == 1
        event = AuditEvent.objects.get(action="entry.retry")
        assert (event.before, event.after) == ({"reason": "SourceUnavailable"}, {"retry_round": 1})
        assert PoolLoop.objects.get(pool=pool).wanted_round > 0
        return
    with pytest.raises(Clash) as refused:
        entry_retry(actor=actor, entry_id=entry.pk)
    assert refused.value.code == "entry:user:not-failed" and state.value in refused.value.detail


@pytest.mark.parametrize("verb", VERBS)
def test_a_node_without_a_pool_is_not_told_anything(actor: Actor, verb: Any) -> None:
    entry = factories.entry(state=EntryState.FAILED if verb is entry_retry else EntryState.READY)
    Node.objects.filter(pk=entry.node_id).update(pool=None)
    with pytest.raises(Clash) as refused:
        verb(actor=actor, entry_id=entry.pk)
    assert refused.value.code == "entry:user:no-pool"
    entry.refresh_from_db()
    assert (entry.evict_requested_at, entry.verify_round, entry.retry_round) == (None, 0, 0)


@pytest.mark.parametrize(
    ("protection", "step"),
    [
        ("Pinned", "Remove or change the pin"),
        ("Held", "Wait until the hold ends"),
        ("InUse", "Stop its consumers"),
        ("ReferencesUnknown", "until the cluster answers"),
        ("NodeNotReady", "until the node is Ready"),
    ],
)
def test_what_is_protected_stays_and_says_why(pool: NodePool, actor: Actor, protection: str, step: str) -> None:
    entry = loose(pool)
    if protection == "Pinned":
        factories.pin(of=entry.artifact.versions.get(), pools=(pool,))
    elif protection == "Held":
        until = timezone.now() + timedelta(hours=1)
        CacheEntry.objects.update(hold_reason="Retention", hold_until=until)
    elif protection == "InUse":
        ConsumerSeen.objects.create(
            node=entry.node, uid="c", name="engine", digests=[entry.artifact.digest], observed_at=timezone.now()
        )
    elif protection == "ReferencesUnknown":
        Cluster.objects.update(observed_at=timezone.now() - timedelta(hours=1))
    else:
        Node.objects.update(ready=False)
    with pytest.raises(Clash) as refused:
        entry_evict(actor=actor, entry_id=entry.pk)
    assert refused.value.code == "entry:user:protected"
    assert (
        refused.value.detail.startswith("llama v1 on n1 is not evicted: ") and f"({protection})" in refused.value.detail
    )
    assert step in refused.value.next_step
    assert not Operation.objects.exists() and not AuditEvent.objects.exists()


def test_a_hold_that_is_over_protects_nothing(pool: NodePool, actor: Actor) -> None:
    entry = loose(pool, hold_reason="Retention", hold_until=timezone.now() - timedelta(seconds=1))
    assert entry_evict(actor=actor, entry_id=entry.pk).state == "Pending"


def test_a_person_may_clear_a_cordoned_node_and_outranks_grace(actor: Actor) -> None:
    pool = factories.pool(evict_grace_seconds=3600)
    entry = loose(pool, last_used_at=timezone.now())
    Node.objects.update(schedulable=False)
    assert [e.reason for e in entry_evict_preview(entry_id=entry.pk).evictions] == ["Manual"]
    assert entry_evict(actor=actor, entry_id=entry.pk).state == "Pending"


def test_asking_twice_follows_the_same_operation(pool: NodePool, actor: Actor) -> None:
    entry = loose(pool)
    first = entry_evict(actor=actor, entry_id=entry.pk)
    second = replace(actor, name="grace", request_id="req-2")
    assert entry_evict(actor=second, entry_id=entry.pk).pk == first.pk
    assert AuditEvent.objects.filter(action="entry.evict").count() == 1
    joined = AuditEvent.objects.get(request_id="req-2")  # whoever asked is in the trail, with what they were answered
    assert (joined.action, joined.actor, joined.operation_id) == ("entry.evict-joined", "grace", first.pk)
    assert joined.before == joined.after == {"evict_requested": True}
    Operation.objects.all().delete()  # what was purged, or lost with a restored database
    with pytest.raises(Clash) as refused:
        entry_evict(actor=actor, entry_id=entry.pk)
    assert refused.value.code == "entry:user:already-going"


def test_files_that_went_while_somebody_asked_are_not_called_already_asked_for(
    pool: NodePool, actor: Actor, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = loose(pool)

    def gone(**given: Any) -> Any:
        plan = entry_evict_preview(**given)
        CacheEntry.objects.update(state=EntryState.ABSENT)
        return plan

    monkeypatch.setattr("caches.services.entries.entry_evict_preview", gone)
    with pytest.raises(Clash) as refused:
        entry_evict(actor=actor, entry_id=entry.pk)
    assert refused.value.code == "entry:user:not-there"


def test_each_verification_is_a_round_of_its_own(pool: NodePool, actor: Actor) -> None:
    entry = loose(pool, bytes_moved=7)
    first, second = (entry_scrub(actor=actor, entry_id=entry.pk) for _ in range(2))
    assert [o.params["round"] for o in (first, second)] == [1, 2] and first.params["moved"] == 7
    CacheEntry.objects.update(observed_verify_round=1)
    for operation in (first, second):
        operation_step(operation_id=operation.pk)
        operation.refresh_from_db()
    assert (first.state, second.state) == ("Succeeded", "Running")


def test_retrying_an_eviction_whose_files_are_gone_leaves_no_request_behind(pool: NodePool, actor: Actor) -> None:
    entry = loose(pool)
    operation = entry_evict(actor=actor, entry_id=entry.pk)
    operation_cancel(actor=actor, operation_id=operation.pk)
    operation_step(operation_id=operation.pk)
    CacheEntry.objects.update(state=EntryState.ABSENT)
    again = operation_retry(actor=actor, operation_id=operation.pk)
    operation_step(operation_id=again.pk)
    again.refresh_from_db()
    assert again.state == "Succeeded"
    assert CacheEntry.objects.get().evict_requested_at is None


def test_retrying_a_verification_of_an_entry_that_is_gone_is_refused(pool: NodePool, actor: Actor) -> None:
    entry = loose(pool)
    operation = entry_scrub(actor=actor, entry_id=entry.pk)
    operation_cancel(actor=actor, operation_id=operation.pk)
    operation_step(operation_id=operation.pk)
    entry.delete()
    with pytest.raises(Missing):
        operation_retry(actor=actor, operation_id=operation.pk)
    assert Operation.objects.count() == 1


def test_a_desired_line_is_left_to_the_loop(pool: NodePool, actor: Actor) -> None:
    entry = loose(pool)
    entry_evict(actor=actor, entry_id=entry.pk)
    entry.refresh_from_db()
    assert entry.desired == Action.ENSURE and PoolLoop.objects.get(pool=pool).wanted_round > 0
