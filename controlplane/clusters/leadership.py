"""Who watches a cluster: the process that holds its advisory lock in PostgreSQL.

The lock lives as long as one connection, so a process that dies, or loses its database, is followed by another without
anybody's clock being asked. Two may overlap for a moment: what a watcher writes is guarded and may be repeated.
"""

from __future__ import annotations

import hashlib
import logging
from contextlib import suppress
from uuid import UUID

from django.db import Error, connection

log = logging.getLogger(__name__)


class Leadership:
    """The clusters that this process leads. Used from one thread; the connection is nobody else's."""

    def __init__(self) -> None:
        self._connection = connection.copy()
        # A connection that went back to a pool would keep its locks.
        self._connection.settings_dict["OPTIONS"].pop("pool", None)
        self._held: set[UUID] = set()
        self._told: set[UUID] = set()

    def confirm(self) -> None:
        """Ask whether the connection lives; with it the locks are gone. Raises django.db.Error."""
        if self._held:
            try:
                self._ask("SELECT 1", [])
            except Error:
                self.close()
                raise

    def lead(self, cluster_id: UUID, name: str) -> bool:
        """Whether this process leads the cluster now, taking the lead where nobody has it."""
        if cluster_id in self._held:
            return True
        try:
            taken = self._ask("SELECT pg_try_advisory_lock(%s)", [_key(cluster_id)])
        except Error:
            self.close()
            raise
        if taken:
            self._held.add(cluster_id)
            self._told.discard(cluster_id)
        elif cluster_id not in self._told:
            self._told.add(cluster_id)
            log.info("%s is watched by another process; waiting in case it ends", name)
        return taken

    def leave(self, cluster_id: UUID) -> None:
        """Let others lead."""
        if cluster_id in self._held:
            self._held.discard(cluster_id)
            with suppress(Error):
                self._ask("SELECT pg_advisory_unlock(%s)", [_key(cluster_id)])

    def close(self) -> None:
        """Leave everything."""
        self._held.clear()
        with suppress(Error):
            self._connection.close()

    def _ask(self, question: str, values: list[int]) -> bool:
        with self._connection.cursor() as cursor:
            cursor.execute(question, values)
            row = cursor.fetchone()
        return bool(row and row[0])


def _key(cluster_id: UUID) -> int:
    """The lock's number: 64 bits of its own name, so that it meets no other use of advisory locks."""
    return int.from_bytes(hashlib.sha256(b"hearth watch " + cluster_id.bytes).digest()[:8], "big", signed=True)
