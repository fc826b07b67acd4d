"""Where an operation works, and what stopping or repeating it would do to the fleet."""

from __future__ import annotations

import dataclasses
from uuid import UUID

from caches.domain.plans import Plan
from caches.models import CacheEntry, Pin
from caches.services.entries import entry_evict_preview
from caches.services.pins import pin_preview, spec_of
from controlplane.operations.models import Operation, OperationKind


def effect_of(operation: Operation, *, suspended: bool) -> tuple[Plan, ...]:
    """What its pin, suspended or not, or its eviction would do. Other kinds move no bytes between stores and nodes."""
    pin, entry = _pin(operation), _entry(operation)
    if operation.kind == OperationKind.PIN_WARM and pin is not None and pin.removed_at is None:
        return pin_preview(spec=dataclasses.replace(spec_of(pin), suspended=suspended), pin_id=pin.pk)
    if operation.kind == OperationKind.ENTRY_EVICT and entry is not None and not suspended:
        return (entry_evict_preview(entry_id=entry.pk),)
    return ()


def _pin(operation: Operation) -> Pin | None:
    if operation.kind not in (OperationKind.PIN_WARM, OperationKind.PIN_REMOVE):
        return None
    return Pin.objects.filter(pk=UUID(operation.subject_id)).first()


def _entry(operation: Operation) -> CacheEntry | None:
    if operation.kind not in (OperationKind.ENTRY_EVICT, OperationKind.ENTRY_SCRUB):
        return None
    rows = CacheEntry.objects.select_related("node__pool__cluster", "node__cluster")
    return rows.filter(pk=UUID(operation.subject_id)).first()
