"""One worker at a time on one thing, across processes: PostgreSQL advisory locks.

They belong to the database session, so a killed worker releases its locks at once. They need a direct connection (or a
pooler in session mode); nothing in Hearth is *wrong* without them, work is only repeated.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection


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
