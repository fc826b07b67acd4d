"""What the watcher sees of pods, as launches. Hearing of any of it again changes nothing.

A launch is told of from its beginning: what began long before anybody watched is left out, because nobody knows when it
was first ready.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from uuid import UUID

from caches.domain.launches.events import CONTAINER as ENGINE
from caches.domain.launches.observations import Observation
from caches.domain.launches.pods import latest_run, pod_observations, run_began
from caches.domain.launches.words import Mark, Observer, launch_id
from caches.models import Launch, LaunchLog
from caches.selectors.launches.observations import observations_by_launch
from caches.services.launches.ingest import Sighting, sightings_record
from controlplane.clusters.models import Cluster, ClusterType, Node
from controlplane.clusters.pod_runs import ObservedPod
from controlplane.serving.models import Endpoint

BATCH = 500
# A watcher that was away for longer than this says nothing of starts that it finds finished.
WATCHED_WITHIN = timedelta(hours=1)
_ENDS = (Mark.READY, Mark.ENDED)
_PULLS = (Mark.PULLING, Mark.PULLED, Mark.IMAGE_PRESENT)

Run = tuple[str, str, int]  # pod uid, container, restart count


@dataclass(frozen=True, slots=True)
class _Around:
    """What is known already, for some pods. ``launches``: since when each was ready, None while it is not."""

    cluster_id: UUID
    cluster_name: str
    launches: Mapping[Run, datetime | None]
    endpoints: Collection[str]
    nodes: Mapping[str, Sequence[tuple[str, datetime, datetime | None]]]

    def node_uid(self, pod: ObservedPod) -> str:
        """The machine that it was placed on: another one may have the name by now."""
        at = pod.scheduled_at or pod.created_at
        for uid, joined, lost in self.nodes.get(pod.node_name, ()):
            if joined <= at and (lost is None or lost >= at):
                return uid
        return ""


def pods_observe(*, cluster_id: UUID, items: Sequence[ObservedPod], at: datetime, gone: Collection[str] = ()) -> int:
    """Take in pods as they are, or as they last were for those in ``gone`` (uids). Returns what was new."""
    return sum(_observe(cluster_id, items[start : start + BATCH], at, gone) for start in range(0, len(items), BATCH))


def pods_missing(*, cluster_id: UUID, present: Collection[str], at: datetime) -> int:
    """After a complete listing: whatever had not ended and is not in it has. Engines of a local fleet are no pods."""
    going_on = Launch.objects.filter(cluster_id=cluster_id, log__isnull=False, ended_at__isnull=True)
    going_on = going_on.exclude(cluster__type=ClusterType.LOCAL, container=ENGINE)
    rows = going_on.exclude(pod_uid__in=list(present)).select_related("cluster").defer("phases")
    items = [
        Sighting(cluster_id, row.cluster.name, row.pod_uid, row.container, row.restart_count, (_deleted(at),))
        for row in rows
    ]
    return _record(items)


def _deleted(at: datetime) -> Observation:
    return Observation(Observer.CLUSTER, Mark.ENDED, at, facts=(("reason", "Deleted"),))


def _observe(cluster_id: UUID, pods: Sequence[ObservedPod], at: datetime, gone: Collection[str]) -> int:
    around = _around(cluster_id, pods)
    items = [item for pod in pods if _is_ours(pod, around) for item in _sightings(pod, around, at, gone)]
    return _record(_with_pulls(items, around))


def _with_pulls(items: Sequence[Sighting], around: _Around) -> Sequence[Sighting]:
    """A kubelet tells of a restart's image before it tells of the restart: until then that was of the run before."""
    begun = {
        _before(item): (item, one.at)
        for item in items
        for one in item.observations
        if one.mark is Mark.RESTARTED and (item.pod_uid, item.container, item.restart_count) not in around.launches
    }
    if not begun:
        return items
    more: dict[UUID, list[Observation]] = defaultdict(list)
    for key, seen in observations_by_launch(begun.keys()).items():
        item, began = begun[key]
        pulls = [one for one in seen if one.mark in _PULLS]
        more[item.id] += [one for one in pulls if one.at is not None and began is not None and one.at >= began]
    return [replace(item, observations=(*item.observations, *more[item.id])) for item in items]


def _before(item: Sighting) -> UUID:
    """The launch of the run before it."""
    return launch_id(
        cluster=item.cluster_name,
        pod_uid=item.pod_uid,
        container=item.container,
        restart_count=item.restart_count - 1,
    )


def _around(cluster_id: UUID, pods: Sequence[ObservedPod]) -> _Around:
    known = Launch.objects.filter(cluster_id=cluster_id, pod_uid__in={pod.uid for pod in pods})
    nodes: dict[str, list[tuple[str, datetime, datetime | None]]] = defaultdict(list)
    names = {pod.node_name for pod in pods if pod.node_name}
    rows = Node.objects.filter(cluster_id=cluster_id, name__in=names).order_by("-joined_at")
    for name, uid, joined, lost in rows.values_list("name", "uid", "joined_at", "lost_at"):
        nodes[name].append((uid, joined, lost))
    endpoints = Endpoint.objects.filter(cluster_id=cluster_id).values_list("namespace", "name")
    return _Around(
        cluster_id,
        Cluster.objects.values_list("name", flat=True).get(pk=cluster_id),
        {
            (uid, container, run): ready
            for uid, container, run, ready in known.values_list("pod_uid", "container", "restart_count", "ready_at")
        },
        {f"{namespace}/{name}" for namespace, name in endpoints},
        nodes,
    )


def _is_ours(pod: ObservedPod, around: _Around) -> bool:
    """A pod that says which weights it uses, or one of an endpoint that Hearth knows."""
    return bool(pod.digest) or f"{pod.name.partition('/')[0]}/{pod.endpoint}" in around.endpoints


def _sightings(pod: ObservedPod, around: _Around, at: datetime, gone: Collection[str]) -> Iterable[Sighting]:
    seen: dict[int, list[Observation]] = defaultdict(list)
    for run, one in pod_observations(pod, around.node_uid(pod)):
        seen[run].append(one)
    if pod.uid in gone and pod.leaving_at is None:
        seen[latest_run(pod)].append(_deleted(at))
    for run, observations in seen.items():
        key = (pod.uid, pod.container, run)
        if key in around.launches or _is_watched(pod, run, around, at):
            kept = tuple(one for one in observations if not _is_ready_again(one, around.launches.get(key)))
            yield Sighting(around.cluster_id, around.cluster_name, pod.uid, pod.container, run, kept)


def _is_watched(pod: ObservedPod, run: int, around: _Around, at: datetime) -> bool:
    """Whether a launch that nobody told of yet is told of from its beginning."""
    if run != latest_run(pod):
        return False
    if not pod.runs or (pod.uid, pod.container, run - 1) in around.launches:
        return True
    began = run_began(pod, run)
    return began is not None and began >= at - WATCHED_WITHIN


def _is_ready_again(one: Observation, ready_at: datetime | None) -> bool:
    """One that fails its probes now and then becomes ready again and again, which is no start."""
    return one.mark is Mark.READY and ready_at is not None and one.at is not None and one.at > ready_at


def _record(items: Sequence[Sighting]) -> int:
    new = sightings_record(items=items)
    logs_follow(items=items)
    return new


def logs_follow(*, items: Sequence[Sighting]) -> None:
    """Have the logs of these launches read once they are ready or have ended."""
    logs = [LaunchLog(launch_id=item.id) for item in items if item.observations]
    LaunchLog.objects.bulk_create(sorted(logs, key=lambda one: one.launch_id), ignore_conflicts=True)
    due = [item.id for item in items if any(one.mark in _ENDS for one in item.observations)]
    LaunchLog.objects.filter(launch_id__in=due, state="").update(state="Due")
