"""One worker at a time on one thing, across processes: PostgreSQL advisory locks.

They belong to the database session, so a killed worker releases its locks at once. They need a direct connection (or a
pooler in session mode); nothing in Hearth is *wrong* without them, work is only repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

from django.db import OperationalError, connection

P = ParamSpec("P")
T = TypeVar("T")
DEADLOCK_RETRIES = 3


@contextmanager
def advisory_lock(name: str) -> Iterator[bool]:
    """Yields True when this session took the lock, False at once when another one holds it."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(hashtextextended(%s, 0))", [name])
        taken = bool(cursor.fetchone()[0])
    try:
        yield taken
    finally:
        # A connection that broke meanwhile took the lock with it.
        if taken and connection.connection is not None and not connection.connection.closed:
            _release(name)


def _release(name: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_unlock(hashtextextended(%s, 0))", [name])


def transaction_lock(name: str) -> None:
    """Wait until no other transaction holds this name, and hold it until the current one ends."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [name])


def is_deadlock(error: BaseException) -> bool:
    """Whether PostgreSQL ended a transaction so that others could go on: the same again will work."""
    return getattr(error.__cause__, "sqlstate", "") in ("40P01", "40001")


def deadlock_retried(service: Callable[P, T]) -> Callable[P, T]:
    """Run a service again when its transaction was chosen to end a deadlock. Nothing of it was committed.

    Inside a caller's transaction it is not retried: the whole of that is lost, and its owner decides.
    """

    @wraps(service)
    def retried(*args: P.args, **kwargs: P.kwargs) -> T:
        for _ in range(DEADLOCK_RETRIES):
            try:
                return service(*args, **kwargs)
            except OperationalError as error:
                if not is_deadlock(error) or connection.in_atomic_block:
                    raise
        return service(*args, **kwargs)

    return retried
