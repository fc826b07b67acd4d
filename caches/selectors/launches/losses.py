"""Pods that were lost with their nodes, and the launches that took their place: read from all rows around a time, so
that it says the same of a launch whoever asks, and together with whatever."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db.models import F, Q, QuerySet

from caches.domain.launches.losses import HEARD_WITHIN, HORIZON, REPLACES_WITHIN, Begun, Loss, replacing
from caches.domain.launches.words import EventClass
from caches.models import Launch
from caches.models.launches import NODE_LOST_REASONS
from controlplane.clusters.models import Node

# Cluster, name of the endpoint ("" for none, which owns nothing), digest: who serves the same takes a lost pod's place.
Owner = tuple[UUID, str, str]


@dataclass(frozen=True, slots=True)
class Run:
    """What decides of a launch whether it was lost with its node, and whether it replaces one that was."""

    owner: Owner
    begun: Begun
    restart_count: int
    ended_at: datetime | None
    end_reason: str


def replacements(runs: Sequence[Run]) -> set[UUID]:
    """Which of ``runs`` replace a lost pod; these count as they are given, and all others as they are stored."""
    asked = [one for one in runs if one.owner[1]]
    if not asked:
        return set()
    times = [one.begun.began for one in asked]
    return _replacing({one.owner for one in asked}, min(times), max(times), asked) & {one.begun.key for one in asked}


def wrong_replacements(owners: Collection[Owner], since: datetime, until: datetime) -> list[UUID]:
    """Stored launches of ``owners`` that began in that time and are called replacements and are none, or the reverse;
    those that wait to be assembled are left out."""
    owners = {owner for owner in owners if owner[1]}
    if not owners:
        return []
    right = _replacing(owners, since, until, ())
    rows = _of(owners).filter(Q(event_class=EventClass.NODE_LOSS) | Q(pk__in=right), restart_count=0)
    rows = rows.filter(began_at__gte=since, began_at__lte=until, stale_at__isnull=True)
    called = rows.order_by().values_list("pk", "event_class", "cluster_id", "endpoint_name", "digest")
    return [
        key
        for key, event_class, *owner in called
        if tuple(owner) in owners and (event_class == EventClass.NODE_LOSS) != (key in right)
    ]


def _replacing(owners: Collection[Owner], since: datetime, until: datetime, given: Sequence[Run]) -> set[UUID]:
    """The verdict on whatever began in that time, and perhaps on some that began earlier."""
    told = {one.begun.key for one in given}
    lost = _losses(owners, since - HORIZON - 2 * REPLACES_WITHIN, until + HEARD_WITHIN, given)
    found: set[UUID] = set()
    if not lost:
        return found
    begun: dict[Owner, list[Begun]] = defaultdict(list)
    rows = _of(lost).filter(restart_count=0, began_at__gte=since - HORIZON, began_at__lte=until).exclude(pk__in=told)
    columns = ("cluster_id", "endpoint_name", "digest", "pk", "pod_uid", "node_id", "began_at")
    for cluster, endpoint, digest, *begins in rows.order_by().values_list(*columns):
        begun[cluster, endpoint, digest].append(Begun(*begins))
    for one in given:
        if one.restart_count == 0:
            begun[one.owner].append(one.begun)
    for owner, losses in lost.items():
        found |= replacing(losses, begun[owner])
    return found


def _losses(
    owners: Collection[Owner], since: datetime, until: datetime, given: Sequence[Run]
) -> Mapping[Owner, list[Loss]]:
    """Of each owner, one for each pod whose node went away, or who said so, in that time."""
    mine = Q(pk__in={one.begun.node_id for one in given} - {None}, lost_at__isnull=False)
    gone = Node.objects.filter(Q(lost_at__gte=since, lost_at__lte=until) | mine)
    gone = gone.filter(cluster__in={cluster for cluster, _, _ in owners})
    lost_at: dict[UUID | None, datetime] = {key: at for key, at in gone.values_list("pk", "lost_at") if at is not None}
    said = Q(end_reason__in=NODE_LOST_REASONS, ended_at__gte=since, ended_at__lte=until)
    there = Q(began_at__lte=F("node__lost_at") + HEARD_WITHIN)
    there &= Q(ended_at__isnull=True) | Q(ended_at__gte=F("node__lost_at") - HEARD_WITHIN)
    rows = _of(owners).filter((Q(node__in=list(lost_at)) & there) | said) if lost_at else _of(owners).filter(said)
    told = {one.begun.key for one in given}
    columns = (
        "pk", "cluster_id", "endpoint_name", "digest", "pod_uid", "node_id",
        "began_at", "ended_at", "end_reason", "node__lost_at",
    )  # fmt: skip
    moments: dict[tuple[Owner, str, UUID | None], set[tuple[datetime, bool]]] = defaultdict(set)
    for key, cluster, endpoint, digest, pod, node, *times in rows.order_by().values_list(*columns):
        if key not in told:
            moments[(cluster, endpoint, digest), pod, node] |= _moments(*times)
    for one in given:
        times = (one.begun.began, one.ended_at, one.end_reason, lost_at.get(one.begun.node_id))
        moments[one.owner, one.begun.pod_uid, one.begun.node_id] |= _moments(*times)
    found: dict[Owner, list[Loss]] = defaultdict(list)
    for (owner, pod, node), told_at in moments.items():
        if told_at and owner in owners:
            found[owner].append(_loss(pod, node, told_at))
    return found


def _loss(pod: str, node: UUID | None, told_at: Collection[tuple[datetime, bool]]) -> Loss:
    first = min(at for at, _ in told_at)
    near = sorted((at, by_cluster) for at, by_cluster in told_at if at - first <= REPLACES_WITHIN)
    said = [at for at, by_cluster in near if by_cluster]
    return Loss(pod, node, tuple(at for at, _ in near), min(said, default=None))


def _moments(began: datetime, ended: datetime | None, reason: str, lost: datetime | None) -> set[tuple[datetime, bool]]:
    """When somebody said that it was lost, and whether the cluster did. A pod that ended by itself long before its node
    was lost was not lost with it."""
    found = {(ended, True)} if ended is not None and reason in NODE_LOST_REASONS else set()
    if lost is not None and began <= lost + HEARD_WITHIN and (ended is None or ended >= lost - HEARD_WITHIN):
        found.add((lost, False))
    return found


def _of(owners: Collection[Owner]) -> QuerySet[Launch]:
    """Of theirs, and perhaps of others."""
    clusters, names, digests = (set(parts) for parts in zip(*owners, strict=True))
    return Launch.objects.filter(cluster__in=clusters, endpoint_name__in=names, digest__in=digests)
