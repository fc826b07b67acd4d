"""NodeLink on the local fleet's store: how an agent process hears what it must do and says what it found.

Imports no Django. Bound to one incarnation: once the node's uid is another one, every write is refused.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from controlplane.clusters import codec
from controlplane.clusters.documents import Desired, Manifest, NodeCacheSpec, NodeCacheStatus, Origin
from controlplane.clusters.gateway import ClusterEvent, Conflict, GatewayError, Kind, NotFound
from controlplane.clusters.local import manifests, nodes, secrets
from controlplane.clusters.local.store import Session, Store

POLL_SECONDS = 0.2
KEEP_EVENTS = 500


class LocalLink:
    """See caches.agent.link.NodeLink."""

    def __init__(self, fleet_dir: Path, node_name: str, node_uid: str, *, poll_seconds: float = POLL_SECONDS) -> None:
        self.fleet = Path(fleet_dir)
        self.node_name = node_name
        self.node_uid = node_uid
        self._poll_seconds = poll_seconds
        self._store = Store(self.fleet)

    def desired(self) -> Desired | None:
        with self._store.read() as session:
            stored = session.get(Kind.NODE_CACHE, self.node_name)
            if stored is None or stored.uid != self.node_uid:
                return None
            return Desired(generation=stored.generation, spec=codec.loads(NodeCacheSpec, stored.spec))

    def wait(self, known_generation: int, timeout_seconds: float) -> bool:
        """See NodeLink.wait. A spec that is gone is no news: the agent goes on with the last one."""
        deadline = time.monotonic() + timeout_seconds
        seen = None
        with self._store.connected() as connection:
            while True:
                # data_version moves when another process wrote anything: most polls read nothing else.
                version = connection.execute("PRAGMA data_version").fetchone()[0]
                if version != seen:
                    seen = version
                    with self._store.session(connection) as session:
                        generation = self._generation(session)
                    if generation is not None and generation != known_generation:
                        return True
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    return False
                time.sleep(min(self._poll_seconds, remaining))

    def manifest(self, digest: str) -> Manifest:
        with self._store.read() as session:
            return manifests.manifest_get(session, digest)

    def origin(self, digest: str) -> Origin:
        with self._store.read() as session:
            return manifests.origin_get(session, digest)

    def secret(self, name: str) -> Mapping[str, str]:
        return secrets.secret_read(self.fleet, name)

    def report(self, status: NodeCacheStatus) -> None:
        """See NodeLink.report. The first report may come before any spec: it makes the object, with an empty spec, so
        that a node's capacity is known before anything is planned for it."""
        if (status.node_name, status.node_uid) != (self.node_name, self.node_uid):
            raise Conflict(f"This link writes for {self.node_name} {self.node_uid} only.")
        with self._store.write() as session:
            try:
                nodes.node_get(session, self.node_name, self.node_uid)
            except NotFound as error:
                raise Conflict(str(error)) from error
            known = session.get(Kind.NODE_CACHE, self.node_name)
            empty = NodeCacheSpec(node_name=self.node_name, node_uid=self.node_uid, pool="")
            spec = codec.dumps(empty) if known is None else known.spec
            session.put(Kind.NODE_CACHE, self.node_name, self.node_uid, spec=spec, status=codec.dumps(status))

    def event(self, reason: str, message: str) -> None:
        """Best effort: an event that cannot be stored is dropped."""
        event = ClusterEvent(
            uid=str(uuid.uuid4()),
            at=datetime.now(UTC),
            object_kind=Kind.NODE.value,
            object_name=self.node_name,
            object_uid=self.node_uid,
            reason=reason,
            message=message[:1000],
        )
        with contextlib.suppress(GatewayError), self._store.write() as session:
            event_put(session, event)

    def disk(self) -> tuple[int, int] | None:
        with self._store.read() as session:
            node = nodes.node_get(session, self.node_name, self.node_uid)
        return node.capacity_bytes, nodes.other_bytes(self.fleet, self.node_uid)

    def _generation(self, session: Session) -> int | None:
        stored = session.get(Kind.NODE_CACHE, self.node_name)
        return stored.generation if stored is not None and stored.uid == self.node_uid else None


def event_put(session: Session, event: ClusterEvent) -> None:
    """Store an event and forget the oldest ones. Names sort by time."""
    name = f"{event.at.timestamp():017.6f}-{event.uid}"
    session.put(Kind.EVENT, name, event.uid, spec=codec.dumps(event), status=None)
    surplus = session.connection.execute(
        "SELECT name FROM objects WHERE kind=? ORDER BY name DESC LIMIT -1 OFFSET ?", (Kind.EVENT.value, KEEP_EVENTS)
    ).fetchall()
    for (old,) in surplus:
        session.delete(Kind.EVENT, old)
