"""Operations for pages and REST."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from django.db.models import QuerySet

from caches.models import CacheEntry, Pin
from controlplane.errors import Missing
from controlplane.operations.models import Operation, OperationKind


def operations_list() -> QuerySet[Operation]:
    """Every operation, newest first."""
    return Operation.objects.all()


def operation_get(*, operation_id: UUID) -> Operation:
    """One operation with its targets. Raises errors.Missing."""
    found = operations_list().filter(pk=operation_id).prefetch_related("targets").first()
    if found is None:
        raise Missing(
            "operation:user:not-found",
            f"There is no operation {operation_id}.",
            next_step="List the operations of what you started.",
        )
    return found


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
    return ()
