"""Start-up logs of launches, read once when they are ready or have ended. Nothing of a log is kept but the moments."""

from __future__ import annotations

from uuid import UUID

import structlog
from django.db.models import F

from caches.domain.launches.log_lines import MOST_BYTES
from caches.domain.launches.logs import log_observations
from caches.domain.launches.observations import Observation
from caches.models import Launch, LaunchLog
from caches.services.launches.ingest import Sighting, sightings_record
from controlplane.clusters.gateway import GatewayError, NodeUnreachable, Throttled, Unreachable
from controlplane.clusters.registry import gateway_for
from controlplane.locks import advisory_lock

log = structlog.get_logger(__name__)
BATCH = 20


def launch_logs_read(*, limit: int = BATCH) -> int:
    """Read what is due; how many logs that was. Of a cluster or a node that does not answer nothing more is asked this
    time, and what cannot be had (no right, no such log any more) is not asked for again: those phases stay unknown."""
    with advisory_lock("caches:launch-logs") as mine:
        if not mine:
            return 0
        due = Launch.objects.filter(log__state="Due").exclude(pod_name="").select_related("cluster")
        # Last what is on a node that may be gone: a silent one takes its time to say nothing.
        rows = due.defer("phases").order_by(F("node__ready").desc(nulls_last=True), "began_at", "pk")
        silent: set[UUID] = set()  # clusters
        waiting: set[UUID] = set()  # launches on silent nodes
        read, heard = 0, -1
        # Again without those that turned out silent: however much waits there, it keeps no other waiting.
        while read < limit and heard != len(silent) + len(waiting):
            heard = len(silent) + len(waiting)
            for launch in rows.exclude(cluster__in=silent).exclude(pk__in=waiting)[: limit - read]:
                if launch.cluster_id in silent or launch.pk in waiting:
                    continue
                try:
                    _read(launch)
                    read += 1
                except NodeUnreachable as error:
                    _say(launch, error)
                    beside = due.filter(cluster=launch.cluster_id, node_name=launch.node_name)
                    waiting |= {launch.pk, *beside.values_list("pk", flat=True)}
                except (Unreachable, Throttled) as error:
                    _say(launch, error)
                    silent.add(launch.cluster_id)
        return read


def _say(launch: Launch, error: GatewayError) -> None:
    log.info("launches.log_waits", launch=str(launch.pk), error=str(error)[:200])


def _read(launch: Launch) -> None:
    """Unreachable (NodeUnreachable) or Throttled where it is to be asked again."""
    observations: list[Observation] = []
    try:
        data = gateway_for(launch.cluster).logs(
            launch.pod_uid,
            MOST_BYTES,
            name=launch.pod_name,
            container=launch.container,
            restart_count=launch.restart_count,
        )
        observations = log_observations(data)
    except (Unreachable, Throttled):
        raise
    except GatewayError as error:
        log.info("launches.log_unread", launch=str(launch.pk), error=str(error)[:200])
    names = (launch.cluster.name, launch.pod_uid, launch.container, launch.restart_count)
    sightings_record(items=[Sighting(launch.cluster_id, *names, tuple(observations))])
    LaunchLog.objects.filter(launch=launch, state="Due").update(state="Read")
