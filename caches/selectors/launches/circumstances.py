"""What launches happened amid, from the rows around them: node, version and endpoint, and what was there before.

Everything is read for a batch at a time; the launches of the batch itself count with what is newly known of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import connection
from django.db.models import Q

from caches.domain.launches.endings import is_inferred
from caches.domain.launches.labels import NEW_NODE_SECONDS, Circumstances
from caches.domain.launches.losses import Begun
from caches.domain.launches.observations import Observation
from caches.domain.launches.timeline import Timeline
from caches.domain.launches.words import Clock, EventClass, LaunchState, Mark, is_trial
from caches.models import Launch, ModelVersion
from caches.selectors.launches.losses import Run, replacements
from controlplane.clusters.models import ClusterType, Node
from controlplane.serving.models import Endpoint, Instance

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
    """A launch with what follows from its observations alone. ``scheduled_at``: when it was given its node, None where
    nobody says so; ``first_at``: the earliest time that anybody says anything of."""

    launch: Launch
    around: Surroundings
    timeline: Timeline
    scheduled_at: datetime | None = None
    first_at: datetime | None = None

    @property
    def began(self) -> datetime:
        """Where nobody says that, when it was first seen, whatever was told first."""
        known = self.launch.began_at
        return self.timeline.started_at or (min(known, self.first_at) if self.first_at is not None else known)

    @property
    def placed(self) -> datetime:
        """Since when it is on its node: it may have waited for long, while nodes grew old and served others."""
        return max(self.began, self.scheduled_at or self.began)

    @property
    def endpoint_name(self) -> str:
        """One that was deleted and made again serves the same to whoever asks for it: launches know it by its name."""
        return self.around.endpoint.full_name if self.around.endpoint is not None else self.launch.endpoint_name

    def is_trial(self, endpoint_name: str) -> bool:
        """Whether it is a trial's while its endpoint is called so."""
        return is_trial(endpoint_name) and self.launch.cluster.type == ClusterType.LOCAL

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
    # A pod that was seen before its node was says the node's name alone.
    places = [(None, "") if uid else _place(seen) for uid, (_, seen) in zip(named, pairs, strict=True)]
    asked = Q(uid__in={*named} - {""}) | Q(pk__in=known - {None}) | Q(name__in={name for _, name in places} - {""})
    by_key: dict[UUID | None, Node] = {one.pk: one for one in Node.objects.filter(asked).select_related("pool")}
    by_uid = {(one.cluster_id, one.uid): one for one in by_key.values()}
    endpoints = _endpoints({launch.endpoint_id for launch, _ in pairs} | {i.endpoint_id for i in instances.values()})
    by_name = _endpoints_named(pairs)
    found = []
    for (launch, seen), node_uid, place in zip(pairs, named, places, strict=True):
        instance = instances.get((launch.cluster_id, launch.pod_uid))
        nearest = [by_uid.get((launch.cluster_id, node_uid)), by_key.get(instance.node_id if instance else None)]
        nearest.append(_incarnation(by_key.values(), launch.cluster_id, *place))
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


def scheduled_at(seen: Iterable[Observation], timeline: Timeline) -> datetime | None:
    """When it was given its node, on the control plane's clock."""
    shift = timedelta(seconds=timeline.clock_shift_seconds)
    times = [one.at + (shift if one.clock is Clock.NODE else timedelta())
             for one in seen if one.mark is Mark.SCHEDULED and one.at is not None]  # fmt: skip
    return min(times, default=None)


def first_at(seen: Iterable[Observation]) -> datetime | None:
    """The earliest time that somebody saw, as whoever takes in its first part has it (services.launches.ingest)."""
    return min((one.at for one in seen if one.at is not None and not is_inferred(one)), default=None)


def _place(seen: Iterable[Observation]) -> tuple[datetime | None, str]:
    """When it was placed on a node of which name; (None, "") where nobody says both."""
    said = [(one.at, name) for one in seen if one.at is not None and (name := one.fact("node"))]
    return min(said, default=(None, ""))


def _incarnation(nodes: Iterable[Node], cluster: UUID, at: datetime | None, name: str) -> Node | None:
    """The machine that had the name then."""
    if at is None:
        return None
    had = [one for one in nodes if one.cluster_id == cluster and one.name == name and one.joined_at <= at]
    there = [one for one in had if one.lost_at is None or one.lost_at >= at]
    return max(there, key=lambda one: one.joined_at, default=None)


def circumstances_of(starts: Sequence[Start]) -> list[Circumstances]:
    """What classify() decides by, of each. Whether it is so is decided by all rows that there are: what comes late
    changes launches that were assembled before (dependents)."""
    stored = _stored_before(starts)
    replaced = replacements([_run(one) for one in starts])
    firsts: dict[tuple[UUID, str], datetime] = {}
    served: dict[tuple[UUID, str, str], datetime] = {}
    ready_on: dict[UUID, list[tuple[datetime, UUID]]] = {}
    for one in starts:
        if one.node_id is not None and one.around.digest:
            place = (one.node_id, one.around.digest)
            firsts[place] = min(firsts.get(place, one.began), one.began)
        ready = one.timeline.ready_at
        if one.timeline.state is LaunchState.READY and ready is not None:
            what, since = _served(one), max(ready, one.began + _NEXT)
            served[what] = min(served.get(what, since), since)
            if one.node_id is not None:
                ready_on.setdefault(one.node_id, []).append((since, one.launch.pk))
    found = []
    for one, (launched, was_served, node_served) in zip(starts, stored, strict=True):
        node, digest, began = one.around.node, one.around.digest, one.began
        first = new = lost = on_node = None
        if node is not None and digest:
            first = not (launched or firsts[node.pk, digest] < began)
        # A trial's endpoint is made for it: that it serves the version for the first time says nothing.
        if one.endpoint_name and digest and not one.is_trial(one.endpoint_name):
            since = served.get(_served(one), _NEVER)
            new = not (was_served or since <= began)
        if one.endpoint_name and one.launch.restart_count == 0:
            lost = one.launch.pk in replaced
        if node is not None:
            age: float | None = max(0.0, (one.placed - node.joined_at).total_seconds())
            others = ready_on.get(node.pk, ()) if _is_young(one) else ()
            on_node = node_served or any(at <= one.placed and key != one.launch.pk for at, key in others)
        else:  # what was known of a node whose row is gone
            age, first = one.launch.node_age_seconds, one.launch.first_on_node
            on_node = one.launch.event_class == EventClass.COLD_POD
        found.append(Circumstances(one.launch.restart_count, age, first, new, lost, on_node))
    return found


def _run(one: Start) -> Run:
    begun = Begun(one.launch.pk, one.launch.pod_uid, one.node_id, one.began)
    return Run(_served(one), begun, one.launch.restart_count, one.timeline.ended_at, one.timeline.end_reason)


def _served(one: Start) -> tuple[UUID, str, str]:
    return one.launch.cluster_id, one.endpoint_name, one.around.digest


def _stored_before(starts: Sequence[Start]) -> list[tuple[bool, bool, bool]]:
    """(its version was launched on its node, its endpoint served its version) before it began, and (its node served
    anything) before it was placed, of each: by launches that are not among these. The last is not looked up for nodes
    that are old anyway."""
    columns: list[list[Any]] = [
        [one.node_id for one in starts],
        [one.around.digest for one in starts],
        [one.launch.cluster_id for one in starts],
        [one.endpoint_name for one in starts],
        [one.began for one in starts],
        [one.node_id if _is_young(one) else None for one in starts],
        [one.placed for one in starts],
    ]
    batch = [one.launch.pk for one in starts]
    with connection.cursor() as cursor:
        cursor.execute(_BEFORE, [batch, batch, batch, *columns])
        return [(first, second, third) for first, second, third in cursor.fetchall()]


def _is_young(one: Start) -> bool:
    node = one.around.node
    return node is not None and (one.placed - node.joined_at).total_seconds() < NEW_NODE_SECONDS


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
                    WHERE had.node_id = new.young_id AND had.ready_at <= new.placed AND had.began_at < new.placed
                      AND had.state = 'Ready' AND had.id <> ALL(%s::uuid[]))
      FROM unnest(%s::uuid[], %s::text[], %s::uuid[], %s::text[], %s::timestamptz[], %s::uuid[], %s::timestamptz[])
           WITH ORDINALITY AS new (node_id, digest, cluster_id, endpoint_name, began, young_id, placed, number)
     ORDER BY new.number
"""
