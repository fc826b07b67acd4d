"""Operations and locks on connections of their own: of all who want the same change at once, one gets it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import pytest
from django.db import OperationalError, connection, transaction

from controlplane.audit.models import AuditEvent
from controlplane.errors import Clash
from controlplane.locks import advisory_lock, transaction_lock
from controlplane.operations import handlers, services, steps
from controlplane.operations.handlers import OperationHandler, register
from controlplane.operations.models import ACTIVE_STATES, Operation, OperationState
from tests.services.operations import ERROR, KIND, OLGA, in_state, started
from tests.services.test_concurrency import together

pytestmark = pytest.mark.django_db(transaction=True)
MANY = 6


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No broker, and handlers of this test only."""
    monkeypatch.setattr("controlplane.celery.publish", lambda task, *ids: True)
    monkeypatch.setattr(handlers, "_handlers", {})
    yield


def again(operation: Operation) -> Operation:
    operation.refresh_from_db()
    return operation


def test_one_of_many_runs_it() -> None:
    operation = started()
    results = together(*[lambda: services.operation_run(operation_id=operation.pk)] * MANY)
    assert Counter(results) == {True: 1, False: MANY - 1}


def test_one_of_many_ends_it_and_the_end_is_audited_once() -> None:
    operation = in_state(OperationState.RUNNING)
    ends = [
        lambda: services.operation_succeed(operation_id=operation.pk),
        lambda: services.operation_fail(operation_id=operation.pk, error=ERROR),
    ] * (MANY // 2)
    assert Counter(together(*ends)) == {True: 1, False: MANY - 1}
    ended = AuditEvent.objects.filter(operation_id=operation.pk).get()
    assert ended.action == f"operation.{again(operation).state.lower()}"


def test_a_cancel_and_an_end_do_not_both_win() -> None:
    operation = in_state(OperationState.RUNNING)
    cancel, end = together(
        lambda: services.operation_cancel(actor=OLGA, operation_id=operation.pk),
        lambda: services.operation_succeed(operation_id=operation.pk),
    )
    if end is True:
        assert isinstance(cancel, Clash)
        assert again(operation).state == "Succeeded"
    else:
        assert isinstance(cancel, Operation)
        assert again(operation).state == "Canceling"


def test_many_cancels_are_one_cancel() -> None:
    heard: list[str] = []
    register(KIND, OperationHandler(step=lambda _: True, canceled=lambda operation, actor: heard.append(actor.name)))
    operation = in_state(OperationState.RUNNING)
    results = together(*[lambda: services.operation_cancel(actor=OLGA, operation_id=operation.pk)] * MANY)
    assert {result.state for result in results if isinstance(result, Operation)} == {"Canceling"}
    assert (len(results), heard) == (MANY, ["olga"])
    assert AuditEvent.objects.filter(action="operation.cancel").count() == 1


def test_many_retries_are_one_retry() -> None:
    failed = in_state(OperationState.FAILED)
    results = together(*[lambda: services.operation_retry(actor=OLGA, operation_id=failed.pk)] * MANY)
    assert Counter(type(result).__name__ for result in results) == {"Operation": 1, "Clash": MANY - 1}
    assert {result.code for result in results if isinstance(result, Clash)} == {"operation:user:already-running"}
    assert Operation.objects.filter(state__in=ACTIVE_STATES).count() == 1


def test_retries_of_two_attempts_at_one_thing_are_one_retry() -> None:
    attempts = [in_state(OperationState.FAILED, subject="one thing") for _ in range(MANY)]
    calls = [lambda pk=one.pk: services.operation_retry(actor=OLGA, operation_id=pk) for one in attempts]
    results: list[Any] = together(*calls)
    assert Counter(type(result).__name__ for result in results) == {"Operation": 1, "Clash": MANY - 1}
    assert Operation.objects.filter(state__in=ACTIVE_STATES).count() == 1


def test_a_step_runs_in_one_worker_at_a_time() -> None:
    operation = started()
    inside, release = threading.Event(), threading.Event()
    stepped: list[UUID] = []

    def step(operation_id: UUID) -> bool:
        stepped.append(operation_id)
        inside.set()
        assert release.wait(60)
        return False

    register(KIND, OperationHandler(step=step))

    def work() -> bool:
        try:
            return steps.operation_step(operation_id=operation.pk)
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(work)
        assert inside.wait(60)
        assert steps.operation_step(operation_id=operation.pk)  # nothing to do here: somebody is at it
        release.set()
        assert first.result(60) is False
    assert stepped == [operation.pk]
    assert steps.operation_step(operation_id=operation.pk) is False  # the lock went with the step


def test_a_worker_that_dies_in_its_step_leaves_no_lock() -> None:
    def die() -> None:
        with advisory_lock("thing") as mine:
            assert mine
            connection.connection.close()  # as when the process is killed

    def alone() -> bool:
        with advisory_lock("thing") as mine:
            return mine

    def run() -> bool:
        try:
            die()
            connection.close()
            return alone()
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(run).result(60)


def test_a_lock_is_held_by_one_and_free_again_after_an_error() -> None:
    def taken() -> bool:
        with advisory_lock("thing") as mine:
            return mine

    with pytest.raises(ValueError), advisory_lock("thing") as mine:
        assert mine
        assert together(taken) == [False]
        with advisory_lock("other thing") as other:
            assert other
        raise ValueError
    assert together(taken) == [True]


def test_a_loser_does_not_release_the_winners_lock() -> None:
    def lose() -> bool:
        with advisory_lock("thing") as mine:
            return mine

    with advisory_lock("thing"):
        assert together(lose) == [False]
        assert together(lose) == [False]


def test_a_transaction_lock_is_waited_for_and_ends_with_its_transaction() -> None:
    def impatient() -> bool:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SET LOCAL lock_timeout = '50ms'")
            transaction_lock("thing")
            return True

    with pytest.raises(ValueError), transaction.atomic():
        transaction_lock("thing")
        with pytest.raises(OperationalError, match="lock timeout"):
            together(impatient)
        raise ValueError
    assert together(impatient) == [True]
