"""Nodes, NodeCaches and Events between their JSON and Hearth's documents. Pure."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from controlplane.clusters import codec
from controlplane.clusters.documents import NodeCacheSpec, NodeCacheStatus
from controlplane.clusters.gateway import ClusterEvent, ObservedNode, ObservedNodeCache
from controlplane.clusters.kubernetes.names import AGENT_MANAGER, API_VERSION, EVENTS_NAMESPACE, NODE_CACHE_KIND

Json = Mapping[str, Any]
MESSAGE_LENGTH = 1000
_FIELD_PATH = re.compile(r"spec\.(?P<init>initC)?(?(init)|c)ontainers\{(?P<name>[^{}]{1,63})\}")

# What ObservedNode.ready and .schedulable say already; these come and go with every hiccup of a kubelet.
MIRRORED_TAINTS = frozenset(
    {"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable", "node.kubernetes.io/unschedulable"}
)
TERMINATION_TAINTS = frozenset(
    {
        "aws-node-termination-handler/asg-lifecycle-termination",
        "aws-node-termination-handler/scheduled-maintenance",
        "aws-node-termination-handler/spot-itn",
        "cloud.google.com/impending-node-termination",
        "hearth.dev/terminating",
        "karpenter.sh/disrupted",
        "node.cloudprovider.kubernetes.io/shutdown",
        "ToBeDeletedByClusterAutoscaler",
    }
)


def observed_node(node: Json, now: datetime) -> ObservedNode:
    """A Node as Hearth sees it. ``now`` dates a termination notice that has no date of its own."""
    metadata, spec = node["metadata"], node.get("spec") or {}
    taints = [taint for taint in spec.get("taints") or () if taint.get("key")]
    return ObservedNode(
        name=metadata["name"],
        uid=metadata["uid"],
        labels=dict(metadata.get("labels") or {}),
        ready=_ready((node.get("status") or {}).get("conditions") or ()),
        schedulable=not spec.get("unschedulable"),
        created_at=time_of(metadata["creationTimestamp"]) or now,
        taints=tuple(sorted({taint["key"] for taint in taints} - MIRRORED_TAINTS)),
        terminating_at=_terminating_at(metadata, taints, now),
    )


def _ready(conditions: Iterable[Json]) -> bool | None:
    for condition in conditions:
        if condition.get("type") == "Ready":
            return {"True": True, "False": False}.get(str(condition.get("status")))
    return None


def _terminating_at(metadata: Json, taints: Iterable[Json], now: datetime) -> datetime | None:
    notices = [taint for taint in taints if taint["key"] in TERMINATION_TAINTS]
    if deleted := metadata.get("deletionTimestamp"):
        return time_of(deleted) or now
    if not notices:
        return None
    return min(_notice_time(taint, now) for taint in notices)


def _notice_time(taint: Json, now: datetime) -> datetime:
    if (added := time_of(taint.get("timeAdded"))) is not None:
        return added
    value = str(taint.get("value") or "")  # some write the second it came
    return datetime.fromtimestamp(int(value), UTC) if value.isdigit() and 9 < len(value) < 11 else now


def same_node(one: ObservedNode, other: ObservedNode) -> bool:
    """Whether two observations say the same, whenever a notice without a date was first seen."""
    if (one.terminating_at is None) != (other.terminating_at is None):
        return False
    return dataclasses.replace(one, terminating_at=other.terminating_at) == other


def node_cache_document(spec: NodeCacheSpec) -> dict[str, Any]:
    """What Hearth applies: the whole spec, owned by the node's incarnation, so that it goes when the node does."""
    return {
        "apiVersion": API_VERSION,
        "kind": NODE_CACHE_KIND,
        "metadata": {"name": spec.node_name, "ownerReferences": [owner(spec.node_name, spec.node_uid)]},
        "spec": codec.encode(spec),
    }


def first_node_cache(node_name: str, node_uid: str) -> dict[str, Any]:
    """What an agent makes where Hearth has said nothing yet: no wish, only a place for its status."""
    return {
        "apiVersion": API_VERSION,
        "kind": NODE_CACHE_KIND,
        "metadata": {"name": node_name, "ownerReferences": [owner(node_name, node_uid)]},
        "spec": {"nodeName": node_name, "nodeUid": node_uid},
    }


def owner(node_name: str, node_uid: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Node", "name": node_name, "uid": node_uid}


def observed_node_cache(stored: Json) -> ObservedNodeCache:
    """A NodeCache as stored; codec.DecodeError (a ValueError) when it is none. A newer writer's fields are ignored."""
    metadata = stored["metadata"]
    spec = spec_of(stored)
    status = stored.get("status")
    return ObservedNodeCache(
        node_name=metadata["name"],
        node_uid=spec.node_uid,
        generation=int(metadata.get("generation", 0)),
        spec=spec,
        status=codec.decode(NodeCacheStatus, status, ignore_unknown=True) if status else None,
    )


def spec_of(stored: Json) -> NodeCacheSpec:
    """The spec alone. One that only an agent wrote has no pool yet."""
    return codec.decode(NodeCacheSpec, {"pool": "", **(stored.get("spec") or {})}, ignore_unknown=True)


def observed_event(event: Json) -> ClusterEvent | None:
    """A core Event; None when it is about nothing that has a name."""
    about = event.get("involvedObject") or {}
    if not about.get("name"):
        return None
    metadata = event["metadata"]
    at = (
        time_of(event.get("eventTime"))
        or time_of(event.get("lastTimestamp"))
        or time_of(metadata.get("creationTimestamp"))
    )
    first, path = time_of(event.get("firstTimestamp")), _FIELD_PATH.fullmatch(str(about.get("fieldPath") or ""))
    return ClusterEvent(
        uid=metadata["uid"],
        at=at or datetime.fromtimestamp(0, UTC),
        object_kind=str(about.get("kind", "")),
        object_name=str(about["name"]),
        object_uid=str(about.get("uid", "")),
        reason=str(event.get("reason", "")),
        message=str(event.get("message", "")),
        first_at=first if first != at else None,
        container=path["name"] if path else "",
        init=path is not None and path["init"] is not None,
        reporter=reporter_of(event),
    )


def reporter_of(event: Json) -> str:
    """The component that wrote a core Event, under either of the names that there are for it."""
    return str((event.get("source") or {}).get("component") or event.get("reportingComponent") or "")


def agent_event(
    *, node_name: str, node_uid: str, reason: str, message: str, at: datetime, instance: str
) -> dict[str, Any]:
    """A core Event about a Node, from its agent. The API server wants a CamelCase reason and a bounded message."""
    stamp = at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": "hearth-agent.", "namespace": EVENTS_NAMESPACE},
        "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": node_name, "uid": node_uid},
        "reason": reason[:128],
        "message": message[:MESSAGE_LENGTH],
        "type": "Normal",
        "count": 1,
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "source": {"component": AGENT_MANAGER, "host": node_name},
        "reportingComponent": AGENT_MANAGER,
        "reportingInstance": instance[:128],
    }


def time_of(value: object) -> datetime | None:
    """An RFC 3339 time; None for anything else."""
    if not isinstance(value, str):
        return None
    try:
        parsed = datetime.fromisoformat(value)
    except ValueError:
        return None
    return parsed.astimezone(UTC) if parsed.tzinfo else None
