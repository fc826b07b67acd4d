"""The life of an Operation: guarded transitions, two-phase cancel, retry, steps that survive everything."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.utils import timezone

from controlplane.audit.models import AuditEvent
from controlplane.audit.services import Actor
from controlplane.errors import Clash, FieldError, Missing, Permanent, Transient
from controlplane.operations import services, steps
from controlplane.operations.handlers import OperationHandler, handler_of, register
from controlplane.operations.models import Operation, OperationKind, OperationState, TargetState
from controlplane.operations.services import TargetSpec

pytestmark = pytest.mark.django_db
KIND = OperationKind.MODEL_RECHECK


class Script:
    """A handler that does what a test says: each step pops one outcome."""

    def __init__(self) -> None:
        self.outcomes: list[bool | Exception] = []
        self.heard: list[str] = []

    def step(self, operation_id: UUID) -> bool:
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def handler(self) -> OperationHandler:
        return OperationHandler(
            step=self.step,
            canceled=lambda operation, actor: self.heard.append(f"canceled by {actor.name}"),
            retried=lambda operation, actor: self.heard.append(f"retried by {actor.name}"),
            idle_seconds=10,
        )


@pytest.fixture
def script() -> Iterator[Script]:
    before, made = handler_of(KIND), Script()
    register(KIND, made.handler())
    yield made
    assert before is not None
    register(KIND, before)


@pytest.fixture
def operation(actor: Actor) -> Operation:
    return services.operation_start(
        actor=actor,
        kind=KIND,
        subject_type="version",
        subject_id=str(uuid4()),
        subject_name="llama v1",
        params={"page": 3},
        targets=[TargetSpec("a", "node a", 10), TargetSpec("b", "node b", 20)],
    )


def fresh(operation: Operation) -> Operation:
    operation.refresh_from_db()
    return operation


def problem(operation: Operation) -> dict[str, Any]:
    error: dict[str, Any] | None = fresh(operation).error
    assert error is not None
    return error


def test_it_starts_pending_with_its_targets(operation: Operation) -> None:
    assert (operation.state, operation.started_by, operation.request_id) == ("Pending", "olga", "request-1")
    assert operation.bytes_total == 30
    assert [t.name for t in operation.targets.all()] == ["node a", "node b"]


def test_it_moves_only_along_its_states(operation: Operation) -> None:
    pk = operation.pk
    assert services.operation_run(operation_id=pk)
    assert not services.operation_run(operation_id=pk)
    assert services.operation_succeed(operation_id=pk, result={"files": 3}, message="done")
    assert not services.operation_succeed(operation_id=pk)
    assert not services.operation_fail(operation_id=pk, error=Permanent("a:b:c", "no"))
    assert not services.operation_acknowledge(operation_id=pk)
    done = fresh(operation)
    assert (done.state, done.result, done.message) == ("Succeeded", {"files": 3}, "done")
    assert done.started_at is not None and done.ended_at is not None
    assert AuditEvent.objects.filter(operation_id=pk, action="operation.succeeded").count() == 1


def test_a_failure_is_stored_as_a_problem(operation: Operation) -> None:
    error = Permanent(
        "version:source:denied",
        "The bucket refuses.",
        reason="AccessDenied",
        next_step="Grant it.",
        errors=[FieldError("uri", "x:y:z", "wrong")],
    )
    services.operation_fail(operation_id=operation.pk, error=error)
    stored = problem(operation)
    assert stored["code"] == "version:source:denied" and stored["next_step"] == "Grant it."
    assert stored["reason"] == "AccessDenied" and stored["errors"][0]["field"] == "uri"


def test_progress_is_throttled_unless_the_resume_point_moves(operation: Operation) -> None:
    pk = operation.pk
    assert not services.operation_progress(operation_id=pk, bytes_done=1)
    Operation.objects.filter(pk=pk).update(updated_at=timezone.now() - timedelta(seconds=2))
    assert services.operation_progress(operation_id=pk, bytes_done=2, eta_seconds=5.0, message="going")
    assert not services.operation_progress(operation_id=pk, bytes_done=3)
    assert services.operation_progress(operation_id=pk, params={"page": 4})
    now = fresh(operation)
    assert (now.bytes_done, now.params) == (2, {"page": 4})


def test_a_cancel_is_asked_then_acknowledged(operation: Operation, script: Script, actor: Actor) -> None:
    asked = services.operation_cancel(actor=actor, operation_id=operation.pk)
    assert asked.state == "Canceling" and script.heard == ["canceled by olga"]
    services.operation_cancel(actor=actor, operation_id=operation.pk)
    assert script.heard == ["canceled by olga"]
    assert not services.operation_succeed(operation_id=operation.pk)
    assert services.operation_acknowledge(operation_id=operation.pk)
    assert fresh(operation).state == "Canceled"
    assert {t.state for t in operation.targets.all()} == {TargetState.SKIPPED}
    actions = AuditEvent.objects.filter(operation_id=operation.pk).order_by("id").values_list("action", flat=True)
    assert list(actions) == ["operation.cancel", "operation.canceled"]


def test_an_ended_operation_cannot_be_cancelled(operation: Operation, actor: Actor) -> None:
    services.operation_succeed(operation_id=operation.pk)
    with pytest.raises(Clash, match="already ended"):
        services.operation_cancel(actor=actor, operation_id=operation.pk)
    with pytest.raises(Missing):
        services.operation_cancel(actor=actor, operation_id=uuid4())


def test_a_retry_is_a_new_operation_that_names_the_old_one(operation: Operation, script: Script, actor: Actor) -> None:
    with pytest.raises(Clash, match="Only a Failed or Canceled"):
        services.operation_retry(actor=actor, operation_id=operation.pk)
    services.operation_fail(operation_id=operation.pk, error=Permanent("a:b:c", "no"))
    again = services.operation_retry(actor=actor, operation_id=operation.pk)
    assert (again.retry_of_id, again.state, again.params) == (operation.pk, "Pending", {"page": 3})
    assert again.targets.count() == 2 and script.heard == ["retried by olga"]
    with pytest.raises(Clash) as refused:
        services.operation_retry(actor=actor, operation_id=operation.pk)
    assert refused.value.code == "operation:user:already-running"


def test_a_step_runs_the_operation_and_says_whether_to_go_on(operation: Operation, script: Script) -> None:
    script.outcomes = [False, True]
    assert not steps.operation_step(operation_id=operation.pk)
    assert fresh(operation).state == "Running"
    assert steps.operation_step(operation_id=operation.pk)
    services.operation_succeed(operation_id=operation.pk)
    assert steps.operation_step(operation_id=operation.pk)  # pops nothing: an ended operation is left alone


def test_errors_of_a_step_end_it_or_leave_it(operation: Operation, script: Script) -> None:
    script.outcomes = [Transient("s:s:s", "slow down"), Permanent("version:source:gone", "No such bucket.")]
    assert steps.operation_step(operation_id=operation.pk)
    assert (fresh(operation).state, operation.message) == ("Running", "slow down")
    assert steps.operation_step(operation_id=operation.pk)
    assert (fresh(operation).state, problem(operation)["code"]) == ("Failed", "version:source:gone")


def test_a_bug_is_tried_a_few_times_and_then_ends_the_operation(operation: Operation, script: Script) -> None:
    script.outcomes = [ValueError("secret detail")] * steps.MAX_BUGS
    for _ in range(steps.MAX_BUGS - 1):
        steps.operation_step(operation_id=operation.pk)
        assert fresh(operation).state == "Running"
    steps.operation_step(operation_id=operation.pk)
    assert problem(operation)["code"] == "operation:hearth:internal"
    assert "secret detail" not in str(operation.error)


def test_an_error_while_cancelling_acknowledges_the_cancel(operation: Operation, script: Script, actor: Actor) -> None:
    services.operation_cancel(actor=actor, operation_id=operation.pk)
    script.outcomes = [Permanent("a:b:c", "gone")]
    steps.operation_step(operation_id=operation.pk)
    assert fresh(operation).state == OperationState.CANCELED


def test_only_what_is_idle_is_stepped_again(
    operation: Operation, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Any] = []

    def publish(task: str, *ids: str) -> bool:
        sent.append((task, *ids))
        return True

    monkeypatch.setattr(steps, "publish", publish)
    assert steps.operations_resume() == 0
    Operation.objects.filter(pk=operation.pk).update(updated_at=timezone.now() - timedelta(seconds=11))
    assert steps.operations_resume() == 1
    assert sent == [("operations.step", str(operation.pk))]


def test_starting_does_not_fail_without_a_broker(
    actor: Actor, monkeypatch: pytest.MonkeyPatch, django_capture_on_commit_callbacks: Any
) -> None:
    from controlplane import celery

    def refuse(*args: object, **kwargs: object) -> None:
        raise ConnectionRefusedError("no broker")

    monkeypatch.setattr(celery.app, "send_task", refuse)
    with django_capture_on_commit_callbacks(execute=True) as callbacks:
        made = services.operation_start(
            actor=actor, kind=KIND, subject_type="version", subject_id="1", subject_name="x"
        )
    assert len(callbacks) == 1 and made.state == "Pending"
