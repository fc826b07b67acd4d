"""ClusterGateway on the local fleet's store. Images and workloads are NotApplicable: its supervisor runs engines for
the endpoints that ``fleet serve`` puts there, and nobody else's."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NoReturn

from controlplane.clusters import codec
from controlplane.clusters.documents import Consumer, Manifest, NodeCacheSpec, NodeCacheStatus, Origin
from controlplane.clusters.gateway import (
    Capabilities,
    ClusterEvent,
    EventType,
    ImageHolder,
    ImagePresence,
    Kind,
    Listing,
    NotApplicable,
    NotFound,
    Observed,
    ObservedNodeCache,
    PoolAgent,
    Unreachable,
    WatchEvent,
    Workload,
)
from controlplane.clusters.local import database, leases, manifests, nodes, secrets
from controlplane.clusters.local.endpoints import QUIET_KINDS, LocalEndpoints
from controlplane.clusters.local.engine_logs import log_read
from controlplane.clusters.local.serving import observed_endpoint
from controlplane.clusters.local.store import KEEP_CHANGES, Store, Stored

POLL_SECONDS = 0.2
log = logging.getLogger(__name__)


class LocalGateway(LocalEndpoints):
    """See ClusterGateway. ``fleet`` is the fleet's folder; every call fails Unreachable while there is none."""

    def __init__(self, fleet: Path, *, keep_changes: int = KEEP_CHANGES, poll_seconds: float = POLL_SECONDS) -> None:
        self.fleet = Path(fleet)
        self._poll_seconds = poll_seconds
        self._store = Store(self.fleet, keep_changes=keep_changes)

    def capabilities(self) -> Capabilities:
        with self._store.read():
            return Capabilities(taints=True, server_side_apply=True, version=f"local/{database.SCHEMA_VERSION}")

    def list(self, kind: Kind) -> Listing:
        if kind is Kind.NODE:
            leases.leases_expire(self._store)
        with self._store.read() as session:
            items = tuple(_observed(stored) for stored in session.all(kind))
            uid = session.meta("store") if kind is Kind.NODE else ""
            return Listing(items=items, token=session.token(kind), cluster_uid=uid)

    def watch(self, kind: Kind, token: str, timeout_seconds: float) -> Iterator[WatchEvent]:
        """See ClusterGateway.watch. Ends with a bookmark, so that a quiet kind's token never grows too old."""
        deadline = time.monotonic() + timeout_seconds
        pause = timeout_seconds if kind in QUIET_KINDS else self._poll_seconds
        with self._store.connected() as connection:
            while True:
                last = time.monotonic() >= deadline
                if kind is Kind.NODE:
                    leases.leases_expire(self._store)
                with self._store.session(connection) as session:
                    changes, following = session.changes(kind, token)
                store = token.rpartition(".")[0]
                for change in changes:
                    yield WatchEvent(change.type, kind, f"{store}.{change.version}", _observed(change.object))
                token = following
                if last:
                    yield WatchEvent(EventType.BOOKMARK, kind, token, None)
                    return
                time.sleep(min(pause, max(0.0, deadline - time.monotonic())))

    def consumers(self, node_name: str, node_uid: str) -> tuple[Consumer, ...]:
        with self._store.read() as session:
            _incarnation(session_node=nodes.node_get(session, node_name), uid=node_uid)
            found = (codec.loads(Consumer, stored.spec) for stored in session.all(Kind.CONSUMER))
            return tuple(consumer for consumer in found if consumer.node_uid == node_uid)

    def apply_node_cache(self, spec: NodeCacheSpec, *, take_over: bool = False) -> int:
        with self._store.write() as session:
            _incarnation(session_node=nodes.node_get(session, spec.node_name), uid=spec.node_uid)
            known = session.get(Kind.NODE_CACHE, spec.node_name)
            status = known.status if known is not None and known.uid == spec.node_uid else None
            return session.put(Kind.NODE_CACHE, spec.node_name, spec.node_uid, spec=codec.dumps(spec), status=status)

    def delete_node_cache(self, node_name: str, node_uid: str) -> None:
        with self._store.write() as session:
            known = session.get(Kind.NODE_CACHE, node_name)
            if known is not None and known.uid == node_uid:
                session.delete(Kind.NODE_CACHE, node_name)

    def apply_manifest(self, manifest: Manifest, origin: Origin | None = None) -> None:
        with self._store.write() as session:
            manifests.manifest_put(session, manifest)
            if origin is not None:
                manifests.origin_put(session, manifest.digest, origin)

    def delete_manifest(self, digest: str) -> None:
        with self._store.write() as session:
            manifests.manifest_delete(session, digest)

    def manifests(self) -> Iterator[tuple[Manifest, Origin | None]]:
        with self._store.read() as session:
            published = manifests.digests(session)
        for digest in published:
            origin = None
            try:
                with self._store.read() as session:
                    manifest = manifests.manifest_get(session, digest)
                    with contextlib.suppress(NotFound, Unreachable):
                        origin = manifests.origin_get(session, digest)
            except NotFound:
                continue  # removed meanwhile
            except Unreachable as error:
                log.warning("%s", error)
                continue
            yield manifest, origin

    def apply_secret(self, name: str, data: Mapping[str, str]) -> None:
        with self._store.read(), database.translated(self.fleet):
            secrets.secret_write(self.fleet, name, data)

    def delete_secret(self, name: str) -> None:
        with self._store.read(), database.translated(self.fleet):
            secrets.secret_delete(self.fleet, name)

    def set_node_labels(self, node_name: str, node_uid: str, labels: Mapping[str, str | None]) -> None:
        with self._store.write() as session:
            merged = {**nodes.node_get(session, node_name, node_uid).labels, **labels}
            kept = {label: value for label, value in merged.items() if value is not None}
            nodes.node_change(session, node_name, node_uid, labels=kept)

    def set_node_taint(self, node_name: str, node_uid: str, taint: str, present: bool) -> None:
        with self._store.write() as session:
            taints = set(nodes.node_get(session, node_name, node_uid).taints) - {taint}
            nodes.node_change(
                session, node_name, node_uid, taints=tuple(sorted(taints | {taint} if present else taints))
            )

    def apply_agent(self, agent: PoolAgent) -> None:
        _no("agents to place: its supervisor starts one on every node")

    def delete_agent(self, pool: str) -> None:
        _no("agents to take away: its supervisor stops them")

    def has_agents(self, pool: str) -> bool:
        _no("agents to take away: its supervisor stops them")

    def apply_image_holder(self, holder: ImageHolder) -> None:
        _no("container images")

    def delete_image_holder(self, pool: str, reference: str) -> None:
        _no("container images")

    def renew_image_holder(self, pool: str, reference: str, node_name: str) -> None:
        _no("container images")

    def image_holders(self, pool: str) -> tuple[str, ...]:
        _no("container images")

    def image_presence(self, pool: str) -> tuple[ImagePresence, ...]:
        _no("container images")

    def apply_pull_secret(self, name: str, registry: str, username: str, password: str) -> None:
        _no("container images")

    def delete_pull_secret(self, name: str) -> None:
        _no("container images")

    def images_listed(self, node_name: str, node_uid: str) -> frozenset[str] | None:
        _no("container images")

    def apply_workload(self, workload: Workload) -> None:
        _no("workloads")

    def delete_workload(self, namespace: str, name: str) -> None:
        _no("workloads")

    def logs(
        self,
        consumer_uid: str,
        max_bytes: int,
        *,
        name: str = "",
        container: str = "",
        restart_count: int | None = None,
    ) -> bytes:
        with self._store.read():
            return log_read(self.fleet, consumer_uid, restart_count, max_bytes)


def _no(what: str) -> NoReturn:
    raise NotApplicable(f"The local fleet has no {what}.")


def _incarnation(*, session_node: nodes.LocalNode, uid: str) -> None:
    if session_node.uid != uid:
        raise NotFound(f"Node {session_node.name} is {session_node.uid} now; {uid} is gone.")


def _observed(stored: Stored) -> Observed:
    return _READERS[Kind(stored.kind)](stored)


def _observed_node_cache(stored: Stored) -> ObservedNodeCache:
    return ObservedNodeCache(
        node_name=stored.name,
        node_uid=stored.uid,
        generation=stored.generation,
        spec=codec.loads(NodeCacheSpec, stored.spec),
        status=None if stored.status is None else codec.loads(NodeCacheStatus, stored.status, ignore_unknown=True),
    )


_READERS: Mapping[Kind, Callable[[Stored], Observed]] = {
    Kind.NODE: nodes.observed_node,
    Kind.NODE_CACHE: _observed_node_cache,
    Kind.CONSUMER: lambda stored: codec.loads(Consumer, stored.spec),
    Kind.EVENT: lambda stored: codec.loads(ClusterEvent, stored.spec),
    Kind.ENDPOINT: observed_endpoint,
}
