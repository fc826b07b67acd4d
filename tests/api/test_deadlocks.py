"""A deadlock costs a repeat: its victim runs again, and only a victim that stays one is told to come back."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import OperationalError, transaction
from psycopg import errors as postgres

from controlplane.locks import DEADLOCK_RETRIES, deadlock_retried
from tests.api.conftest import Api


def victim_of(cause: Exception) -> OperationalError:
    error = OperationalError(str(cause))
    error.__cause__ = cause
    return error


def failing(times: int, cause: Exception) -> Any:
    """A service that fails so often and then answers with the number of its calls."""
    calls: list[int] = []

    @deadlock_retried
    def service() -> int:
        calls.append(1)
        if len(calls) <= times:
            raise victim_of(cause)
        return len(calls)

    return service


@pytest.mark.django_db(transaction=True)
def test_it_runs_the_victim_again_and_gives_up_in_the_end() -> None:
    assert failing(DEADLOCK_RETRIES, postgres.DeadlockDetected())() == DEADLOCK_RETRIES + 1
    with pytest.raises(OperationalError):
        failing(DEADLOCK_RETRIES + 1, postgres.DeadlockDetected())()


@pytest.mark.django_db(transaction=True)
def test_it_repeats_nothing_else_and_nothing_inside_a_callers_transaction() -> None:
    with pytest.raises(OperationalError):
        failing(1, postgres.AdminShutdown())()
    with pytest.raises(OperationalError), transaction.atomic():
        failing(1, postgres.DeadlockDetected())()


def test_it_tells_a_victim_that_stays_one_to_come_back(viewer_api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    def contended(**kwargs: Any) -> None:
        raise victim_of(postgres.DeadlockDetected())

    monkeypatch.setattr("caches.api.pins.pins_list", contended)

    answer = viewer_api.get("pins")

    assert (answer.status_code, answer.json()["code"]) == (503, "database:hearth:contended")
    assert int(answer["Retry-After"]) > 0
