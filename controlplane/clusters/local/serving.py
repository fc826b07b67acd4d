"""Endpoints of the local fleet and the engines that serve them, as objects in its store.

An endpoint says what is served and how often; the supervisor keeps as many engines (engines.py). An engine is what a
pod is elsewhere: it has a uid, restarts, readiness and an address. Imports no Django.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from controlplane.clusters import codec
from controlplane.clusters.documents import Consumer
from controlplane.clusters.endpoints import EndpointName, ObservedEndpoint
from controlplane.clusters.gateway import ClusterEvent, Kind
from controlplane.clusters.local.nodes import POOL_LABEL, LocalNode, valid_name
from controlplane.clusters.local.store import Session, Store, Stored
from controlplane.errors import Invalid

NAMESPACE = "local"
ENDPOINT_LABEL = "hearth.dev/endpoint"  # as on the pods of an endpoint
DIGEST_ANNOTATION = "hearth.dev/digest"
RECORD_KEYS_ANNOTATION = "hearth.dev/record-keys"
MOST_REPLICAS = 16
NODE_LOST = "NodeLost"  # the event of an engine that went with its node


@dataclass(frozen=True, slots=True)
class LocalEndpoint:
    """What is served: ``digest`` under the name ``model``, by ``replicas`` engines on nodes of ``pool`` ("": any).

    ``record_keys``: keyed digests of its requests are to be recorded from the beginning. ``at_once``: nobody routes to
    its engines, so those that are no longer wanted end without waiting for anybody to hear of it."""

    name: str
    uid: str
    digest: str
    replicas: int
    model: str
    pool: str
    created_at: datetime
    record_keys: bool = False
    at_once: bool = False


@dataclass(frozen=True, slots=True)
class EndpointReadiness:
    """The status of an endpoint object."""

    ready: int = 0


def endpoint_serve(
    store: Store,
    name: str,
    digest: str,
    *,
    replicas: int = 1,
    model: str = "",
    pool: str = "",
    record_keys: bool = False,
    at_once: bool = False,
) -> LocalEndpoint:
    """Have it served from now on; the same name again changes what there is. Invalid for what cannot be."""
    if not valid_name(name) or (pool and not valid_name(pool)):
        raise Invalid(
            "fleet:user:bad-name",
            f"{name!r:.80} or {pool!r:.80} cannot be the name of an endpoint or a pool.",
            next_step="Use lower case letters, digits and dashes, at most 63.",
        )
    replicas_check(replicas)
    with store.write() as session:
        known = session.get(Kind.ENDPOINT, name)
        before = codec.loads(LocalEndpoint, known.spec) if known is not None else None
        endpoint = LocalEndpoint(
            name=name,
            uid=before.uid if before is not None else str(uuid.uuid4()),
            digest=digest,
            replicas=replicas,
            model=model or name,
            pool=pool,
            created_at=before.created_at if before is not None else datetime.now(UTC),
            record_keys=record_keys,
            at_once=at_once,
        )
        endpoint_put(session, endpoint)
    return endpoint


def replicas_check(replicas: int) -> None:
    """Invalid for a number of engines that nobody may ask for."""
    if not 0 <= replicas <= MOST_REPLICAS:
        raise Invalid(
            "fleet:user:bad-replicas",
            f"{replicas} engines are no number for this.",
            next_step=f"Give a number from 0 to {MOST_REPLICAS}.",
        )


def endpoint_put(session: Session, endpoint: LocalEndpoint) -> None:
    """Write the endpoint; what is known of its engines stays."""
    known = session.get(Kind.ENDPOINT, endpoint.name)
    status = known.status if known is not None else None
    session.put(Kind.ENDPOINT, endpoint.name, endpoint.uid, spec=codec.dumps(endpoint), status=status)


def endpoint_end(store: Store, name: str) -> bool:
    """Serve it no more; False when nobody did. Its engines go when the supervisor has ended them."""
    with store.write() as session:
        return session.delete(Kind.ENDPOINT, name)


def endpoints_all(session: Session) -> list[LocalEndpoint]:
    return [codec.loads(LocalEndpoint, stored.spec) for stored in session.all(Kind.ENDPOINT)]


def endpoint_tell(session: Session, name: str, ready: int) -> None:
    """Write how many of its engines are ready."""
    stored = session.get(Kind.ENDPOINT, name)
    if stored is not None:
        status = codec.dumps(EndpointReadiness(ready))
        session.put(Kind.ENDPOINT, name, stored.uid, spec=stored.spec, status=status)


def observed_endpoint(stored: Stored) -> ObservedEndpoint:
    """The endpoint as the gateway reports it, in the fields of an InferenceEndpointConfig."""
    endpoint = codec.loads(LocalEndpoint, stored.spec)
    ready = codec.loads(EndpointReadiness, stored.status).ready if stored.status is not None else 0
    spec: dict[str, Any] = {"modelName": endpoint.model, "replicas": endpoint.replicas}
    if endpoint.pool:
        spec["nodeSelector"] = {POOL_LABEL: endpoint.pool}
    annotations = {DIGEST_ANNOTATION: endpoint.digest}
    if endpoint.record_keys:
        annotations[RECORD_KEYS_ANNOTATION] = "true"
    return ObservedEndpoint(
        of=EndpointName(Kind.ENDPOINT.value, NAMESPACE, endpoint.name),
        uid=endpoint.uid,
        generation=stored.generation,
        spec=spec,
        annotations=annotations,
        status=_status(ready, endpoint.replicas),
    )


def _status(ready: int, replicas: int) -> Mapping[str, Any]:
    complete = ready >= replicas
    over = f" {ready - replicas}{' more' if replicas else ''} will leave." if ready > replicas else ""
    condition = {
        "type": "DeploymentComplete",
        "status": "True" if complete else "False",
        "reason": "EnginesStarting" if not complete else "EnginesReady" if replicas else "NoneWanted",
        "message": (f"{min(ready, replicas)} of {replicas} engines are ready." if replicas else "No engine is wanted.")
        + over,
    }
    state = "DeploymentComplete" if complete else "DeploymentInProgress"
    return {"state": state, "replicas": replicas, "readyReplicas": ready, "conditions": [condition]}


def engines_all(session: Session) -> dict[str, Consumer]:
    """Consumers that are engines of an endpoint, by the name of their object."""
    found = ((stored.name, codec.loads(Consumer, stored.spec)) for stored in session.all(Kind.CONSUMER))
    return {name: consumer for name, consumer in found if ENDPOINT_LABEL in consumer.labels}


def engine_key(consumer: Consumer) -> str:
    """Begins with the node, so that it goes with it."""
    return f"{consumer.node_name}/{consumer.name.rpartition('/')[2]}"


def engine_put(session: Session, consumer: Consumer) -> None:
    session.put(Kind.CONSUMER, engine_key(consumer), consumer.uid, spec=codec.dumps(consumer), status=None)


def engines_unready(session: Session, node_name: str) -> None:
    """Nobody vouches for the node any more, so nobody does for its engines."""
    for consumer in engines_all(session).values():
        if consumer.node_name == node_name and consumer.ready:
            engine_put(session, replace(consumer, ready=False))


def placed(
    endpoints: Sequence[LocalEndpoint],
    engines: Collection[Consumer],
    nodes: Sequence[LocalNode],
    warm: Collection[tuple[str, str]],
) -> tuple[list[Consumer], list[Consumer]]:
    """Engines to make and engines to end. ``warm``: (node uid, digest) of the copies that are whole.

    A new one goes where the copy is, then where the fewest engines are; a node is never asked to hold two of one
    endpoint while another could.
    """
    made, ended = [], []
    kept = list(engines)
    for consumer in engines:
        endpoint = next((one for one in endpoints if one.name == consumer.labels[ENDPOINT_LABEL]), None)
        if endpoint is None or endpoint.digest not in consumer.digests:
            ended.append(consumer)
            kept.remove(consumer)
    for endpoint in endpoints:
        own = sorted((one for one in kept if one.labels[ENDPOINT_LABEL] == endpoint.name), key=lambda one: one.name)
        for consumer in own[endpoint.replicas :]:
            ended.append(consumer)
            kept.remove(consumer)
        able = [one for one in nodes if takes_engines(one, endpoint)]
        for _ in range(endpoint.replicas - len(own) if able else 0):
            node = min(able, key=lambda one: _rank(one, endpoint, kept, warm))
            kept.append(engine_made(endpoint, node))
            made.append(kept[-1])
    return made, ended


def takes_engines(node: LocalNode, endpoint: LocalEndpoint) -> bool:
    """Whether new engines of the endpoint may go there."""
    in_pool = not endpoint.pool or node.labels.get(POOL_LABEL) == endpoint.pool
    return in_pool and node.schedulable and not node.stopped


def _rank(
    node: LocalNode, endpoint: LocalEndpoint, engines: Collection[Consumer], warm: Collection[tuple[str, str]]
) -> tuple[int, bool, int, str]:
    there = [one for one in engines if one.node_uid == node.uid]
    same = sum(one.labels[ENDPOINT_LABEL] == endpoint.name for one in there)
    return same, (node.uid, endpoint.digest) not in warm, len(there), node.name


def engine_made(endpoint: LocalEndpoint, node: LocalNode) -> Consumer:
    """A new engine of the endpoint on the node; nothing is written."""
    uid = str(uuid.uuid4())
    return Consumer(
        uid=uid,
        name=f"{NAMESPACE}/{endpoint.name}-{uid[:8]}",
        node_name=node.name,
        node_uid=node.uid,
        digests=frozenset({endpoint.digest}),
        labels={ENDPOINT_LABEL: endpoint.name},
    )


def event_of(engine: Consumer, reason: str, message: str, run: int = 0) -> ClusterEvent:
    """Something that happens to the engine now; ``run`` is the restart count of the run that it is about."""
    return ClusterEvent(
        uid=str(uuid.uuid4()), at=datetime.now(UTC), object_kind="Engine", object_name=engine.name,
        object_uid=engine.uid, reason=reason, message=message[:1000], restart_count=run,
    )  # fmt: skip


def scheduled(engine: Consumer) -> ClusterEvent:
    """The beginning of its launch. The node's name is read from it (caches.domain.launches.events)."""
    return event_of(engine, "Scheduled", f"{engine.name} was placed on {engine.node_name}.")
