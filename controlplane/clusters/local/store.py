"""Objects with generations and a log of their changes, for list, watch and apply as an API server offers them.

An object's ``generation`` counts changes of its spec; the store's ``version`` counts every change of anything and is
what a watch token holds. The log is compacted; a token from before that is Gone.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from controlplane.clusters.gateway import EventType, Gone
from controlplane.clusters.local import database

KEEP_CHANGES = 20_000
_NUMBER = re.compile(r"[0-9]{1,18}")
COMPACT_EVERY = 256


@dataclass(frozen=True, slots=True)
class Stored:
    """One object; ``spec`` and ``status`` are canonical JSON texts."""

    kind: str
    name: str
    uid: str
    generation: int
    spec: str
    status: str | None


@dataclass(frozen=True, slots=True)
class Change:
    """What happened to one object; for Deleted the object is as it last was."""

    type: EventType
    version: int
    object: Stored


class Session:
    """One transaction's view of the store."""

    def __init__(self, connection: sqlite3.Connection, keep_changes: int) -> None:
        self.connection = connection
        self._keep_changes = keep_changes

    def get(self, kind: str, name: str) -> Stored | None:
        row = self.connection.execute(
            "SELECT kind, name, uid, generation, spec, status FROM objects WHERE kind=? AND name=?", (kind, name)
        ).fetchone()
        return Stored(*row) if row else None

    def all(self, kind: str) -> tuple[Stored, ...]:
        rows = self.connection.execute(
            "SELECT kind, name, uid, generation, spec, status FROM objects WHERE kind=? ORDER BY name", (kind,)
        )
        return tuple(Stored(*row) for row in rows)

    def put(self, kind: str, name: str, uid: str, *, spec: str, status: str | None) -> int:
        """Store an object whole and return its generation; storing what is there already changes nothing.

        Another uid under the name is another object: the old one is deleted first and the generation starts again.
        """
        known = self.get(kind, name)
        if known is not None and known.uid != uid:
            self.delete(kind, name)
            known = None
        if known is not None and known.spec == spec and known.status == status:
            return known.generation
        generation = 1 if known is None else known.generation + (known.spec != spec)
        version = self._log(EventType.ADDED if known is None else EventType.MODIFIED, kind, name)
        self.connection.execute(
            "INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?, ?, ?, ?)",
            (kind, name, uid, generation, version, spec, status),
        )
        return generation

    def delete(self, kind: str, name: str) -> bool:
        """Remove an object; False when there was none."""
        known = self.get(kind, name)
        if known is None:
            return False
        self.connection.execute("DELETE FROM objects WHERE kind=? AND name=?", (kind, name))
        self._log(EventType.DELETED, kind, name, known)
        return True

    def version(self) -> int:
        """The version of the last change, whether or not the log still has it."""
        row = self.connection.execute("SELECT seq FROM sqlite_sequence WHERE name='changes'").fetchone()
        return int(row[0]) if row else 0

    def meta(self, key: str) -> str:
        row = self.connection.execute("SELECT value FROM meta WHERE key=?", (key,)).fetchone()
        return str(row[0]) if row else ""

    def set_meta(self, key: str, value: str) -> None:
        self.connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    def token(self, kind: str) -> str:
        """From here a watch of the kind continues without a gap."""
        return f"{kind}.{self.meta('store')}.{self.version()}"

    def changes(self, kind: str, token: str) -> tuple[tuple[Change, ...], str]:
        """What happened to the kind after the token, and the next token. Several changes of one object become one."""
        after = self._parse(kind, token)
        rows = self.connection.execute(
            "SELECT c.version, c.type, c.name, c.uid, c.generation, c.spec, c.status,"
            " o.uid, o.generation, o.spec, o.status"
            " FROM changes c LEFT JOIN objects o ON o.kind=c.kind AND o.name=c.name AND o.version=c.version"
            " WHERE c.version>? AND c.kind=? ORDER BY c.version",
            (after, kind),
        )
        return tuple(_coalesced(kind, rows)), self.token(kind)

    def _parse(self, kind: str, token: str) -> int:
        of_kind, _, rest = token.partition(".")
        store, _, number = rest.partition(".")
        if of_kind != kind or store != self.meta("store") or not _NUMBER.fullmatch(number):
            raise Gone("The token is of another kind or another fleet.")
        if not int(self.meta("compacted")) <= int(number) <= self.version():
            raise Gone("The token is older than the log of changes.")
        return int(number)

    def _log(self, change: EventType, kind: str, name: str, gone: Stored | None = None) -> int:
        last = (gone.uid, gone.generation, gone.spec, gone.status) if gone else (None, None, None, None)
        cursor = self.connection.execute(
            "INSERT INTO changes (kind, name, type, uid, generation, spec, status) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (kind, name, change.value, *last),
        )
        version = int(cursor.lastrowid or 0)
        if version % min(COMPACT_EVERY, self._keep_changes) == 0:
            self.compact(version - self._keep_changes)
        return version

    def compact(self, version: int) -> None:
        """Forget the changes up to and including a version."""
        if version > int(self.meta("compacted")):
            self.connection.execute("DELETE FROM changes WHERE version<=?", (version,))
            self.set_meta("compacted", str(version))


class Store:
    """The store in one fleet folder. Nothing is kept open between calls."""

    def __init__(self, folder: Path, *, keep_changes: int = KEEP_CHANGES) -> None:
        self.folder = folder
        self.keep_changes = keep_changes

    @contextmanager
    def read(self) -> Iterator[Session]:
        """One consistent view."""
        with self.connected() as connection, database.transaction(connection, write=False):
            yield Session(connection, self.keep_changes)

    @contextmanager
    def write(self) -> Iterator[Session]:
        """One change, whole or not at all. Throttled when other writers keep the store busy."""
        with self.connected() as connection, database.transaction(connection, write=True):
            yield Session(connection, self.keep_changes)

    @contextmanager
    def connected(self) -> Iterator[sqlite3.Connection]:
        """A connection for several transactions of one caller; see ``Store.session``."""
        with database.database_open(self.folder) as connection:
            yield connection

    @contextmanager
    def session(self, connection: sqlite3.Connection) -> Iterator[Session]:
        """One consistent view over a connection that is already open."""
        with database.translated(self.folder), database.transaction(connection, write=False):
            yield Session(connection, self.keep_changes)


def _coalesced(kind: str, rows: sqlite3.Cursor) -> Iterator[Change]:
    fresh: set[str] = set()  # added since the token, and not told yet
    for version, type_, name, *states in rows:
        gone, current = states[:4], states[4:]
        change = EventType(type_)
        if change is EventType.DELETED:
            if name not in fresh:
                yield Change(change, version, Stored(kind, name, *gone))
            fresh.discard(name)
            continue
        if change is EventType.ADDED:
            fresh.add(name)
        if current[0] is None:
            continue  # a later change of the same object tells it
        yield Change(EventType.ADDED if name in fresh else change, version, Stored(kind, name, *current))
        fresh.discard(name)
