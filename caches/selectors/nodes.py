"""Clusters, pools and nodes for pages and REST, with what each node should hold and holds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import (
    BooleanField,
    Case,
    CharField,
    Count,
    DateTimeField,
    DurationField,
    ExpressionWrapper,
    F,
    Q,
    QuerySet,
    Value,
    When,
)
from django.db.models.functions import Coalesce, Least
from django.utils import timezone

from caches.domain.demand import selects
from caches.domain.pool_view import PlacementType
from caches.models import CacheEntry, Pin
from caches.selectors.image_demand import holds_images
from caches.selectors.live_pins import Want, images_wanted, live_pins, weights_wanted
from controlplane.accounts.access import targets_filter
from controlplane.clusters.documents import Action, EntryState, NodeState
from controlplane.clusters.freshness import DEFAULT_FRESHNESS_SECONDS
from controlplane.clusters.models import Cluster, Node, NodePool

Targets = frozenset[str] | None  # accounts.access.readable_targets


@dataclass(frozen=True, slots=True)
class NodeCoverage:
    """Pinned weights that belong on a node, and those that are verified there now. ``images`` is the same of images,
    None where none belongs there."""

    required: int = 0
    ready: int = 0
    bytes_required: int = 0
    bytes_ready: int = 0
    images: NodeCoverage | None = None


def clusters_list(*, targets: Targets = None) -> QuerySet[Cluster]:
    """Clusters the reader may see in whole or in part, with ``nodes_count`` live nodes."""
    return clusters_seen(targets).annotate(nodes_count=Count("nodes", filter=Q(nodes__lost_at__isnull=True)))


def clusters_seen(targets: Targets) -> QuerySet[Cluster]:
    """The same clusters without a look at their nodes."""
    names = None if targets is None else {target.partition(".")[0] for target in targets}
    return Cluster.objects.all() if names is None else Cluster.objects.filter(name__in=names)


def pools_list(*, targets: Targets = None) -> QuerySet[NodePool]:
    """Pools with their cluster and ``nodes_count`` live nodes."""
    rows = NodePool.objects.filter(targets_filter(targets, cluster="cluster__name", pool="name"))
    return rows.select_related("cluster").annotate(nodes_count=Count("nodes", filter=Q(nodes__lost_at__isnull=True)))


def nodes_list(*, targets: Targets = None, now: datetime | None = None) -> QuerySet[Node]:
    """Node incarnations with cluster and pool; ``shown_state`` is their NodeState at ``now``.

    ``silent`` says that nobody knows what they hold now: also of a NotReady node whose agent has not reported lately.
    """
    at = now or timezone.now()
    visible = targets_filter(targets, cluster="cluster__name", pool="pool__name")
    rows = Node.objects.filter(visible).select_related("cluster", "pool__cluster")
    silent = ExpressionWrapper(silent_nodes(at), output_field=BooleanField())
    return rows.annotate(shown_state=_node_state(at), silent=silent)


def silent_nodes(now: datetime, prefix: str = "") -> Q:
    """A condition: nobody knows what a live node holds now. ``prefix`` leads from the row to its node."""
    old = stale(now, f"{prefix}observed_at", f"{prefix}pool__") | stale(now, f"{prefix}reported_at", f"{prefix}pool__")
    return Q(**{f"{prefix}lost_at__isnull": True}) & (Q(**{f"{prefix}ready__isnull": True}) | old)


def broken_nodes(now: datetime) -> Q:
    """A condition: nodes that are shown as NotReady, lost ones aside."""
    return Q(ready=False) & ~stale(now, "observed_at", "pool__")


def silent_since(prefix: str = "") -> Least:
    """When the first of the two observations of a silent node ran out; NULL where neither was ever made."""
    limit = _limit(f"{prefix}pool__")
    fields = (f"{prefix}observed_at", f"{prefix}reported_at")
    return Least(*(ExpressionWrapper(F(field) + limit, output_field=DateTimeField()) for field in fields))


def stale(now: datetime, field: str, pool: str) -> Q:
    """A condition: the time in ``field`` is older than the pool's freshness limit. SQL form of freshness.is_fresh."""
    limit = ExpressionWrapper(Value(now, output_field=DateTimeField()) - _limit(pool), output_field=DateTimeField())
    return Q(**{f"{field}__isnull": True}) | Q(**{f"{field}__lt": limit})


def _limit(pool: str) -> ExpressionWrapper[Any]:
    seconds = Coalesce(F(f"{pool}freshness_seconds"), Value(DEFAULT_FRESHNESS_SECONDS))
    return ExpressionWrapper(seconds * Value(timedelta(seconds=1)), output_field=DurationField())


def last_known(node: Node) -> str | None:
    """What an Unknown node last was, None when nobody ever said."""
    if node.ready is None:
        return None
    if not node.ready:
        return NodeState.NOT_READY
    if node.terminating_at is not None:
        return NodeState.TERMINATING
    return NodeState.READY if node.schedulable else NodeState.CORDONED


def free_bytes(node: Node) -> int | None:
    """Bytes that nobody occupies on the node's disk, None while its size is unknown."""
    if node.capacity_bytes is None:
        return None
    return max(0, node.capacity_bytes - node.used_bytes - node.other_bytes)


def node_coverage(nodes: Sequence[Node]) -> Mapping[UUID, NodeCoverage]:
    """Coverage of each node in three queries, however many nodes. Nodes need ``silent`` (nodes_list)."""
    copies = _copies_by_node(nodes)
    pins = live_pins({node.pool_id for node in nodes if node.pool_id is not None})
    return {node.id: _coverage(node, pins.get(node.pool_id, ()), copies.get(node.id, {})) for node in nodes}


def _node_state(now: datetime) -> Case:
    return Case(
        When(lost_at__isnull=False, then=Value(NodeState.LOST.value)),
        When(Q(ready__isnull=True) | stale(now, "observed_at", "pool__"), then=Value(NodeState.UNKNOWN.value)),
        When(ready=False, then=Value(NodeState.NOT_READY.value)),
        When(terminating_at__isnull=False, then=Value(NodeState.TERMINATING.value)),
        When(stale(now, "reported_at", "pool__"), then=Value(NodeState.UNKNOWN.value)),
        When(schedulable=True, then=Value(NodeState.READY.value)),
        default=Value(NodeState.CORDONED.value),
        output_field=CharField(),
    )


class _Copy(NamedTuple):
    """What coverage reads of an entry: model instances would be most of the time."""

    state: str
    desired: str


def _copies_by_node(nodes: Sequence[Node]) -> Mapping[UUID, Mapping[UUID | None, _Copy]]:
    found: dict[UUID, dict[UUID | None, _Copy]] = defaultdict(dict)
    rows = CacheEntry.objects.filter(node__in=nodes).order_by()
    for node_id, artifact_id, *facts in rows.values_list("node_id", "artifact_id", "state", "desired"):
        found[node_id][artifact_id] = _Copy(*facts)
    return found


def _coverage(node: Node, pins: Sequence[Pin], copies: Mapping[UUID | None, _Copy]) -> NodeCoverage:
    if node.lost_at is not None:
        return NodeCoverage()
    found = _counted(node, weights_wanted(pins), copies)
    images = images_wanted(pins) if node.pool is not None and holds_images(node.pool) else []
    counted = _counted(node, images, copies)
    return replace(found, images=counted) if counted.required else found


def _counted(node: Node, wants: Sequence[Want], copies: Mapping[UUID | None, _Copy]) -> NodeCoverage:
    needed = {
        want.artifact.pk: want.artifact.size_bytes
        for want in wants
        if _belongs(want.pin, node, copies.get(want.artifact.pk))
    }
    fresh = not node.silent  # type: ignore[attr-defined]  # annotated by nodes_list
    ready = {
        artifact: size
        for artifact, size in needed.items()
        if fresh and (copy := copies.get(artifact)) is not None and copy.state == EntryState.READY
    }
    return NodeCoverage(len(needed), len(ready), sum(needed.values()), sum(ready.values()))


def _belongs(pin: Pin, node: Node, copy: _Copy | None) -> bool:
    return belongs(pin, node.labels, desired=copy.desired if copy is not None else "")


def belongs(pin: Pin, labels: Mapping[str, str], *, desired: str) -> bool:
    """Whether the pin wants its artifact on a node with these labels, where ``desired`` is of it now.

    Which nodes a count or percentage falls on is the planner's choice; its choice shows in what is desired.
    """
    if not selects(pin.node_selector, labels):
        return False
    return pin.placement_type == PlacementType.ALL or desired == Action.ENSURE
