"""How Operations of pins and entries end, row by row: targets as people read them, cancels, retries, what is gone."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from caches.models import CacheEntry, GateType, Pin, PoolLoop
from caches.services.entries import entry_evict, entry_scrub
from caches.services.pins import PinSpec, pin_create, pin_remove
from controlplane.audit.models import AuditEvent
from controlplane.audit.services import Actor
from controlplane.clusters.documents import Action, EntryState
from controlplane.clusters.models import Node, NodePool
from controlplane.errors import HearthError
from controlplane.operations.models import Operation
from controlplane.operations.services import operation_cancel, operation_retry
from controlplane.operations.steps import operation_step
from tests import factories
from tests.factories import MIB

pytestmark = pytest.mark.django_db


@pytest.fixture
def pool() -> NodePool:
    made = factories.pool()
    for name in ("n1", "n2"):
        factories.node(of=made, name=name)
    return made


def warming(pool: NodePool, actor: Actor, **fields: Any) -> tuple[Pin, Operation]:
    return pin_create(actor=actor, spec=PinSpec(factories.version().pk, (pool.pk,), **fields))


def put(pin: Pin, name: str, state: EntryState, **fields: Any) -> CacheEntry:
    return factories.entry(
        on=Node.objects.get(name=name, lost_at=None), of=factories.version_of(pin).artifact, state=state, **fields
    )


def step(operation: Operation) -> Operation:
    operation_step(operation_id=operation.pk)
    return Operation.objects.get(pk=operation.pk)


def target(operation: Operation, name: str = "n1") -> tuple[str, str]:
    row = operation.targets.get(name__endswith=f"/{name}")
    return row.state, row.detail


def refuse(pin: Pin, node: str, *, minutes: int = 1) -> None:
    """The last plan says that there is no room on this node."""
    found = Node.objects.get(name=node)
    artifact = factories.version_of(pin).artifact
    assert artifact is not None
    line = {"pin_id": str(pin.pk), "node_uid": found.uid, "digest": artifact.digest}
    line |= {"detail": "No room.", "next_step": "Unpin something."}
    at = timezone.now() + timedelta(minutes=minutes)
    PoolLoop.objects.update_or_create(pool=found.pool, defaults={"plan": {"refusals": [line]}, "reconciled_at": at})


@pytest.mark.parametrize(
    ("state", "reason", "shown", "detail"),
    [
        (EntryState.ABSENT, "", "Pending", "Absent"),
        (EntryState.QUEUED, "", "Running", "Queued"),
        (EntryState.DOWNLOADING, "", "Running", "Downloading"),
        (EntryState.VERIFYING, "", "Running", "Verifying"),
        (EntryState.READY, "", "Succeeded", ""),
        (EntryState.REPAIRING, "", "Running", "Repairing"),
        (EntryState.EVICTING, "", "Running", "Evicting"),
        (EntryState.FAILED, "SourceUnavailable", "Running", "SourceUnavailable: It failed."),
        (EntryState.FAILED, "NodeUnavailable", "Running", "NodeUnavailable: It failed."),
        (EntryState.FAILED, "AccessDenied", "Failed", "AccessDenied: It failed."),
        (EntryState.FAILED, "IntegrityMismatch", "Failed", "IntegrityMismatch: It failed."),
    ],
)
def test_a_target_shows_what_its_entry_does(
    pool: NodePool, actor: Actor, state: EntryState, reason: str, shown: str, detail: str
) -> None:
    pin, operation = warming(pool, actor, gate_type=GateType.TIMEOUT, gate_value=60)
    message = "It failed." if reason else ""
    put(pin, "n1", state, reason=reason, message=message)
    running = step(operation)
    assert target(running) == (shown, detail) and running.state == "Running"
    assert target(running, "n2") == ("Pending", "Absent")


def test_a_ready_copy_that_is_going_does_not_count(pool: NodePool, actor: Actor) -> None:
    pin, operation = warming(pool, actor)
    put(pin, "n1", EntryState.READY)
    put(pin, "n2", EntryState.READY, desired=Action.EVICT)
    assert step(operation).state == "Running"
    CacheEntry.objects.update(desired=Action.ENSURE)
    assert step(operation).state == "Succeeded"


def test_a_failed_target_may_recover_and_a_lost_one_may_not(pool: NodePool, actor: Actor) -> None:
    pin, operation = warming(pool, actor, gate_type=GateType.TIMEOUT, gate_value=600)
    entry = put(pin, "n1", EntryState.FAILED, reason="AccessDenied", message="no")
    Node.objects.filter(name="n2").update(lost_at=timezone.now())
    running = step(operation)
    assert (target(running)[0], target(running, "n2")) == ("Failed", ("Skipped", "Its node is gone."))
    CacheEntry.objects.filter(pk=entry.pk).update(state=EntryState.READY, reason="", message="")
    Node.objects.filter(name="n2").update(lost_at=None)  # never happens; a row that was ended stays ended
    running = step(operation)
    assert target(running)[0] == "Succeeded" and target(running, "n2")[0] == "Skipped"


def test_all_nodes_gone_is_an_end_too(pool: NodePool, actor: Actor) -> None:
    _, operation = warming(pool, actor)
    Node.objects.update(lost_at=timezone.now())
    done = step(operation)
    assert done.state == "Failed" and "gone" in done.message and {t.state for t in done.targets.all()} == {"Skipped"}


@pytest.mark.parametrize(("minutes", "state"), [(1, "Failed"), (-60, "Running")])
def test_only_a_plan_younger_than_the_operation_refuses_for_it(
    pool: NodePool, actor: Actor, minutes: int, state: str
) -> None:
    pin, operation = warming(pool, actor)
    refuse(pin, "n1", minutes=minutes)
    done = step(operation)
    assert done.state == state
    if state == "Failed":
        error: dict[str, Any] = done.error or {}
        assert (error["code"], error["next_step"]) == ("pin:node:gate-unreachable", "Unpin something.")


def test_a_refusal_does_not_undo_what_is_ready(pool: NodePool, actor: Actor) -> None:
    pin, operation = warming(pool, actor)
    for name in ("n1", "n2"):
        put(pin, name, EntryState.READY)
    refuse(pin, "n1")
    assert step(operation).state == "Succeeded"


def test_a_suspended_pin_says_so(pool: NodePool, actor: Actor) -> None:
    pin, operation = warming(pool, actor)
    step(operation)
    Pin.objects.filter(pk=pin.pk).update(suspended=True)
    Operation.objects.update(updated_at=timezone.now() - timedelta(seconds=2))
    assert step(operation).message == "The pin is suspended."


def test_time_left_is_only_said_when_every_transfer_knows_it(pool: NodePool, actor: Actor) -> None:
    pin, operation = warming(pool, actor)
    put(pin, "n1", EntryState.DOWNLOADING, eta_seconds=30.0, bytes_done=10 * MIB)
    unknown = put(pin, "n2", EntryState.DOWNLOADING, eta_seconds=None)
    for eta, shown in ((None, None), (90.0, 90.0)):
        CacheEntry.objects.filter(pk=unknown.pk).update(eta_seconds=eta)
        step(operation)
        Operation.objects.update(updated_at=timezone.now() - timedelta(seconds=2))
        running = step(operation)
        assert running.eta_seconds == shown
    assert (running.bytes_done, running.bytes_total) == (10 * MIB, 200 * MIB)


def test_a_pin_that_was_purged_fails_its_warming_and_ends_its_removal(pool: NodePool, actor: Actor) -> None:
    pin, operation = warming(pool, actor)
    removal = pin_remove(actor=actor, pin_id=pin.pk)
    Operation.objects.filter(pk=operation.pk).update(state="Running")
    Pin.objects.all().delete()
    done = step(operation)
    assert done.state == "Failed" and (done.error or {})["code"] == "operation:user:subject-gone"
    assert step(removal).state == "Succeeded"


def test_a_cancel_waits_for_those_who_can_be_heard_of_only(pool: NodePool, actor: Actor) -> None:
    pin, operation = warming(pool, actor)
    for name in ("n1", "n2"):
        put(pin, name, EntryState.DOWNLOADING)
    operation_cancel(actor=actor, operation_id=operation.pk)
    assert step(operation).state == "Canceling"
    Node.objects.filter(name="n1").update(reported_at=timezone.now() - timedelta(hours=1))
    assert step(operation).state == "Canceling"
    Node.objects.filter(name="n2").update(lost_at=timezone.now())
    done = step(operation)
    assert done.state == "Canceled" and {t.state for t in done.targets.all()} == {"Skipped"}


def test_the_warming_of_a_pin_that_was_removed_does_not_say_that_it_is_suspended(pool: NodePool, actor: Actor) -> None:
    removed, operation = warming(pool, actor)
    pin_remove(actor=actor, pin_id=removed.pk)
    done = step(operation)
    assert (done.state, done.message) == (
        "Canceled",
        "The pin was removed; what is warm stays until room is needed.",
    )
    _, canceled = warming(pool, actor)
    operation_cancel(actor=actor, operation_id=canceled.pk)
    assert step(canceled).message == "The pin is suspended; what is warm stays."


def test_a_cancel_and_a_retry_are_in_the_trail_once(pool: NodePool, actor: Actor) -> None:
    pin, operation = warming(pool, actor)
    for _ in range(2):
        operation_cancel(actor=actor, operation_id=operation.pk)
    step(operation)
    again = operation_retry(actor=actor, operation_id=operation.pk)
    trail = list(AuditEvent.objects.filter(action__startswith="pin.").order_by("at").values_list("action", flat=True))
    assert trail == ["pin.create", "pin.suspend", "pin.resume"]
    assert Pin.objects.get(pk=pin.pk).operation_id == again.pk


def test_a_retry_of_a_removed_pin_is_refused_whole(pool: NodePool, actor: Actor) -> None:
    pin, operation = warming(pool, actor)
    operation_cancel(actor=actor, operation_id=operation.pk)
    step(operation)
    Pin.objects.filter(pk=pin.pk).update(removed_at=timezone.now())
    with pytest.raises(HearthError) as refused:
        operation_retry(actor=actor, operation_id=operation.pk)
    assert (refused.value.code, refused.value.status) == ("pin:user:removed", 409)
    assert Operation.objects.filter(kind="PinWarm").count() == 1 and Pin.objects.get().suspended


def test_a_retry_tries_its_own_failures_again_and_no_others(pool: NodePool, actor: Actor) -> None:
    pin, operation = warming(pool, actor)
    mine = put(pin, "n1", EntryState.FAILED, reason="AccessDenied")
    ready = put(pin, "n2", EntryState.READY)
    elsewhere = factories.entry(of=factories.version_of(pin).artifact, state=EntryState.FAILED)
    other = factories.entry(on=mine.node, state=EntryState.FAILED)
    assert step(operation).state == "Failed"
    operation_retry(actor=actor, operation_id=operation.pk)
    found = dict(CacheEntry.objects.values_list("pk", "retry_round"))
    assert found == {mine.pk: 1, ready.pk: 0, elsewhere.pk: 0, other.pk: 0}


@pytest.mark.parametrize(
    ("state", "ended", "shown"),
    [
        (EntryState.READY, "Running", "Pending"),
        (EntryState.EVICTING, "Running", "Pending"),
        (EntryState.ABSENT, "Succeeded", "Succeeded"),
        (EntryState.LOST, "Succeeded", "Skipped"),
        (None, "Succeeded", "Skipped"),
    ],
)
@pytest.mark.parametrize("verb", [entry_evict, entry_scrub])
def test_operations_of_an_entry_end_with_it(
    pool: NodePool, actor: Actor, verb: Any, state: EntryState | None, ended: str, shown: str
) -> None:
    entry = factories.entry(on=Node.objects.get(name="n1"))
    operation = verb(actor=actor, entry_id=entry.pk)
    if state is None:
        entry.delete()
    else:
        CacheEntry.objects.update(state=state)
    done = step(operation)
    if verb is entry_scrub and state is EntryState.ABSENT:
        shown = "Skipped"
    assert (done.state, done.targets.get().state) == (ended, shown)


@pytest.mark.parametrize(
    ("desired", "text"), [(Action.EVICT, "The node removes the files."), (Action.ENSURE, "Waiting until nothing uses")]
)
def test_a_waiting_eviction_says_for_what(pool: NodePool, actor: Actor, desired: Action, text: str) -> None:
    entry = factories.entry(on=Node.objects.get(name="n1"))
    operation = entry_evict(actor=actor, entry_id=entry.pk)
    CacheEntry.objects.update(desired=desired)
    step(operation)
    Operation.objects.update(updated_at=timezone.now() - timedelta(seconds=2))
    assert step(operation).message.startswith(text)


def test_an_eviction_that_is_cancelled_is_taken_back_and_retried_is_asked_again(pool: NodePool, actor: Actor) -> None:
    entry = factories.entry(on=Node.objects.get(name="n1"))
    operation = entry_evict(actor=actor, entry_id=entry.pk)
    asked = PoolLoop.objects.get(pool=pool).wanted_round
    operation_cancel(actor=actor, operation_id=operation.pk)
    assert CacheEntry.objects.get().evict_requested_at is None
    assert step(operation).state == "Canceled"
    again = operation_retry(actor=actor, operation_id=operation.pk)
    assert CacheEntry.objects.get().evict_requested_at is not None
    assert step(again).state == "Running" and PoolLoop.objects.get(pool=pool).wanted_round == asked + 2


@pytest.mark.parametrize(
    ("rounds", "state", "reason", "ended"),
    [
        (0, EntryState.READY, "", "Running"),  # not answered yet
        (1, EntryState.READY, "", "Succeeded"),
        (5, EntryState.READY, "", "Succeeded"),  # a later round answers an earlier question
        (1, EntryState.REPAIRING, "", "Running"),
        (1, EntryState.FAILED, "SourceUnavailable", "Running"),  # the repair is tried again
        (1, EntryState.FAILED, "IntegrityMismatch", "Failed"),
        (0, EntryState.FAILED, "IntegrityMismatch", "Running"),
    ],
)
def test_a_verification_ends_when_its_round_is_answered(
    pool: NodePool, actor: Actor, rounds: int, state: EntryState, reason: str, ended: str
) -> None:
    entry = factories.entry(on=Node.objects.get(name="n1"))
    operation = entry_scrub(actor=actor, entry_id=entry.pk)
    CacheEntry.objects.update(state=state, reason=reason, observed_verify_round=rounds)
    done = step(operation)
    assert done.state == ended
    if ended == "Failed":
        assert (done.error or {})["code"] == "entry:source:not-repairable"
        assert target(done) == ("Failed", "IntegrityMismatch")
