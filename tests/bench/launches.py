"""A million launches, written by PostgreSQL itself as the assembly would have written them, with their evidence."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from django.db import connection

from caches.domain.launches.timeline import RULE
from caches.domain.launches.words import Phase
from caches.models import Launch, LaunchHour, LaunchObservation
from controlplane.clusters.models import Cluster

DAYS, POOLS, VERSIONS = 30, 8, 12
EACH = 3  # endpoints of each version
MANY = 50_000


def put_launches(cluster: Cluster, count: int, now: datetime, *, observed_every: int = 20) -> None:
    """``count`` launches spread over DAYS as they came, in six classes, POOLS and VERSIONS, of EACH endpoints of each
    version, one in a thousand of a trial; nine tenths hit. One in ``observed_every`` has its observations as well,
    which no list reads."""
    names: dict[str, str | int] = {
        "cluster": str(cluster.pk), "count": count, "now": now.isoformat(), "every": observed_every,
    }  # fmt: skip
    with connection.cursor() as cursor:
        # Indexes that are made of all rows at once take a fraction of what a million insertions into each would.
        cursor.execute("SET maintenance_work_mem = '256MB'; SET work_mem = '64MB'; SELECT setseed(0.7)")
        made = _indexes_drop(cursor) if count > MANY else []
        cursor.execute(_LAUNCHES, names)
        for statement in made:
            cursor.execute(statement)
        cursor.execute(_OBSERVATIONS, names)
        cursor.execute(_HOURS, names)
        cursor.execute("RESET maintenance_work_mem; RESET work_mem")
    with connection.cursor() as cursor:
        for model in (Launch, LaunchObservation):
            cursor.execute(f"VACUUM ANALYZE {model._meta.db_table}")


def _indexes_drop(cursor: Any) -> list[str]:
    """Drop the indexes of launches but those of its constraints. Returns what makes them again."""
    cursor.execute(
        "SELECT indexname, indexdef FROM pg_indexes WHERE tablename = %s AND indexname NOT IN"
        " (SELECT conname FROM pg_constraint)",
        [Launch._meta.db_table],
    )
    found = cursor.fetchall()
    for name, _ in found:
        cursor.execute(f'DROP INDEX "{name}"')
    return [definition for _, definition in found]


PHASES = json.dumps(
    [
        {"phase": phase.value, "state": "Measured", "seconds": 0, "observer": "Cluster", "pieces": [["AT", "AT"]]}
        for phase in Phase
    ]
).replace(": 0,", ": TOOK,")
_DRAWN = f"""
    SELECT number, gen_random_uuid() AS id, %(now)s::timestamptz
           - (%(count)s - number + random()) / %(count)s * interval '{DAYS} days' AS began,
           random() < 0.9 AS hit, random() < 0.97 AS ready, random() AS r1, random() AS r2, random() AS r3,
           sqrt(-2 * ln(1 - random())) * cos(2 * pi() * random()) AS normal
      FROM generate_series(1, %(count)s) AS number
"""
_LAUNCHES = f"""
    INSERT INTO {Launch._meta.db_table}
           (id, created_at, updated_at, cluster_id, pod_uid, container, restart_count, began_at, pod_name, node_name,
            pool_name, endpoint_name, digest, version_name, state, event_class, weights, image, miss_reason,
            first_on_node, node_age_seconds, reached, started_at, ready_at, served_at, ended_at, end_reason,
            ready_seconds, total_seconds, unknown_seconds, clock_shift_seconds, phase_seconds, phases, rule)
    SELECT id, began, began, %(cluster)s::uuid, 'uid-' || number, 'server', 0, began, 'default/chat-' || number,
           'node-' || number %% 400, 'pool-' || (version + (r1 < 0.3)::int) %% {POOLS},
           CASE WHEN number %% 1000 = 0 THEN 'local/trial-' || left(md5((number / 20000)::text), 8)
                ELSE 'default/chat-' || version || '-' || number %% {EACH} END,
           md5(version::text), 'llama v' || version, CASE WHEN ready THEN 'Ready' ELSE 'Ended' END, kind,
           CASE WHEN hit THEN 'Hit' WHEN r3 < 0.3 THEN 'Partial' ELSE 'Miss' END,
           CASE WHEN r3 < 0.8 THEN 'Hit' ELSE 'Miss' END, CASE WHEN hit THEN '' ELSE 'FirstOnNode' END, NOT hit,
           r1 * 864000, 'HealthChecks', began, CASE WHEN ready THEN began + took * interval '1 second' END, NULL,
           CASE WHEN NOT ready THEN began + interval '60 seconds' END, CASE WHEN ready THEN '' ELSE 'OOMKilled' END,
           CASE WHEN ready THEN took END, took, took * 0.2, 0,
           ARRAY[took * 0.05, NULL, took * 0.3, took * 0.15, took * 0.25, took * 0.05, NULL],
           replace(replace('{PHASES}', 'AT', to_char(began, 'YYYY-MM-DD"T"HH24:MI:SS"+00:00"')), 'TOOK',
                   round((took / 7)::numeric, 3)::text)::jsonb, {RULE}
      FROM (SELECT *, exp(CASE WHEN hit THEN 3.0 ELSE 6.0 END + 0.4 * normal) AS took,
                   floor(r2 * r2 * {VERSIONS})::int AS version,
                   (ARRAY['WarmPodRestart', 'ColdPodOnWarmNode', 'PodOnNewNode', 'NewModelVersion',
                          'RecoveryAfterNodeLoss', 'Unknown'])[1 + floor(r3 * 6)::int] AS kind
              FROM ({_DRAWN}) AS drawn) AS launch
"""
_OBSERVATIONS = f"""
    INSERT INTO {LaunchObservation._meta.db_table}
           (id, launch_id, observer, mark, phase, at, seconds, clock, facts, received_at)
    SELECT gen_random_uuid(), launch.id, 'Cluster', mark, '', launch.began_at, NULL, 'Node',
           jsonb_build_object('node', launch.node_name), launch.began_at
      FROM {Launch._meta.db_table} AS launch,
           unnest(ARRAY['Created', 'Scheduled', 'Pulling', 'Pulled', 'EnsureStarted', 'EnsureEnded', 'Started',
                        'LoadStarted', 'Loaded', 'Serving', 'Ready', 'FirstSuccess']) AS mark
     WHERE hashtext(launch.pod_uid) %% %(every)s = 0
"""
_HOURS = f"""
    INSERT INTO {LaunchHour._meta.db_table} (cluster_id, step, start, dirty_at)
    SELECT DISTINCT cluster_id, 'Hour', date_trunc('hour', began_at, 'UTC'), now() FROM {Launch._meta.db_table}
"""
