"""Every change that anybody may ask of an operation, in every state: what moves, what is refused, what is written."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
import time_machine
from django.db import IntegrityError, transaction
from django.utils import timezone

from controlplane.audit.models import AuditEvent
from controlplane.errors import Clash, FieldError, Invalid, Missing, Permanent, Transient
from controlplane.operations import services
from controlplane.operations.models import FINAL_STATES, Operation, OperationState, TargetState
from controlplane.operations.services import TargetSpec
from tests.services.operations import ERROR, KIND, OLGA, in_state, started

pytestmark = pytest.mark.django_db
STATES = tuple(OperationState)
UNENDED = (OperationState.PENDING, OperationState.RUNNING)

CHANGES: dict[str, tuple[Callable[[Any], bool], tuple[OperationState, ...], OperationState]] = {
    "run": (lambda pk: services.operation_run(operation_id=pk), (OperationState.PENDING,), OperationState.RUNNING),
    "succeed": (lambda pk: services.operation_succeed(operation_id=pk), UNENDED, OperationState.SUCCEEDED),
    "fail": (lambda pk: services.operation_fail(operation_id=pk, error=ERROR), UNENDED, OperationState.FAILED),
    "acknowledge": (
        lambda pk: services.operation_acknowledge(operation_id=pk),
        (OperationState.CANCELING,),
        OperationState.CANCELED,
    ),
}


def again(operation: Operation) -> Operation:
    operation.refresh_from_db()
    return operation


def audited(operation: Operation) -> list[str]:
    events = AuditEvent.objects.filter(operation_id=operation.pk).order_by("id")
    return list(events.values_list("action", flat=True))


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("state", STATES)
def test_a_change_moves_only_out_of_the_states_that_allow_it(state: OperationState, name: str) -> None:
    change, allowed, result = CHANGES[name]
    operation = in_state(state)
    before, written = (operation.state, operation.ended_at, operation.error), len(audited(operation))
    assert change(operation.pk) == (state in allowed)
    again(operation)
    if state in allowed:
        assert operation.state == result
    else:
        assert ((operation.state, operation.ended_at, operation.error), len(audited(operation))) == (before, written)


@pytest.mark.parametrize("state", STATES)
def test_a_cancel_is_asked_once_and_refused_after_the_end(state: OperationState) -> None:
    operation = in_state(state)
    written = len(audited(operation))
    if state in FINAL_STATES:
        with pytest.raises(Clash) as refused:
            services.operation_cancel(actor=OLGA, operation_id=operation.pk)
        assert (refused.value.code, refused.value.status) == ("operation:user:ended", 409)
        assert state.value in refused.value.detail
        assert again(operation).state == state
    else:
        assert services.operation_cancel(actor=OLGA, operation_id=operation.pk).state == OperationState.CANCELING
    assert len(audited(operation)) - written == (state in UNENDED)


@pytest.mark.parametrize("state", STATES)
def test_a_retry_is_for_what_failed_or_was_cancelled(state: OperationState) -> None:
    operation = in_state(state)
    if state in (OperationState.FAILED, OperationState.CANCELED):
        fresh = services.operation_retry(actor=OLGA, operation_id=operation.pk)
        assert (fresh.retry_of_id, fresh.state, again(operation).state) == (operation.pk, "Pending", state)
    else:
        with pytest.raises(Clash) as refused:
            services.operation_retry(actor=OLGA, operation_id=operation.pk)
        assert refused.value.code == "operation:user:not-retryable"
        assert Operation.objects.count() == 1


@pytest.mark.parametrize("state", STATES)
def test_progress_is_recorded_only_before_the_end(state: OperationState) -> None:
    operation = in_state(state)
    written = services.operation_progress(operation_id=operation.pk, bytes_done=7, force=True)
    assert written == (state in UNENDED)
    assert again(operation).bytes_done == (7 if written else 0)


@pytest.mark.parametrize("state", sorted(FINAL_STATES))
def test_an_end_is_dated_and_leaves_no_estimate(state: OperationState) -> None:
    operation = in_state(state)
    assert operation.ended_at is not None and operation.started_at is not None
    assert operation.started_at <= operation.ended_at
    assert operation.eta_seconds is None
    assert audited(operation)[-1] == f"operation.{state.lower()}"


def test_an_end_clears_the_estimate_of_what_ran() -> None:
    operation = in_state(OperationState.RUNNING)
    services.operation_progress(operation_id=operation.pk, eta_seconds=30.0, force=True)
    assert again(operation).eta_seconds == 30.0
    services.operation_succeed(operation_id=operation.pk)
    assert again(operation).eta_seconds is None


@pytest.mark.parametrize("ask", [services.operation_cancel, services.operation_retry])
def test_nothing_is_asked_of_an_operation_that_is_not_there(ask: Any) -> None:
    with pytest.raises(Missing) as refused:
        ask(actor=OLGA, operation_id=uuid4())
    assert refused.value.code == "operation:user:not-found"
    assert not AuditEvent.objects.exists()


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_an_operation_that_is_not_there_is_a_lost_race(name: str) -> None:
    assert not CHANGES[name][0](uuid4())


def test_a_retry_takes_what_was_asked_and_none_of_what_happened() -> None:
    operation = started(targets=[TargetSpec("a", "node a", 10), TargetSpec("b", "node b", 20)])
    services.operation_progress(
        operation_id=operation.pk, bytes_done=15, message="half", params={"page": 9, "_bugs": 3, "_seen": 1}
    )
    services.target_update(operation_id=operation.pk, key="a", state=TargetState.FAILED, detail="no", bytes_done=10)
    services.operation_fail(operation_id=operation.pk, error=ERROR)
    fresh = services.operation_retry(actor=OLGA, operation_id=operation.pk)
    assert fresh.params == {"page": 9}
    assert (fresh.bytes_done, fresh.bytes_total, fresh.message, fresh.error) == (0, 30, "", None)
    targets = [(t.key, t.name, t.state, t.bytes_done, t.detail) for t in fresh.targets.all()]
    assert targets == [("a", "node a", "Pending", 0, ""), ("b", "node b", "Pending", 0, "")]


def test_a_retry_of_a_retry_names_the_one_before() -> None:
    first = in_state(OperationState.FAILED)
    second = services.operation_retry(actor=OLGA, operation_id=first.pk)
    services.operation_fail(operation_id=second.pk, error=ERROR)
    third = services.operation_retry(actor=OLGA, operation_id=second.pk)
    assert (third.retry_of_id, second.retry_of_id) == (second.pk, first.pk)


def test_an_older_attempt_may_be_retried_once_the_newer_one_ended() -> None:
    first = in_state(OperationState.FAILED)
    second = services.operation_retry(actor=OLGA, operation_id=first.pk)
    with pytest.raises(Clash) as refused:
        services.operation_retry(actor=OLGA, operation_id=first.pk)
    assert (refused.value.code, str(second.pk) in refused.value.next_step) == ("operation:user:already-running", True)
    services.operation_succeed(operation_id=second.pk)
    assert services.operation_retry(actor=OLGA, operation_id=first.pk).retry_of_id == first.pk


def test_another_kind_or_subject_does_not_stand_in_the_way_of_a_retry() -> None:
    failed = in_state(OperationState.FAILED, subject="one")
    in_state(OperationState.RUNNING, subject="two")
    assert services.operation_retry(actor=OLGA, operation_id=failed.pk).subject_id == "one"


def test_a_failure_is_a_problem_document_with_its_fields() -> None:
    operation = in_state(OperationState.RUNNING)
    errors = [FieldError("files.0", "x:y:z", "wrong")]
    error = Invalid("version:user:invalid", "Wrong.", next_step="Correct it.", errors=errors)
    services.operation_fail(operation_id=operation.pk, error=error)
    assert again(operation).error == {
        "type": "about:blank",
        "title": "Bad Request",
        "status": 400,
        "detail": "Wrong.",
        "code": "version:user:invalid",
        "next_step": "Correct it.",
        "reason": "",
        "errors": [{"field": "files.0", "code": "x:y:z", "detail": "wrong"}],
    }
    assert operation.message == "Wrong."


NASTY = "file \0one\0 \udcff \ud800 ünï 😀 \u2028"
CLEAN = "file one \\udcff \\ud800 ünï 😀 \u2028"


def test_an_error_that_quotes_bytes_that_no_database_holds_still_ends_its_operation() -> None:
    operation = started(targets=[TargetSpec("a", "node a")])
    assert services.operation_progress(operation_id=operation.pk, message=NASTY, force=True)
    assert again(operation).message == CLEAN
    assert services.target_update(operation_id=operation.pk, key="a", state=TargetState.FAILED, detail=NASTY)
    assert operation.targets.get().detail == CLEAN
    error = Permanent("version:source:odd", NASTY, next_step=NASTY, errors=[FieldError(NASTY, "x", NASTY)])
    assert services.operation_fail(operation_id=operation.pk, error=error)
    stored: Any = again(operation).error
    assert (operation.state, operation.message, stored["detail"], stored["next_step"]) == ("Failed", *[CLEAN] * 3)
    assert stored["errors"] == [{"field": CLEAN, "code": "x", "detail": CLEAN}]
    assert AuditEvent.objects.get(operation_id=operation.pk).message == CLEAN


def test_an_acknowledgement_and_a_success_may_quote_them_too() -> None:
    canceling, running = in_state(OperationState.CANCELING), in_state(OperationState.RUNNING)
    assert services.operation_acknowledge(operation_id=canceling.pk, message=NASTY)
    assert services.operation_succeed(operation_id=running.pk, message=NASTY)
    assert again(canceling).message == again(running).message == CLEAN


@pytest.mark.parametrize("length", [1000, 1001, 50_000])
def test_long_messages_are_cut_and_the_document_keeps_them(length: int) -> None:
    operation = started()
    services.operation_fail(operation_id=operation.pk, error=Permanent("a:b:c", "ä" * length))
    stored: Any = again(operation).error
    assert (len(operation.message), len(stored["detail"])) == (1000, length)


def test_a_long_subject_is_cut() -> None:
    made = services.operation_start(
        actor=OLGA,
        kind=KIND,
        subject_type="version",
        subject_id="1",
        subject_name="x" * 500,
        targets=[TargetSpec("a", "y" * 500)],
    )
    assert (len(made.subject_name), len(made.targets.get().name)) == (300, 300)


@pytest.mark.parametrize(
    ("age", "arguments", "written"),
    [
        (0.0, {"bytes_done": 1}, False),
        (0.9, {"bytes_done": 1}, False),
        (1.1, {"bytes_done": 1}, True),
        (0.0, {"bytes_done": 1, "force": True}, True),
        (0.0, {"params": {}}, True),
    ],
)
def test_progress_is_written_once_a_second_unless_the_resume_point_moved(
    age: float, arguments: dict[str, Any], written: bool
) -> None:
    operation = started()
    with time_machine.travel(timezone.now(), tick=False):
        Operation.objects.filter(pk=operation.pk).update(updated_at=timezone.now() - timedelta(seconds=age))
        assert services.operation_progress(operation_id=operation.pk, **arguments) == written


def test_progress_leaves_what_it_does_not_name() -> None:
    operation = started(targets=[TargetSpec("a", "a", 40)])
    services.operation_progress(operation_id=operation.pk, bytes_done=4, message="going", force=True)
    services.operation_progress(operation_id=operation.pk, params={"page": 8})
    again(operation)
    assert (operation.bytes_done, operation.bytes_total) == (4, 40)
    assert (operation.message, operation.params) == ("going", {"page": 8})


def test_a_target_moves_until_it_has_ended() -> None:
    operation = started(targets=[TargetSpec("a", "a", 5), TargetSpec("b", "b")])

    def move(state: TargetState, key: str = "a") -> bool:
        return services.target_update(operation_id=operation.pk, key=key, state=state, bytes_done=3)

    assert move(TargetState.RUNNING) and move(TargetState.RUNNING) and move(TargetState.SUCCEEDED)
    assert not move(TargetState.FAILED) and not move(TargetState.PENDING)
    assert not move(TargetState.RUNNING, key="c")
    assert [(t.state, t.bytes_done) for t in operation.targets.all()] == [("Succeeded", 3), ("Pending", 0)]


def test_a_cancel_skips_the_targets_that_are_not_done() -> None:
    operation = started(targets=[TargetSpec(key, key) for key in "abcd"])
    for key, state in (("a", "Succeeded"), ("b", "Failed"), ("c", "Running")):
        services.target_update(operation_id=operation.pk, key=key, state=TargetState(state), detail="was")
    services.operation_cancel(actor=OLGA, operation_id=operation.pk)
    assert [t.state for t in operation.targets.all()] == ["Succeeded", "Failed", "Running", "Pending"]
    services.operation_acknowledge(operation_id=operation.pk)
    skipped = "The operation was cancelled."
    assert [(t.state, t.detail) for t in operation.targets.all()] == [
        ("Succeeded", "was"),
        ("Failed", "was"),
        ("Skipped", skipped),
        ("Skipped", skipped),
    ]


def test_two_targets_of_one_key_are_refused_and_nothing_is_left() -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        started(targets=[TargetSpec("a", "a"), TargetSpec("a", "b")])
    assert not Operation.objects.exists()


def test_a_transient_error_is_stored_with_the_status_of_its_class() -> None:
    operation = started()
    services.operation_fail(
        operation_id=operation.pk, error=Transient("s:s:slow", "Slow down.", reason="SourceUnavailable")
    )
    stored: Any = again(operation).error
    assert (stored["status"], stored["title"], stored["reason"]) == (503, "Service Unavailable", "SourceUnavailable")


def test_the_audit_trail_tells_who_asked_and_what_became_of_it() -> None:
    operation = in_state(OperationState.CANCELED)
    asked, ended = AuditEvent.objects.filter(operation_id=operation.pk).order_by("id")
    assert (asked.actor, asked.via, asked.request_id) == ("olga", "Api", "request-1")
    assert asked.after == {"kind": "ModelRecheck", "state": "Canceling"}
    assert (ended.actor, ended.via, ended.after) == ("system", "System", {"kind": "ModelRecheck", "state": "Canceled"})
    assert isinstance(ended.at, datetime)
