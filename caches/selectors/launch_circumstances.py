"""What a launch happened amid, from the rows around it: its node, version and endpoint, and what was there before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Q

from caches.domain.launch_labels import Circumstances
from caches.domain.launch_observations import Observation
from caches.domain.launch_timeline import Timeline
from caches.domain.launch_words import LaunchState
from caches.models import Launch, ModelVersion
from controlplane.clusters.models import Node
from controlplane.serving.models import Endpoint, Instance

# A pod that begins this long after a node of its endpoint was lost takes the place of one that ran there.
REPLACES_WITHIN = timedelta(minutes=15)
_NODE_LOST = ("NodeLost", "TaintManagerEviction", "DeletionByTaintManager")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Rows that the observations name, None where there is none (any more)."""

    node: Node | None = None
    endpoint: Endpoint | None = None
    version: ModelVersion | None = None
    digest: str = ""


def fact(seen: Iterable[Observation], name: str) -> str:
    """What the observations say of ``name``; of several the first in their order, "" for nothing."""
    return next((value for one in sorted(seen, key=_by_time) if (value := one.fact(name))), "")


def surroundings_of(launch: Launch, seen: Sequence[Observation]) -> Surroundings:
    """By the names in the observations, and by the instance with the pod's uid."""
    instance = (
        Instance.objects.filter(endpoint__cluster_id=launch.cluster_id, uid=launch.pod_uid)
        .select_related("endpoint", "node")
        .first()
    )
    node_uid, digest = fact(seen, "node_uid"), fact(seen, "digest")
    node = Node.objects.filter(cluster_id=launch.cluster_id, uid=node_uid).first() if node_uid else None
    if node is None and instance is not None:
        node = instance.node
    digest = digest or (instance.digest if instance is not None else "") or launch.digest
    return Surroundings(
        node=node or launch.node,
        endpoint=instance.endpoint if instance is not None else launch.endpoint,
        version=_version(digest),
        digest=digest,
    )


def circumstances_of(launch: Launch, around: Surroundings, timeline: Timeline) -> Circumstances:
    """What classify() decides by. Launches that are assembled later change nothing of this one."""
    began = timeline.started_at or launch.began_at
    others = Launch.objects.filter(cluster_id=launch.cluster_id).exclude(pk=launch.pk)
    node, endpoint, digest = around.node, around.endpoint, around.digest
    first = new = lost = None
    if node is not None and digest:
        first = not others.filter(node=node, digest=digest, began_at__lt=began).exists()
    if endpoint is not None and digest:
        same = others.filter(endpoint=endpoint, digest=digest)
        new = not same.filter(state=LaunchState.READY, began_at__lt=began, ready_at__lte=began).exists()
    if endpoint is not None and launch.restart_count == 0:
        lost = others.filter(endpoint=endpoint).filter(_lost_before(began)).exclude(node=node).exists()
    return Circumstances(
        restart_count=launch.restart_count,
        node_age_seconds=max(0.0, (began - node.joined_at).total_seconds()) if node is not None else None,
        first_of_version_on_node=first,
        new_version=new,
        lost_predecessor=lost,
    )


def _lost_before(began: datetime) -> Q:
    since = began - REPLACES_WITHIN
    gone = Q(node__lost_at__gte=since, node__lost_at__lte=began) & (Q(ended_at__isnull=True) | Q(ended_at__gte=since))
    return Q(state=LaunchState.READY) & (gone | Q(end_reason__in=_NODE_LOST, ended_at__gte=since, ended_at__lte=began))


def _version(digest: str) -> ModelVersion | None:
    """The version with these weights that was registered first."""
    if not digest:
        return None
    return ModelVersion.objects.filter(artifact__digest=digest).select_related("model").order_by("pk").first()


def _by_time(one: Observation) -> tuple[bool, str, str, str]:
    return (one.at is None, one.at.isoformat() if one.at is not None else "", one.mark, repr(one.facts))
