"""Start-up logs of launches, read once when they are ready or have ended. Nothing of a log is kept but the moments."""

from __future__ import annotations

from collections import Counter
from time import monotonic
from uuid import UUID

import structlog
from django.db.models import F, Q

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
MOST_SILENT = 2  # nodes of a cluster in one round: each takes its time to say nothing
SILENT_SECONDS = 60.0  # for which one that was silent is not asked again, so that those behind it have their turn
Place = tuple[UUID, str]  # cluster, name of the node
_silent: dict[Place, float] = {}  # when each may be asked again; of this process


def launch_logs_read(*, limit: int = BATCH) -> int:
    """Read what is due; how many logs that was. Of a cluster or a node that does not answer nothing more is asked this
    time, and what cannot be had (no right, no such log any more) is not asked for again: those phases stay unknown."""
    with advisory_lock("caches:launch-logs") as mine:
        if not mine:
            return 0
        due = Launch.objects.filter(log__state="Due").exclude(pod_name="").select_related("cluster")
        # Last what is on a node that may be gone.
        rows = due.defer("phases").order_by(F("node__ready").desc(nulls_last=True), "began_at", "pk")
        round_ = _Round()
        read, heard = 0, -1
        # Again without those that turned out silent: however much waits there, it keeps no other waiting.
        while read < limit and heard != round_.heard:
            heard = round_.heard
            for launch in rows.exclude(round_.left_out)[: limit - read]:
                if not round_.may_ask(launch):
                    continue
                try:
                    _read(launch)
                    read += 1
                except (Unreachable, Throttled) as error:
                    log.info("launches.log_waits", launch=str(launch.pk), error=str(error)[:200])
                    round_.silent(launch, of_node=isinstance(error, NodeUnreachable))
        return read


class _Round:
    """Who is not asked (again) in this round."""

    def __init__(self) -> None:
        now = monotonic()
        for place in [place for place, until in _silent.items() if until <= now]:
            del _silent[place]
        self.heard = 0
        self._clusters: set[UUID] = set()
        self._launches: set[UUID] = set()
        self._counts: Counter[UUID] = Counter()

    @property
    def left_out(self) -> Q:
        found = Q(cluster__in=self._clusters) | Q(pk__in=self._launches)
        for cluster, node in _silent:
            found |= Q(cluster=cluster, node_name=node)
        return found

    def may_ask(self, launch: Launch) -> bool:
        here = (launch.cluster_id, launch.node_name)
        return not (launch.cluster_id in self._clusters or launch.pk in self._launches or here in _silent)

    def silent(self, launch: Launch, *, of_node: bool) -> None:
        self.heard += 1
        self._launches.add(launch.pk)
        self._counts[launch.cluster_id] += 1
        if of_node and launch.node_name:
            _silent[launch.cluster_id, launch.node_name] = monotonic() + SILENT_SECONDS
        if not of_node or self._counts[launch.cluster_id] >= MOST_SILENT:
            self._clusters.add(launch.cluster_id)


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
