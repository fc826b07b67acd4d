"""What launches happened amid, from the rows around them: node, version and endpoint, and what was there before.

Everything is read for a batch at a time; the launches of the batch itself count with what is newly known of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import connection
from django.db.models import Q

from caches.domain.launches.labels import NEW_NODE_SECONDS, Circumstances
from caches.domain.launches.observations import Observation
from caches.domain.launches.timeline import Timeline
from caches.domain.launches.words import LaunchState
from caches.models import Launch, ModelVersion
from caches.models.launches import NODE_LOST_REASONS
from controlplane.clusters.models import Node
from controlplane.serving.models import Endpoint, Instance

# A pod that begins this long after a node of its endpoint was lost takes the place of one that ran there.
REPLACES_WITHIN = timedelta(minutes=15)
# The watcher hears of a loss after who replaces it has, and of what was lost with it a little earlier or later.
HEARD_WITHIN = timedelta(seconds=10)
_NEXT, _NEVER = timedelta(microseconds=1), datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Rows that the observations name, None where there is none (any more); ``pod`` is the instance's name."""

    node: Node | None = None
    endpoint: Endpoint | None = None
    version: ModelVersion | None = None
    digest: str = ""
    pod: str = ""


@dataclass(frozen=True, slots=True)
class Start:
    """A launch with what follows from its observations alone."""

    launch: Launch
    around: Surroundings
    timeline: Timeline

    @property
    def began(self) -> datetime:
        return self.timeline.started_at or self.launch.began_at

    @property
    def endpoint_name(self) -> str:
        """One that was deleted and made again serves the same to whoever asks for it: launches know it by its name."""
        return self.around.endpoint.full_name if self.around.endpoint is not None else self.launch.endpoint_name

    @property
    def node_id(self) -> UUID | None:
        return self.around.node.pk if self.around.node is not None else None


def fact(seen: Iterable[Observation], name: str) -> str:
    """What the observations say of ``name``; of several the first in their order, "" for nothing."""
    said = [(one, value) for one in seen for known, value in one.facts if known == name and value]
    return min(said, key=lambda pair: _by_time(pair[0]))[1] if said else ""


def surroundings_of(pairs: Sequence[tuple[Launch, Sequence[Observation]]]) -> list[Surroundings]:
    """Of each launch, by the names in its observations and by the instance with its pod's uid; five statements."""
    uids = [launch.pod_uid for launch, _ in pairs]
    instances = {
        (one.endpoint.cluster_id, one.uid): one
        for one in Instance.objects.filter(uid__in=uids)
        .select_related("endpoint")
        .only("uid", "name", "digest", "node", "endpoint__cluster")
    }
    named = [fact(seen, "node_uid") for _, seen in pairs]
    known = {launch.node_id for launch, _ in pairs} | {one.node_id for one in instances.values()}
    nodes = Node.objects.filter(Q(uid__in={*named} - {""}) | Q(pk__in=known - {None})).select_related("pool")
    by_key: dict[UUID | None, Node] = {one.pk: one for one in nodes}
    by_uid = {(one.cluster_id, one.uid): one for one in by_key.values()}
    endpoints = _endpoints({launch.endpoint_id for launch, _ in pairs} | {i.endpoint_id for i in instances.values()})
    by_name = _endpoints_named(pairs)
    found = []
    for (launch, seen), node_uid in zip(pairs, named, strict=True):
        instance = instances.get((launch.cluster_id, launch.pod_uid))
        nearest = [by_uid.get((launch.cluster_id, node_uid)), by_key.get(instance.node_id if instance else None)]
        found.append(
            Surroundings(
                next((node for node in [*nearest, by_key.get(launch.node_id)] if node is not None), None),
                endpoints.get(instance.endpoint_id if instance is not None else launch.endpoint_id)
                or by_name.get((launch.cluster_id, fact(seen, "endpoint"))),
                digest=fact(seen, "digest") or (instance.digest if instance is not None else "") or launch.digest,
                pod=instance.name if instance is not None else "",
            )
        )
    versions = _versions({one.digest for one in found if one.digest})
    return [replace(one, version=versions.get(one.digest)) for one in found]


def circumstances_of(starts: Sequence[Start]) -> list[Circumstances]:
    """What classify() decides by, of each; launches that are assembled later change nothing of these."""
    stored = _stored_before(starts)
    losses = _losses(starts)
    firsts: dict[tuple[UUID, str], datetime] = {}
    served: dict[tuple[UUID, str, str], datetime] = {}
    ready_on: dict[UUID, datetime] = {}
    for one in starts:
        if one.node_id is not None and one.around.digest:
            place = (one.node_id, one.around.digest)
            firsts[place] = min(firsts.get(place, one.began), one.began)
        ready = one.timeline.ready_at
        if one.timeline.state is LaunchState.READY and ready is not None:
            what, since = _served(one), max(ready, one.began + _NEXT)
            served[what] = min(served.get(what, since), since)
            if one.node_id is not None:
                ready_on[one.node_id] = min(ready_on.get(one.node_id, since), since)
    found = []
    for one, (launched, was_served, node_served) in zip(starts, stored, strict=True):
        node, digest, began = one.around.node, one.around.digest, one.began
        first = new = lost = on_node = None
        if node is not None and digest:
            first = not (launched or firsts[node.pk, digest] < began)
        if one.endpoint_name and digest:
            since = served.get(_served(one), _NEVER)
            new = not (was_served or since <= began)
        if one.around.endpoint is not None and one.launch.restart_count == 0:
            lost = any(loss.replaced_by(one) for loss in losses[one.around.endpoint.pk])
        age = max(0.0, (began - node.joined_at).total_seconds()) if node is not None else None
        if node is not None:
            on_node = node_served or ready_on.get(node.pk, _NEVER) <= began
        found.append(Circumstances(one.launch.restart_count, age, first, new, lost, on_node))
    return found


def _served(one: Start) -> tuple[UUID, str, str]:
    return one.launch.cluster_id, one.endpoint_name, one.around.digest


def _stored_before(starts: Sequence[Start]) -> list[tuple[bool, bool, bool]]:
    """(its version was launched on its node, its endpoint served its version, its node served anything) before it
    began, of each: by launches that are not among these. The last is not looked up for nodes that are old anyway."""
    columns: list[list[Any]] = [
        [one.node_id for one in starts],
        [one.around.digest for one in starts],
        [one.launch.cluster_id for one in starts],
        [one.endpoint_name for one in starts],
        [one.began for one in starts],
        [one.node_id if _is_young(one) else None for one in starts],
    ]
    batch = [one.launch.pk for one in starts]
    with connection.cursor() as cursor:
        cursor.execute(_BEFORE, [batch, batch, batch, *columns])
        return [(first, second, third) for first, second, third in cursor.fetchall()]


def _is_young(one: Start) -> bool:
    node = one.around.node
    return node is not None and (one.began - node.joined_at).total_seconds() < NEW_NODE_SECONDS


@dataclass(frozen=True, slots=True)
class _Loss:
    """An instance that was lost with its node ``at`` that time; ``ended`` if it is known that it did."""

    key: UUID
    node_id: UUID | None
    at: datetime
    ended: datetime | None

    def replaced_by(self, start: Start) -> bool:
        if self.key == start.launch.pk or self.node_id == start.node_id:
            return False
        since = start.began - REPLACES_WITHIN
        there = self.ended is None or self.ended >= self.at - HEARD_WITHIN
        return there and since <= self.at <= start.began + HEARD_WITHIN


def _losses(starts: Sequence[Start]) -> Mapping[UUID, list[_Loss]]:
    """Ready launches by their endpoint whose node went away, or who say so, shortly before one of ``starts``."""
    found: dict[UUID, list[_Loss]] = defaultdict(list)
    endpoints = {one.around.endpoint.pk for one in starts if one.around.endpoint is not None}
    if not endpoints:
        return found
    since = min(one.began for one in starts) - REPLACES_WITHIN
    until = max(one.began for one in starts) + HEARD_WITHIN
    gone = list(Node.objects.filter(lost_at__gte=since, lost_at__lte=until).values_list("pk", "lost_at"))
    lost_at = {key: at for key, at in gone if at is not None}
    said = Q(end_reason__in=NODE_LOST_REASONS, ended_at__gte=since, ended_at__lte=until)
    rows = Launch.objects.filter(Q(node__in=lost_at) | said, endpoint__in=endpoints, state=LaunchState.READY)
    now_known = {one.launch.pk for one in starts}
    columns = ("pk", "endpoint_id", "node_id", "ended_at", "end_reason")
    listed: list[tuple[Any, ...]] = [row for row in rows.order_by().values_list(*columns) if row[0] not in now_known]
    listed += [
        (one.launch.pk, one.around.endpoint.pk, one.node_id, one.timeline.ended_at, one.timeline.end_reason)
        for one in starts
        if one.around.endpoint is not None and one.timeline.state is LaunchState.READY
    ]
    for key, endpoint, node, ended, reason in listed:
        if reason in NODE_LOST_REASONS and ended is not None:
            found[endpoint].append(_Loss(key, node, ended, ended))
        if node in lost_at:
            found[endpoint].append(_Loss(key, node, lost_at[node], ended))
    return found


def _endpoints(keys: Collection[UUID | None]) -> Mapping[UUID | None, Endpoint]:
    rows = Endpoint.objects.filter(pk__in=[key for key in keys if key is not None])
    return {row.pk: row for row in rows.only("cluster", "namespace", "name")}


def _endpoints_named(pairs: Sequence[tuple[Launch, Sequence[Observation]]]) -> Mapping[tuple[UUID, str], Endpoint]:
    """By the names in observations: a pod that was never placed has no instance."""
    named = {(launch.cluster_id, name) for launch, seen in pairs if (name := fact(seen, "endpoint"))}
    rows = Endpoint.objects.filter(
        cluster__in={cluster for cluster, _ in named}, name__in={name.rpartition("/")[2] for _, name in named}
    )
    found = {
        (row.cluster_id, row.full_name): row for row in rows.only("cluster", "namespace", "name").order_by("gone_at")
    }
    return {key: row for key, row in found.items() if key in named}


def _versions(digests: Collection[str]) -> Mapping[str, ModelVersion]:
    """Of several versions with the same weights the one that was registered first."""
    rows = ModelVersion.objects.filter(artifact__digest__in=digests).select_related("model", "artifact")
    rows = rows.defer("artifact__manifest").order_by("-pk")
    return {row.artifact.digest: row for row in rows if row.artifact is not None}


def _by_time(one: Observation) -> tuple[bool, str, str, str]:
    return (one.at is None, one.at.isoformat() if one.at is not None else "", one.mark, repr(one.facts))


_LAUNCHES = Launch._meta.db_table
_BEFORE = f"""
    SELECT EXISTS (SELECT FROM {_LAUNCHES} had
                    WHERE had.node_id = new.node_id AND had.digest = new.digest AND new.digest <> ''
                      AND had.began_at < new.began AND had.id <> ALL(%s::uuid[])),
           EXISTS (SELECT FROM {_LAUNCHES} had
                    WHERE had.cluster_id = new.cluster_id AND had.endpoint_name = new.endpoint_name
                      AND new.endpoint_name <> '' AND had.digest = new.digest AND new.digest <> ''
                      AND had.ready_at <= new.began AND had.began_at < new.began AND had.state = 'Ready'
                      AND had.id <> ALL(%s::uuid[])),
           EXISTS (SELECT FROM {_LAUNCHES} had
                    WHERE had.node_id = new.young_id AND had.ready_at <= new.began AND had.began_at < new.began
                      AND had.state = 'Ready' AND had.id <> ALL(%s::uuid[]))
      FROM unnest(%s::uuid[], %s::text[], %s::uuid[], %s::text[], %s::timestamptz[], %s::uuid[])
           WITH ORDINALITY AS new (node_id, digest, cluster_id, endpoint_name, began, young_id, number)
     ORDER BY new.number
"""
