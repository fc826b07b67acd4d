"""What a launch happened amid, from the rows around it: its node, version and endpoint, and what was there before."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
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


def surroundings_of(pairs: Sequence[tuple[Launch, Sequence[Observation]]]) -> list[Surroundings]:
    """Of each launch, by the names in its observations and by the instance with its pod's uid; three statements."""
    uids = [launch.pod_uid for launch, _ in pairs]
    instances = {
        (one.endpoint.cluster_id, one.uid): one
        for one in Instance.objects.filter(uid__in=uids).select_related("endpoint", "node__pool")
    }
    named = [fact(seen, "node_uid") for _, seen in pairs]
    nodes = {
        (one.cluster_id, one.uid): one
        for one in Node.objects.filter(uid__in=[uid for uid in named if uid]).select_related("pool")
    }
    found = []
    for (launch, seen), node_uid in zip(pairs, named, strict=True):
        instance = instances.get((launch.cluster_id, launch.pod_uid))
        node = nodes.get((launch.cluster_id, node_uid)) or (instance.node if instance is not None else None)
        digest = fact(seen, "digest") or (instance.digest if instance is not None else "") or launch.digest
        endpoint = instance.endpoint if instance is not None else launch.endpoint
        found.append(Surroundings(node or launch.node, endpoint, digest=digest))
    versions = _versions({one.digest for one in found if one.digest})
    return [replace(one, version=versions.get(one.digest)) for one in found]


def circumstances_of(launch: Launch, around: Surroundings, timeline: Timeline) -> Circumstances:
    """What classify() decides by. Launches that are assembled later change nothing of this one."""
    began = timeline.started_at or launch.began_at
    others = Launch.objects.filter(cluster_id=launch.cluster_id).exclude(pk=launch.pk)
    node, endpoint, digest = around.node, around.endpoint, around.digest
    first = new = lost = None
    if node is not None and digest:
        first = not others.filter(node=node, digest=digest, began_at__lt=began).exists()
    if endpoint is not None and digest:
        # By its name: one that was deleted and made again serves the same to whoever asks for it.
        same = others.filter(endpoint__namespace=endpoint.namespace, endpoint__name=endpoint.name, digest=digest)
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


def _versions(digests: Collection[str]) -> Mapping[str, ModelVersion]:
    """Of several versions with the same weights the one that was registered first."""
    rows = ModelVersion.objects.filter(artifact__digest__in=digests).select_related("model", "artifact")
    rows = rows.defer("artifact__manifest").order_by("-pk")
    return {row.artifact.digest: row for row in rows if row.artifact is not None}


def _by_time(one: Observation) -> tuple[bool, str, str, str]:
    return (one.at is None, one.at.isoformat() if one.at is not None else "", one.mark, repr(one.facts))
