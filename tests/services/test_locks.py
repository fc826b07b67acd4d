"""The victim of a deadlock runs again: a few times, for nothing else, and never inside somebody else's transaction."""

from __future__ import annotations

import pytest
from django.db import OperationalError, transaction

from controlplane.locks import DEADLOCK_RETRIES, deadlock_retried


class Victim(OperationalError):
    """What Django raises for a transaction that PostgreSQL ended so that others could go on."""

    def __init__(self, sqlstate: str) -> None:
        super().__init__("deadlock detected")
        self.__cause__ = type("Cause", (Exception,), {"sqlstate": sqlstate})()


@pytest.mark.parametrize("sqlstate", ["40P01", "40001"])
@pytest.mark.parametrize("failures", range(DEADLOCK_RETRIES + 1))
def test_a_victim_of_a_deadlock_runs_again(failures: int, sqlstate: str) -> None:
    left = [Victim(sqlstate)] * failures

    @deadlock_retried
    def service(name: str, *, size: int) -> str:
        if left:
            raise left.pop()
        return f"{name} {size}"

    assert service("done", size=3) == "done 3"


@pytest.mark.parametrize(("sqlstate", "calls"), [("40P01", DEADLOCK_RETRIES + 1), ("57P01", 1), ("", 1)])
def test_it_gives_up_after_some_times_and_at_once_on_anything_else(sqlstate: str, calls: int) -> None:
    called: list[int] = []

    @deadlock_retried
    def service() -> None:
        called.append(1)
        raise Victim(sqlstate)

    with pytest.raises(OperationalError):
        service()
    assert len(called) == calls


@pytest.mark.django_db
def test_within_a_callers_transaction_it_is_the_callers_to_run_again() -> None:
    called: list[int] = []

    @deadlock_retried
    def service() -> None:
        called.append(1)
        raise Victim("40P01")

    with pytest.raises(OperationalError), transaction.atomic():
        service()
    assert len(called) == 1
