"""What an Operation's targets look like now: the node, its entry, and what the planner says about them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import Q
from django.utils import timezone

from caches.domain.gating import Target
from caches.domain.states import is_permanent
from caches.models import Artifact, CacheEntry, Pin, PoolLoop
from caches.selectors.gate_counting import counted
from caches.services.admission import plans_with, target_specs
from controlplane.clusters.documents import EntryState, NodeState
from controlplane.clusters.freshness import DEFAULT_FRESHNESS_SECONDS, is_fresh, node_state
from controlplane.clusters.models import Cluster, Node
from controlplane.operations.models import Operation, OperationTarget, TargetState
from controlplane.operations.services import TargetSpec


@dataclass(frozen=True, slots=True)
class Seen:
    """One target of an operation with what is known of it now."""

    target: OperationTarget
    node: Node | None
    state: NodeState
    entry: CacheEntry | None
    refusal: Mapping[str, Any] | None = None
    silent: bool = False  # nobody knows what the node holds now, whatever the cluster calls its state

    @property
    def lost(self) -> bool:
        return self.state is NodeState.LOST

    @property
    def entry_state(self) -> EntryState:
        return EntryState(self.entry.state) if self.entry else EntryState.ABSENT


def targets_seen(operation: Operation, artifact_id: UUID, pin: Pin | None = None) -> list[Seen]:
    """Every target with its node, entry and, for a pin, the planner's refusal, in four queries."""
    now = timezone.now()
    targets = list(operation.targets.all())
    keys = [target.key for target in targets]
    nodes = {str(n.pk): n for n in Node.objects.filter(pk__in=keys).select_related("pool")}
    entries = {str(e.node_id): e for e in CacheEntry.objects.filter(node_id__in=keys, artifact=artifact_id)}
    refusals = _refusals(operation, nodes.values(), pin, artifact_id) if pin else {}
    found = []
    for target in targets:
        node = nodes.get(target.key)
        state = NodeState.LOST if node is None else _state(node, now)
        silent = node is not None and (state is NodeState.UNKNOWN or not _reported(node, now))
        entry = entries.get(target.key)
        found.append(Seen(target, node, state, entry, refusals.get(node.uid) if node else None, silent))
    return found


def clusters_unheard(pin: Pin, *, since: datetime) -> list[str]:
    """Names of the clusters of the pin's pools that have not been heard of since then: they may have more nodes."""
    clusters = Cluster.objects.filter(pools__pins=pin).filter(Q(observed_at=None) | Q(observed_at__lt=since))
    return list(clusters.order_by("name").values_list("name", flat=True).distinct())


def targets_now(pin: Pin) -> list[TargetSpec]:
    """The nodes on which the pin wants its artifact, as the planner sees them now."""
    pools = list(pin.pools.select_related("cluster").order_by("pk"))
    now = timezone.now()
    return target_specs(plans_with(pin, pin.version, pools, now=now), pin, pools)


def _state(node: Node, now: datetime) -> NodeState:
    return node_state(
        ready=node.ready,
        schedulable=node.schedulable,
        observed_at=node.observed_at,
        reported_at=node.reported_at,
        lost_at=node.lost_at,
        freshness_seconds=_freshness(node),
        now=now,
        terminating=node.terminating_at is not None,
    )


def _reported(node: Node, now: datetime) -> bool:
    return is_fresh(node.reported_at, freshness_seconds=_freshness(node), now=now)


def _freshness(node: Node) -> float:
    return node.pool.freshness_seconds if node.pool else DEFAULT_FRESHNESS_SECONDS


def _refusals(operation: Operation, nodes: Iterable[Node], pin: Pin, artifact_id: UUID) -> dict[str, Mapping[str, Any]]:
    """By node; not those of the image beside the weights."""
    digest = Artifact.objects.values_list("digest", flat=True).get(pk=artifact_id)
    pools = {node.pool_id for node in nodes if node.pool_id}
    # A plan from before the operation knows nothing of what it asks for.
    loops = PoolLoop.objects.filter(pool_id__in=pools, plan__isnull=False, reconciled_at__gt=operation.created_at)
    plans = loops.values_list("plan", flat=True)
    mine = (str(pin.pk), digest)
    return {r["node_uid"]: r for plan in plans if plan for r in plan["refusals"] if (r["pin_id"], r["digest"]) == mine}


def gate_target(item: Seen) -> Target:
    """The target as the gate counts it."""
    if item.lost:
        return Target(item.target.name, EntryState.LOST)
    return counted(item.target.name, item.entry, refused=item.refusal is not None, unknown=item.silent)


def warm_target(item: Seen) -> tuple[TargetState, str]:
    """The target's state and detail as people read it."""
    target = gate_target(item)
    if item.lost:
        return TargetState.SKIPPED, "Its node is gone."
    if target.unknown:
        return TargetState.RUNNING, "The node has not been heard of lately."
    if target.state is EntryState.READY:
        return TargetState.SUCCEEDED, ""
    if target.refused and item.refusal is not None:
        return TargetState.RUNNING, str(item.refusal["detail"])
    if target.state is EntryState.FAILED and item.entry is not None:
        text = f"{item.entry.reason}: {item.entry.message}"
        return (TargetState.FAILED if is_permanent(item.entry.reason) else TargetState.RUNNING), text
    return (TargetState.PENDING if target.state is EntryState.ABSENT else TargetState.RUNNING), target.state.value


def targets_record(found: Iterable[tuple[Seen, TargetState, str]]) -> None:
    """Write the targets that changed; a failed one may recover, one whose node is gone may not."""
    now = timezone.now()
    changed = []
    for item, state, detail in found:
        target = item.target
        done = item.entry.bytes_done if item.entry is not None and not item.lost else target.bytes_done
        if state == TargetState.SUCCEEDED:
            done = target.bytes_total or done  # verified, so all of it is there
        if target.state == TargetState.SKIPPED or (target.state, target.detail, target.bytes_done) == (
            state,
            detail[:1000],
            done,
        ):
            continue
        target.state, target.detail, target.bytes_done, target.updated_at = state, detail[:1000], done, now
        changed.append(target)
    if changed:
        OperationTarget.objects.bulk_update(changed, ["state", "detail", "bytes_done", "updated_at"], batch_size=500)
