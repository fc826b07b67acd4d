"""Taking in what observers saw of launches: two statements for any number, repeats cost nothing and change nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID, uuid5

from django.db import connection, transaction
from django.utils import timezone

from caches.domain.launches.observations import Observation, order_of
from caches.domain.launches.words import Mark, Observer, launch_id
from caches.models import Launch, LaunchObservation
from caches.services.launches.rows import launches_mark_stale
from controlplane.locks import deadlock_retried

BATCH = 2000
# A launch that says more than this says nothing new: a container that flaps for weeks must not fill the disk.
MOST_OBSERVATIONS = 500


@dataclass(frozen=True, slots=True)
class Sighting:
    """What was seen of one launch, which its four names identify."""

    cluster_id: UUID
    cluster_name: str
    pod_uid: str
    container: str
    restart_count: int
    observations: tuple[Observation, ...]

    @property
    def id(self) -> UUID:
        return launch_id(
            cluster=self.cluster_name,
            pod_uid=self.pod_uid,
            container=self.container,
            restart_count=self.restart_count,
        )


def sightings_record(*, items: Iterable[Sighting]) -> int:
    """Store observations that are new, and mark their launches for assembly. Returns how many were new."""
    waiting = [item for item in items if item.observations]
    return sum(_record(waiting[start : start + BATCH]) for start in range(0, len(waiting), BATCH))


def launches_ended(*, cluster_id: UUID, pod_uids: Sequence[str], container: str, at: datetime) -> int:
    """The pods are gone: whatever of them had not ended has now. Returns how many launches that were."""
    rows = Launch.objects.filter(cluster_id=cluster_id, pod_uid__in=pod_uids, ended_at__isnull=True)
    rows = rows.filter(container=container)
    seen = Observation(Observer.CLUSTER, Mark.ENDED, at, facts=(("reason", "Deleted"),))
    items = [
        Sighting(cluster_id, row.cluster.name, row.pod_uid, row.container, row.restart_count, (seen,))
        for row in rows.select_related("cluster").defer("phases")
    ]
    return sightings_record(items=items)


@deadlock_retried
def _record(items: Sequence[Sighting]) -> int:
    now = timezone.now()
    launches: dict[UUID, Launch] = {}
    rows: dict[UUID, tuple[UUID, Observation]] = {}
    for item in items:
        key = item.id
        launches.setdefault(key, _launch(key, item, now))
        for seen in item.observations:
            rows[uuid5(key, "\n".join(order_of(seen)))] = (key, seen)
    with transaction.atomic():
        Launch.objects.bulk_create([launches[key] for key in sorted(launches)], ignore_conflicts=True)
        fresh = _insert(rows, now)
        launches_mark_stale(keys=sorted(set(fresh)))
    return len(fresh)


def _launch(key: UUID, item: Sighting, now: datetime) -> Launch:
    began = min((seen.at for seen in item.observations if seen.at is not None), default=now)
    return Launch(
        id=key,
        cluster_id=item.cluster_id,
        pod_uid=item.pod_uid,
        container=item.container,
        restart_count=item.restart_count,
        began_at=min(began, now),
        rule=0,  # nothing follows from anything yet
    )


def _insert(rows: dict[UUID, tuple[UUID, Observation]], now: datetime) -> list[UUID]:
    """The launch of every row that was not there; rows in the order of their keys, so that no two callers deadlock."""
    ordered = [(key, *rows[key]) for key in sorted(rows)]
    columns: list[list[object]] = [
        [key for key, _, _ in ordered],
        [launch for _, launch, _ in ordered],
        [seen.observer.value for _, _, seen in ordered],
        [seen.mark.value for _, _, seen in ordered],
        [seen.phase.value if seen.phase else "" for _, _, seen in ordered],
        [seen.at for _, _, seen in ordered],
        [seen.seconds for _, _, seen in ordered],
        [seen.clock.value for _, _, seen in ordered],
        [json.dumps(dict(seen.facts)) for _, _, seen in ordered],
    ]
    with connection.cursor() as cursor:
        cursor.execute(_INSERT, [now, *columns, MOST_OBSERVATIONS])
        return [launch for (launch,) in cursor.fetchall()]


_TABLE = LaunchObservation._meta.db_table
_INSERT = f"""
    INSERT INTO {_TABLE} (id, launch_id, observer, mark, phase, at, seconds, clock, facts, received_at)
    SELECT new.id, new.launch_id, new.observer, new.mark, new.phase, new.at, new.seconds, new.clock,
           new.facts::jsonb, %s
      FROM unnest(%s::uuid[], %s::uuid[], %s::text[], %s::text[], %s::text[], %s::timestamptz[], %s::float8[],
                  %s::text[], %s::text[])
           AS new (id, launch_id, observer, mark, phase, at, seconds, clock, facts)
     WHERE (SELECT count(*) FROM {_TABLE} AS had WHERE had.launch_id = new.launch_id) < %s
     ORDER BY new.id
    ON CONFLICT DO NOTHING
    RETURNING launch_id
"""
