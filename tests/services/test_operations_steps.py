"""Steps: one at a time, whatever they raise; what nobody stepped for a while is found again; no bug loops for ever."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import InterfaceError, OperationalError
from django.utils import timezone

from controlplane.errors import Permanent, Transient
from controlplane.operations import handlers, services, steps, tasks
from controlplane.operations.handlers import register
from controlplane.operations.models import Operation, OperationKind, OperationState
from tests.services.operations import ERROR, KIND, OLGA, Script, in_state, started

pytestmark = pytest.mark.django_db
OTHER = OperationKind.MODEL_REGISTER


@pytest.fixture(autouse=True)
def _own_handlers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test registers is gone after it; nothing is registered before."""
    monkeypatch.setattr(handlers, "_handlers", {})
    yield


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Ids of the operations whose step was queued."""
    found: list[str] = []

    def publish(task: str, *ids: str) -> bool:
        assert task == "operations.step"
        found.extend(ids)
        return True

    monkeypatch.setattr(steps, "publish", publish)
    monkeypatch.setattr(tasks, "publish", publish)
    return found


def script(*outcomes: Any, idle_seconds: float = 10, kind: OperationKind = KIND) -> Script:
    made = Script(*outcomes)
    register(kind, made.handler(idle_seconds))
    return made


def again(operation: Operation) -> Operation:
    operation.refresh_from_db()
    return operation


def error_of(operation: Operation) -> dict[str, Any]:
    error: dict[str, Any] = again(operation).error or {}
    return error


def aged(operation: Operation, seconds: float) -> Operation:
    Operation.objects.filter(pk=operation.pk).update(updated_at=timezone.now() - timedelta(seconds=seconds))
    return operation


@pytest.mark.parametrize("state", ["Succeeded", "Failed", "Canceled"])
def test_an_ended_operation_is_not_stepped(state: str) -> None:
    made = script()
    assert steps.operation_step(operation_id=in_state(OperationState(state)).pk)
    assert made.stepped == []


@pytest.mark.parametrize(
    ("state", "after"), [("Pending", "Running"), ("Running", "Running"), ("Canceling", "Canceling")]
)
def test_an_active_operation_is_stepped_and_a_pending_one_runs(state: str, after: str) -> None:
    operation = in_state(OperationState(state))
    made = script(True)
    assert steps.operation_step(operation_id=operation.pk)
    assert (made.stepped, again(operation).state) == ([operation.pk], after)


def test_an_operation_that_was_deleted_is_no_error() -> None:
    script()
    assert steps.operation_step(operation_id=uuid4())


def test_a_kind_that_nobody_handles_is_left_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    operation = started()
    assert steps.operation_step(operation_id=operation.pk)
    assert again(operation).state == "Pending"  # a newer worker may know it
    assert "operation.unhandled" in caplog.text


def test_a_cancel_and_a_retry_do_without_a_handler() -> None:
    assert services.operation_cancel(actor=OLGA, operation_id=started().pk).state == "Canceling"
    failed = in_state(OperationState.FAILED)
    assert services.operation_retry(actor=OLGA, operation_id=failed.pk).state == "Pending"


def test_handlers_hear_of_a_cancel_and_a_retry_in_its_transaction() -> None:
    made = script()
    operation = in_state(OperationState.CANCELED)
    assert made.heard == ["canceled Canceling by olga"]
    services.operation_retry(actor=OLGA, operation_id=operation.pk)
    assert made.heard[1:] == [f"retried {operation.pk} by olga"]


def test_a_handler_that_refuses_a_cancel_leaves_everything_as_it_was() -> None:
    operation = started()

    def refuse(*_: Any) -> None:
        raise ERROR

    register(KIND, handlers.OperationHandler(step=lambda _: True, canceled=refuse, retried=refuse))
    with pytest.raises(Permanent):
        services.operation_cancel(actor=OLGA, operation_id=operation.pk)
    assert again(operation).state == "Pending"
    services.operation_fail(operation_id=operation.pk, error=ERROR)
    with pytest.raises(Permanent):
        services.operation_retry(actor=OLGA, operation_id=operation.pk)
    assert Operation.objects.count() == 1


def test_a_transient_error_says_so_and_waits() -> None:
    operation = started()
    script(Transient("s:s:slow", "Slow down."))
    assert steps.operation_step(operation_id=operation.pk)
    assert (again(operation).state, operation.message, operation.error) == ("Running", "Slow down.", None)


def test_a_permanent_error_ends_it() -> None:
    operation = started()
    script(ERROR)
    assert steps.operation_step(operation_id=operation.pk)
    assert (again(operation).state, error_of(operation)["code"]) == ("Failed", "version:source:gone")


def test_a_step_that_ended_its_operation_and_then_raised_changes_nothing_more() -> None:
    operation = started()

    def end(operation_id: UUID) -> bool:
        services.operation_succeed(operation_id=operation_id)
        raise ERROR

    script(end)
    assert steps.operation_step(operation_id=operation.pk)
    assert (again(operation).state, operation.error) == ("Succeeded", None)


@pytest.mark.parametrize("error", [ERROR, ValueError("a bug")])
def test_an_error_after_a_cancel_was_asked_during_the_step_acknowledges_it(error: Exception) -> None:
    operation = started()

    def cancelled_meanwhile(operation_id: UUID) -> bool:
        services.operation_cancel(actor=OLGA, operation_id=operation_id)
        raise error

    script(cancelled_meanwhile, error)
    steps.operation_step(operation_id=operation.pk)
    if again(operation).state == "Canceling":  # a bug is looked at again before the cancel is acknowledged
        steps.operation_step(operation_id=operation.pk)
    assert (again(operation).state, operation.error) == ("Canceled", None)


@pytest.mark.parametrize("error", [OperationalError("gone"), InterfaceError("closed")])
def test_a_database_that_is_away_is_nobodys_bug(error: Exception) -> None:
    operation = started()
    script(error)
    with pytest.raises(type(error)):
        steps.operation_step(operation_id=operation.pk)
    assert (again(operation).state, operation.params) == ("Running", {"page": 3})


def test_a_bug_is_tried_five_times_and_its_text_is_told_to_nobody(caplog: pytest.LogCaptureFixture) -> None:
    operation = started()
    script(*[KeyError("secret-key")] * 5)
    for number in range(1, 5):
        assert steps.operation_step(operation_id=operation.pk)
        assert (again(operation).state, operation.params) == ("Running", {"page": 3, "_bugs": number})
    assert steps.operation_step(operation_id=operation.pk)
    error = error_of(operation)
    assert (operation.state, error["code"], error["reason"]) == ("Failed", "operation:hearth:internal", "Internal")
    assert error["detail"] == "A step failed with an unexpected error (KeyError), 5 times by now."
    assert "secret-key" not in json.dumps([error, operation.message, operation.params])
    assert caplog.text.count("operation.bug") == 5


def test_a_bug_after_progress_still_ends_it() -> None:
    operation = started()

    def on_and_fall(operation_id: UUID) -> bool:
        page = Operation.objects.get(pk=operation_id).params["page"]
        services.operation_progress(operation_id=operation_id, params={"page": page + 1})
        raise RuntimeError("again")

    script(*[on_and_fall] * 5)
    for _ in range(5):
        steps.operation_step(operation_id=operation.pk)
    assert again(operation).state == "Failed"


def test_a_single_bug_reads_as_one(caplog: pytest.LogCaptureFixture) -> None:
    operation = in_state(OperationState.CANCELING)
    script(ZeroDivisionError())
    steps.operation_step(operation_id=operation.pk)
    assert again(operation).state == "Canceled"
    assert operation.message == "A step failed with an unexpected error (ZeroDivisionError), once by now."


def test_the_log_line_of_a_step_names_its_operation(caplog: pytest.LogCaptureFixture) -> None:
    operation = started()
    script(RuntimeError("boom"))
    steps.operation_step(operation_id=operation.pk)
    assert str(operation.pk) in caplog.text


def test_a_task_steps_again_at_once_while_there_is_more_to_do(sent: list[str]) -> None:
    operation = started()
    script(False, True)
    tasks.step(str(operation.pk))
    assert sent == [str(operation.pk)]
    tasks.step(str(operation.pk))
    assert sent == [str(operation.pk)]


@pytest.mark.parametrize(("age", "idle", "found"), [(9, 10, False), (11, 10, True), (2, 1.5, True), (1, 1.5, False)])
def test_what_was_not_stepped_for_its_kinds_time_is_stepped_again(
    sent: list[str], age: float, idle: float, found: bool
) -> None:
    script(idle_seconds=idle)
    operation = aged(started(), age)
    assert steps.operations_resume() == found
    assert sent == ([str(operation.pk)] if found else [])


@pytest.mark.parametrize("state", list(OperationState))
def test_only_active_operations_are_looked_for(sent: list[str], state: OperationState) -> None:
    operation = aged(in_state(state), 60)
    script()
    steps.operations_resume()
    assert sent == ([str(operation.pk)] if state in ("Pending", "Running", "Canceling") else [])


def test_the_longest_idle_comes_first_and_a_kind_without_a_handler_never(sent: list[str]) -> None:
    script()
    young, old = aged(started(), 20), aged(started(), 40)
    aged(started(kind=OTHER), 99)
    assert steps.operations_resume() == 2
    assert sent == [str(old.pk), str(young.pk)]


def test_a_sweep_queues_no_more_than_its_limit(sent: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "SWEEP_LIMIT", 2)
    script()
    for _ in range(3):
        aged(started(), 60)
    assert steps.operations_resume() == len(sent) == 2


def test_a_broker_that_does_not_answer_ends_the_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def publish(task: str, *ids: str) -> bool:
        asked.extend(ids)
        return False

    monkeypatch.setattr(steps, "publish", publish)
    script()
    for _ in range(3):
        aged(started(), 60)
    assert steps.operations_resume() == 0
    assert len(asked) == 1  # each would wait as long


def test_a_step_of_a_worker_that_died_is_found_after_its_progress_stopped(sent: list[str]) -> None:
    script(idle_seconds=10)
    operation = aged(in_state(OperationState.RUNNING), 60)
    services.operation_progress(operation_id=operation.pk, bytes_done=1)
    assert steps.operations_resume() == 0
    aged(operation, 11)
    assert steps.operations_resume() == 1
