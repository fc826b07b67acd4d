"""What routers say of instances, as the ends of launches: the first request that succeeded, and how many came."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from uuid import UUID

from django.db import connection

from caches.domain.launches.observations import Observation
from caches.domain.launches.words import Mark, Observer
from caches.models import Launch, LaunchTraffic
from caches.services.launches.ingest import Sighting, sightings_record
from controlplane.serving.answers import Answered

BIGGEST = 2**62 - 1  # two of them fit


def answers_record(answers: Sequence[Answered]) -> None:
    """Instances that nobody saw start have no launch, and are left out. Of a restarted one the latest run counts."""
    launches = _launches({one.uid for one in answers})
    sightings: list[Sighting] = []
    requests: dict[UUID, int] = defaultdict(int)
    for one in answers:
        runs = launches.get(one.uid, ())
        launch = _of(runs, one.first_at)
        if launch is not None and one.first_at is not None and _is_earlier(one.first_at, launch.served_at):
            sightings.append(_sighting(launch, one.first_at))
        if one.requests and runs:
            requests[runs[-1].pk] += one.requests
    sightings_record(items=sightings)
    _add(requests)


def _launches(uids: set[str]) -> Mapping[str, Sequence[Launch]]:
    """The runs of each instance, in their order."""
    rows = Launch.objects.filter(pod_uid__in=uids).select_related("cluster").defer("phases")
    found: dict[str, list[Launch]] = defaultdict(list)
    for row in rows.order_by("restart_count"):
        found[row.pod_uid].append(row)
    return found


def _of(runs: Sequence[Launch], at: datetime | None) -> Launch | None:
    """The latest run that had begun by then."""
    return next((one for one in reversed(runs) if at is not None and one.began_at <= at), None)


def _is_earlier(at: datetime, known: datetime | None) -> bool:
    """Every router says when an instance first answered it."""
    return known is None or at < known


def _sighting(launch: Launch, at: datetime) -> Sighting:
    seen = Observation(Observer.ROUTER, Mark.FIRST_SUCCESS, at)
    names = (launch.cluster.name, launch.pod_uid, launch.container, launch.restart_count)
    return Sighting(launch.cluster_id, *names, (seen,))


def _add(requests: Mapping[UUID, int]) -> None:
    keys = sorted(requests)
    if keys:
        with connection.cursor() as cursor:
            cursor.execute(_ADD, [keys, [min(requests[key], BIGGEST) for key in keys]])


_TABLE = LaunchTraffic._meta.db_table
# In the order of the keys, so that no two callers deadlock.
_ADD = f"""
    INSERT INTO {_TABLE} AS had (launch_id, requests)
    SELECT new.id, new.requests FROM unnest(%s::uuid[], %s::bigint[]) AS new (id, requests) ORDER BY new.id
    ON CONFLICT (launch_id) DO UPDATE SET requests = least(had.requests + excluded.requests, {BIGGEST})
"""
