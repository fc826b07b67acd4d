"""Operations for pages and REST."""

from __future__ import annotations

from uuid import UUID

from django.db.models import QuerySet

from controlplane.errors import Missing
from controlplane.operations.models import Operation


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
