"""Operations for pages and REST."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from django.db.models import CharField, Prefetch, Q, QuerySet
from django.db.models.functions import Cast

from caches.models import CacheEntry, Pin
from caches.selectors.nodes import Targets
from caches.selectors.reach import CATALOGUE, nodes_within, reach
from controlplane.clusters.models import NodePool
from controlplane.errors import Missing
from controlplane.operations.models import Operation, OperationKind, OperationTarget


def operations_list(*, targets: Targets = None) -> QuerySet[Operation]:
    """Operations that the reader may see (reach.py), newest first."""
    return Operation.objects.filter(reach(targets, subject="subject"))


def operation_targets(*, targets: Targets = None) -> QuerySet[OperationTarget]:
    """What operations work on, without the nodes that the reader may not see."""
    if targets is None:
        return OperationTarget.objects.all()
    keys = nodes_within(targets).order_by().annotate(text=Cast("pk", CharField())).values("text")
    return OperationTarget.objects.filter(Q(operation__subject_type__in=CATALOGUE) | Q(key__in=keys))


def operation_get(*, operation_id: UUID, targets: Targets = None) -> Operation:
    """One operation with its targets. Raises errors.Missing, also for one that the reader may not see."""
    rows = operations_list(targets=targets).filter(pk=operation_id)
    found = rows.prefetch_related(Prefetch("targets", queryset=operation_targets(targets=targets))).first()
    if found is None:
        raise Missing(
            "operation:user:not-found",
            f"There is no operation {operation_id}.",
            next_step="List the operations of what you started.",
        )
    return found


def operation_of_pool(pool: NodePool) -> Operation | None:
    """The operation that empties a pool, the newest of them; it is there while the pool is marked as going."""
    return Operation.objects.filter(kind=OperationKind.POOL_DELETE, subject_id=str(pool.pk)).first()


def operation_pools(operation: Operation) -> Sequence[str]:
    """The pools (or clusters) that it touches; none for work on the catalogue or on what is gone."""
    if operation.kind in (OperationKind.PIN_WARM, OperationKind.PIN_REMOVE):
        pin = Pin.objects.filter(pk=UUID(operation.subject_id)).first()
        return [pool.full_name for pool in pin.pools.select_related("cluster")] if pin is not None else ()
    if operation.kind in (OperationKind.ENTRY_EVICT, OperationKind.ENTRY_SCRUB):
        rows = CacheEntry.objects.select_related("node__pool__cluster", "node__cluster")
        entry = rows.filter(pk=UUID(operation.subject_id)).first()
        if entry is not None:
            return [entry.node.pool.full_name if entry.node.pool is not None else entry.node.cluster.name]
    if operation.kind == OperationKind.POOL_DELETE:
        return [operation.subject_name]
    if operation.kind in (OperationKind.ENDPOINT_APPLY, OperationKind.ROUTING_REPLAY, OperationKind.LAUNCH_TRIAL):
        return [operation.subject_name.partition(" ")[0]]
    return ()
