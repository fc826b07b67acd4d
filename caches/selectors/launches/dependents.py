"""Launches whose labels no longer agree with the rows around them: something came late that they depend on.

Labels are a function of all rows, so that it matters not in which order and in what batches launches are assembled.
What came changes few others, and those are found by what they are called: nothing that is right is assembled again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import connection

from caches.domain.launches.bounds import TOLERATED
from caches.domain.launches.endings import NOT_SEEN
from caches.domain.launches.labels import NEW_NODE_SECONDS
from caches.domain.launches.losses import HORIZON, REPLACES_WITHIN
from caches.domain.launches.words import EventClass, LaunchState, MissReason
from caches.models import Artifact, Launch, LaunchObservation, ModelVersion
from caches.models.launches import NODE_LOST_REASONS
from caches.selectors.launches.circumstances import Start, surroundings_of
from caches.selectors.launches.losses import Owner, wrong_replacements
from caches.selectors.launches.observations import observations_by_launch
from controlplane.clusters.models import Node
from controlplane.serving.models import Endpoint, Instance

MOST = 2000  # of one key at once; the rest is found when these have been assembled
LATELY = timedelta(hours=1)  # how far back what has no node or endpoint yet is looked at again
NEW_NODE = timedelta(seconds=NEW_NODE_SECONDS)


def wrong_beside(starts: Sequence[Start]) -> list[UUID]:
    """Stored launches whose labels are wrong now that ``starts`` are what they are. Those count whose
    ``start.launch``, as it was read before, says something else."""
    # Nothing followed yet from what was seen of a launch whose rule is 0.
    ends = _wrong_ends([one for one in starts if not one.launch.rule or _old(one) != _new(one)])
    changed = [one for one in starts if _old(one) != _new(one)]
    if not changed:
        return ends
    wrong = {*ends, *_wrong_firsts(changed), *_wrong_versions(changed), *_wrong_nodes(changed)}
    return sorted(wrong | set(_wrong_recoveries(changed)))


def wrong_lately(now: datetime) -> list[UUID]:
    """Stored launches that began lately and whose labels are wrong because a node was lost or came back, or because the
    row of their node or pod came after they were assembled; and those that go on beside a later run."""
    since = now - LATELY
    lost = Node.objects.filter(lost_at__gte=since).values_list("pk", flat=True)
    owned = ("cluster_id", "endpoint_name", "digest")
    called = Launch.objects.filter(event_class=EventClass.NODE_LOSS, began_at__gte=since)
    owners: set[Owner] = {*called.order_by().values_list(*owned).distinct()}
    if keys := list(lost):
        owners |= {*Launch.objects.filter(node__in=keys).order_by().values_list(*owned).distinct()}
    return sorted({*wrong_replacements(owners, since, now), *_placed_late(since), *_left_open(since)})


def _left_open(since: datetime) -> list[UUID]:
    """Runs that go on beside a later one of their container: a version that knew nothing of that assembled them last.
    Of pods that are there, whenever they began, and of those that restarted lately; what is gone is told to be."""
    with connection.cursor() as cursor:
        cursor.execute(_LEFT_OPEN, [since, MOST, MOST])
        return [key for (key,) in cursor.fetchall()]


def _placed_late(since: datetime) -> list[UUID]:
    """Launches without a node, an endpoint or a version, or without knowing what they serve, that would have it now."""
    with connection.cursor() as cursor:
        cursor.execute(_UNPLACED, [since, MOST])
        keys = [key for (key,) in cursor.fetchall()]
    if not keys:
        return []
    seen = observations_by_launch(keys)
    pairs = [(one, seen.get(one.pk, ())) for one in Launch.objects.filter(pk__in=keys).defer("phases")]
    return [
        launch.pk
        for (launch, _), around in zip(pairs, surroundings_of(pairs), strict=True)
        if (launch.node_id is None and around.node is not None)
        or (launch.endpoint_id is None and around.endpoint is not None)
        or (not launch.digest and around.digest)
        or (launch.version_id is None and around.version is not None)
    ]


_Facts = tuple[Any, ...]


def _old(one: Start) -> _Facts:
    row = one.launch
    ready = row.ready_at if row.state == LaunchState.READY else None
    lost = row.ended_at if row.end_reason in NODE_LOST_REASONS else None
    return row.node_id, row.digest, row.endpoint_name, row.began_at, ready, lost, row.ended_at


def _new(one: Start) -> _Facts:
    line = one.timeline
    ready = line.ready_at if line.state is LaunchState.READY else None
    lost = line.ended_at if line.end_reason in NODE_LOST_REASONS else None
    return one.node_id, one.around.digest[:80], one.endpoint_name, one.began, ready, lost, line.ended_at


def _earliest(pairs: Iterable[tuple[tuple[Any, ...], datetime | None]]) -> list[list[Any]]:
    """The columns of each key, and the earliest of its times."""
    found: dict[tuple[Any, ...], datetime] = {}
    for key, at in pairs:
        if at is not None and all(key):
            found[key] = min(found.get(key, at), at)
    return [list(column) for column in zip(*((*key, at) for key, at in found.items()), strict=True)]


def _both(changed: Sequence[Start]) -> Iterable[tuple[Start, _Facts]]:
    return ((one, facts) for one in changed for facts in (_old(one), _new(one)))


def _wrong_ends(changed: Sequence[Start]) -> list[UUID]:
    """Runs that had ended when the next one of their container began, and are not known to have; those of ``changed``
    and those right before them."""
    if not changed:
        return []
    keys = [one.launch.pk for one in changed]
    with connection.cursor() as cursor:
        cursor.execute(
            _ENDS, {"keys": keys, "tolerated": TOLERATED.total_seconds(), "not_seen": NOT_SEEN, "most": MOST}
        )
        return [key for (key,) in cursor.fetchall()]


def _wrong_firsts(changed: Sequence[Start]) -> list[UUID]:
    moved = [one for one in changed if _old(one)[:4] != _new(one)[:4]]
    keys = _earliest(((node, digest), began) for _, (node, digest, _, began, *_) in _both(moved))
    return _found(_FIRSTS, keys)


def _wrong_versions(changed: Sequence[Start]) -> list[UUID]:
    keys = _earliest(
        ((one.launch.cluster_id, endpoint, digest), ready)
        for one, (_, digest, endpoint, _, ready, *_) in _both(changed)
        if not one.is_trial(endpoint)
    )
    return _found(_VERSIONS, keys)


def _wrong_nodes(changed: Sequence[Start]) -> list[UUID]:
    """Of nodes that were new when they became ready."""
    joined = {one.around.node.pk: one.around.node.joined_at for one in changed if one.around.node is not None}
    keys = _earliest(
        ((node,), ready)
        for _, (node, _, _, _, ready, *_) in _both(changed)
        if ready is not None and (node not in joined or ready < joined[node] + NEW_NODE)
    )
    return _found(_NODES, keys)


def _wrong_recoveries(changed: Sequence[Start]) -> list[UUID]:
    """A launch counts as one that may replace from when it began on, as one that was lost from when it ended on."""
    times: Mapping[Owner, list[datetime]] = defaultdict(list)
    lost = dict(Node.objects.filter(pk__in={_new(one)[0] for one in changed} - {None}).values_list("pk", "lost_at"))
    for one, (node, digest, endpoint, began, _, ended, _) in _both(changed):
        times[one.launch.cluster_id, endpoint, digest] += [
            at for at in (began, ended, lost.get(node)) if at is not None
        ]
    if not times:
        return []
    every = [at for some in times.values() for at in some]
    return wrong_replacements(times, min(every) - REPLACES_WITHIN, max(every) + HORIZON + REPLACES_WITHIN)


def _found(statement: str, keys: list[list[Any]]) -> list[UUID]:
    if not keys:
        return []
    with connection.cursor() as cursor:
        cursor.execute(statement, [*keys, MOST])
        return [key for (key,) in cursor.fetchall()]


_LAUNCHES, _OBSERVATIONS = Launch._meta.db_table, LaunchObservation._meta.db_table
_ENDPOINTS, _INSTANCES, _NODE_ROWS = (model._meta.db_table for model in (Endpoint, Instance, Node))
_VERSION_ROWS, _ARTIFACTS = ModelVersion._meta.db_table, Artifact._meta.db_table
_ENDS = f"""
    WITH mine AS (SELECT DISTINCT cluster_id, pod_uid, container FROM {_LAUNCHES} WHERE id = ANY(%(keys)s::uuid[]))
    SELECT id
      FROM (SELECT id, stale_at, ended_at, end_reason, lead(id) OVER runs AS next_id,
                   greatest(lead(began_at) OVER runs, started_at) AS until
              FROM {_LAUNCHES} JOIN mine USING (cluster_id, pod_uid, container)
            WINDOW runs AS (PARTITION BY cluster_id, pod_uid, container ORDER BY restart_count)) AS run
     WHERE stale_at IS NULL AND (id = ANY(%(keys)s::uuid[]) OR next_id = ANY(%(keys)s::uuid[]))
       AND next_id IS NOT NULL AND (ended_at IS NULL OR ended_at > until + %(tolerated)s * interval '1 second'
            OR (end_reason = %(not_seen)s AND ended_at <> until))
     LIMIT %(most)s
"""
# Nothing follows from the next run for one of which nothing that was seen is left. LATERAL keeps to the indexes.
_LEFT_OPEN = f"""
    WITH pods AS (SELECT endpoint.cluster_id, instance.uid AS pod_uid
                    FROM {_INSTANCES} AS instance JOIN {_ENDPOINTS} AS endpoint ON endpoint.id = instance.endpoint_id
                   UNION SELECT cluster_id, pod_uid FROM {_LAUNCHES} WHERE began_at >= %s AND restart_count > 0)
    SELECT left_open.id
      FROM pods, LATERAL (
             SELECT id FROM {_LAUNCHES} AS one
              WHERE one.cluster_id = pods.cluster_id AND one.pod_uid = pods.pod_uid
                AND one.ended_at IS NULL AND one.stale_at IS NULL
                AND EXISTS (SELECT FROM {_LAUNCHES} AS later
                             WHERE later.cluster_id = one.cluster_id AND later.pod_uid = one.pod_uid
                               AND later.container = one.container AND later.restart_count > one.restart_count)
                AND EXISTS (SELECT FROM {_OBSERVATIONS} AS seen WHERE seen.launch_id = one.id)
              LIMIT %s) AS left_open
     LIMIT %s
"""
# Where something earlier than what changed was there, it decides, as it did before. LATERAL keeps to the indexes.
_FIRSTS = f"""
    SELECT wrong.id
      FROM unnest(%s::uuid[], %s::text[], %s::timestamptz[]) AS key (node_id, digest, since),
           LATERAL (
             SELECT id FROM {_LAUNCHES} AS one
              WHERE one.node_id = key.node_id AND one.digest = key.digest AND one.began_at >= key.since
                AND one.stale_at IS NULL AND one.first_on_node = EXISTS (
                    SELECT FROM {_LAUNCHES} AS had
                     WHERE had.node_id = one.node_id AND had.digest = one.digest AND had.began_at < one.began_at)
              LIMIT %s) AS wrong
     WHERE NOT EXISTS (SELECT FROM {_LAUNCHES} AS had
                        WHERE had.node_id = key.node_id AND had.digest = key.digest AND had.began_at < key.since)
"""
_VERSIONS = f"""
    SELECT wrong.id
      FROM unnest(%s::uuid[], %s::text[], %s::text[], %s::timestamptz[])
           AS key (cluster_id, endpoint_name, digest, since),
           LATERAL (
             SELECT id FROM {_LAUNCHES} AS one
              WHERE one.cluster_id = key.cluster_id AND one.endpoint_name = key.endpoint_name
                AND one.digest = key.digest AND one.began_at >= key.since AND one.stale_at IS NULL
                AND one.event_class NOT IN ('{EventClass.WARM_RESTART}', '{EventClass.NODE_LOSS}')
                AND (one.event_class = '{EventClass.NEW_VERSION}') = EXISTS (
                    SELECT FROM {_LAUNCHES} AS had
                     WHERE had.cluster_id = one.cluster_id AND had.endpoint_name = one.endpoint_name
                       AND had.digest = one.digest AND had.ready_at <= one.began_at
                       AND had.began_at < one.began_at AND had.state = '{LaunchState.READY}')
              LIMIT %s) AS wrong
     WHERE NOT EXISTS (SELECT FROM {_LAUNCHES} AS had
                        WHERE had.cluster_id = key.cluster_id AND had.endpoint_name = key.endpoint_name
                          AND had.digest = key.digest AND had.ready_at < key.since
                          AND had.state = '{LaunchState.READY}')
"""
_NODES = f"""
    SELECT wrong.id
      FROM unnest(%s::uuid[], %s::timestamptz[]) AS key (node_id, since),
           LATERAL (
             SELECT one.id
               FROM {_LAUNCHES} AS one
               JOIN {_NODE_ROWS} AS node ON node.id = one.node_id,
                    greatest(one.began_at, node.joined_at + one.node_age_seconds * interval '1 second') AS placed
              WHERE one.node_id = key.node_id AND placed >= key.since AND one.stale_at IS NULL
                AND one.node_age_seconds < {NEW_NODE_SECONDS}
                AND CASE WHEN EXISTS (
                    SELECT FROM {_LAUNCHES} AS had
                     WHERE had.node_id = one.node_id AND had.id <> one.id AND had.ready_at <= placed
                       AND had.began_at < placed AND had.state = '{LaunchState.READY}')
                    THEN one.event_class = '{EventClass.NEW_NODE}' OR one.miss_reason = '{MissReason.NEW_NODE}'
                    ELSE one.event_class = '{EventClass.COLD_POD}' END
              LIMIT %s) AS wrong
"""
_UNPLACED = f"""
    SELECT one.id FROM {_LAUNCHES} AS one
     WHERE one.began_at >= %s AND one.stale_at IS NULL
       AND (one.node_id IS NULL OR one.endpoint_id IS NULL OR one.digest = '' OR one.version_id IS NULL)
       AND (EXISTS (SELECT FROM {_INSTANCES} AS instance WHERE instance.uid = one.pod_uid)
            OR EXISTS (SELECT FROM {_NODE_ROWS} AS node
                        WHERE node.cluster_id = one.cluster_id AND node.name = one.node_name AND one.node_id IS NULL)
            OR EXISTS (SELECT FROM {_ENDPOINTS} AS endpoint
                        WHERE endpoint.cluster_id = one.cluster_id AND one.endpoint_id IS NULL
                          AND endpoint.created_at > one.updated_at - interval '1 minute')
            OR EXISTS (SELECT FROM {_VERSION_ROWS} AS version JOIN {_ARTIFACTS} AS artifact
                           ON artifact.id = version.artifact_id
                        WHERE artifact.digest = one.digest AND one.version_id IS NULL))
     ORDER BY one.began_at DESC LIMIT %s
"""
