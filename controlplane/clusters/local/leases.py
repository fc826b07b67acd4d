"""Who says that a node is there. A lease that is not renewed makes its readiness unknown, whoever notices first."""

from __future__ import annotations

import time
from collections.abc import Iterable

from controlplane.clusters.gateway import Kind
from controlplane.clusters.local.nodes import node_set_ready
from controlplane.clusters.local.serving import engines_unready
from controlplane.clusters.local.store import Session, Store

LEASE_SECONDS = 6.0
RENEW_SECONDS = 1.5


def leases_renew(session: Session, nodes: Iterable[tuple[str, str]]) -> None:
    """The supervisor vouches for these (name, uid). Leases are no objects: renewing one wakes no watch."""
    now = time.time()
    session.connection.executemany(
        "INSERT OR REPLACE INTO leases VALUES (?, ?, ?)", [(name, uid, now) for name, uid in nodes]
    )


def lease_end(session: Session, name: str) -> None:
    session.connection.execute("DELETE FROM leases WHERE name=?", (name,))


def leases_expire(store: Store) -> None:
    """Make the readiness of every node unknown whose lease ran out, and its engines not ready. Writes only when there
    is one."""
    with store.read() as session:
        if not _expired(session):
            return
    with store.write() as session:
        for name, uid in _expired(session):
            node_set_ready(session, name, uid, None)
            engines_unready(session, name)
            lease_end(session, name)


def _expired(session: Session) -> list[tuple[str, str]]:
    rows = session.connection.execute(
        "SELECT l.name, l.uid FROM leases l JOIN objects o ON o.kind=? AND o.name=l.name AND o.uid=l.uid"
        # abs: a clock that was set back must not keep a lease alive for ever
        " WHERE abs(? - l.renewed_at) > ?",
        (Kind.NODE.value, time.time(), LEASE_SECONDS),
    )
    return list(rows)
