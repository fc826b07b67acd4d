"""The local fleet's one SQLite file: opening it, transactions, and its failures in the gateway's words.

Many processes write at once (agents, supervisor, worker, watcher, commands). A connection lives for one transaction or
one watch, never longer: it is cheap to open, safe across forks and threads, and never reads a file that was replaced.
"""

from __future__ import annotations

import fcntl
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from controlplane.clusters import codec
from controlplane.clusters.gateway import GatewayError, Throttled, Unreachable

FILE_NAME = "fleet.sqlite3"
SCHEMA_VERSION = 1
BUSY_SECONDS = 5.0  # how long a writer queues before it is told to slow down

_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS objects (
    kind TEXT NOT NULL, name TEXT NOT NULL, uid TEXT NOT NULL, generation INTEGER NOT NULL, version INTEGER NOT NULL,
    spec TEXT NOT NULL, status TEXT, PRIMARY KEY (kind, name)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS changes (
    version INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, name TEXT NOT NULL, type TEXT NOT NULL,
    uid TEXT, generation INTEGER, spec TEXT, status TEXT
);
CREATE TABLE IF NOT EXISTS leases (
    name TEXT PRIMARY KEY, uid TEXT NOT NULL, renewed_at REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS manifests (
    digest TEXT NOT NULL, part INTEGER NOT NULL, parts INTEGER NOT NULL, checksum TEXT NOT NULL, data BLOB NOT NULL,
    PRIMARY KEY (digest, part)
);
"""


def database_create(folder: Path) -> None:
    """Make the folder and an empty store in it; an existing one is left as it is. OSError when it cannot be made."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (folder / "create.lock").open("w") as lock:
        # WAL mode is a change of the file itself and does not wait for others, hence the lock.
        fcntl.flock(lock, fcntl.LOCK_EX)
        with translated(folder):
            connection = sqlite3.connect(folder / FILE_NAME, timeout=BUSY_SECONDS, isolation_level=None)
            try:
                _check_version(connection, folder, empty_is_fine=True)
                connection.execute("PRAGMA journal_mode=WAL")
                # One transaction: the disk is waited for once, and nobody ever sees half of it.
                connection.executescript(f"BEGIN IMMEDIATE;{_SCHEMA}COMMIT;")
                connection.execute("INSERT OR IGNORE INTO meta VALUES ('store', ?)", (secrets.token_hex(8),))
                connection.execute("INSERT OR IGNORE INTO meta VALUES ('compacted', '0')")
                connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
            finally:
                connection.close()
        (folder / FILE_NAME).chmod(0o600)


@contextmanager
def database_open(folder: Path, *, busy_seconds: float = BUSY_SECONDS) -> Iterator[sqlite3.Connection]:
    """A connection in autocommit mode. Unreachable when there is no fleet, Throttled when it stays locked."""
    path = folder / FILE_NAME
    with translated(folder):
        if not path.exists():
            raise Unreachable(f"There is no fleet in {folder}. Start one with: manage.py fleet run")
        # mode=rw: a reader must never create an empty fleet by looking for one.
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=busy_seconds, isolation_level=None
        )
        try:
            _check_version(connection, folder)
            connection.execute("PRAGMA synchronous=NORMAL")
            yield connection
        finally:
            connection.close()


@contextmanager
def transaction(connection: sqlite3.Connection, *, write: bool) -> Iterator[sqlite3.Connection]:
    """All or nothing. A writer takes its lock first, so that nothing it read can be outdated when it writes."""
    connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
    try:
        yield connection
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


@contextmanager
def translated(folder: Path) -> Iterator[None]:
    """SQLite's and the file system's failures, and objects that cannot be read, as GatewayErrors."""
    try:
        yield
    except GatewayError:
        raise
    except sqlite3.OperationalError as error:
        if "locked" in str(error) or "busy" in str(error):
            raise Throttled(f"The fleet in {folder} is busy: {error}", retry_after_seconds=1.0) from error
        raise Unreachable(f"The fleet in {folder} does not answer: {error}") from error
    except (sqlite3.DatabaseError, OSError, codec.DecodeError) as error:
        raise Unreachable(f"The fleet in {folder} cannot be read: {error}") from error


def _check_version(connection: sqlite3.Connection, folder: Path, *, empty_is_fine: bool = False) -> None:
    found = connection.execute("PRAGMA user_version").fetchone()[0]
    if found != SCHEMA_VERSION and not (found == 0 and empty_is_fine):
        raise Unreachable(
            f"The fleet in {folder} has format {found}, this version reads {SCHEMA_VERSION}. Remove the folder, or run"
            " the version that made it."
        )
