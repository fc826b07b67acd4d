"""Taking back what a person asked to evict once a pin wants it there: otherwise it would go when the pin does."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from caches.domain.plans import Plan
from caches.models import CacheEntry
from caches.services.admission import entry_name
from controlplane.audit.services import SYSTEM, Actor, audit_write
from controlplane.clusters.documents import Action
from controlplane.errors import Permanent
from controlplane.operations.models import ACTIVE_STATES, Operation, OperationKind, TargetState
from controlplane.operations.services import operation_fail

WITHDRAWN = "The eviction was withdrawn: it is pinned now."
_ENDED = (TargetState.SUCCEEDED, TargetState.FAILED, TargetState.SKIPPED)


def evictions_withdraw(
    *, plans: Iterable[Plan], pool_ids: Iterable[UUID], artifact_id: UUID | None = None, actor: Actor = SYSTEM
) -> int:
    """Withdraw requests for entries that these plans keep for a pin and fail their Operations; returns how many."""
    kept = {(plan.cluster, plan.pool, *place) for plan in plans for place in _pinned(plan)}
    asked = CacheEntry.objects.filter(node__pool__in=list(pool_ids), evict_requested_at__isnull=False)
    if artifact_id is not None:
        asked = asked.filter(artifact=artifact_id)
    rows = asked.select_related("node__pool__cluster", "artifact").defer("artifact__manifest").order_by("pk")
    withdrawn = 0
    for entry in rows:
        pool = entry.node.pool
        assert pool is not None  # filtered above
        if (pool.cluster.name, pool.name, entry.node.uid, entry.artifact.digest) in kept:
            withdrawn += _withdraw(entry, actor)
    return withdrawn


def withdrawn_error() -> Permanent:
    """What an eviction's Operation fails with."""
    return Permanent(
        "entry:user:eviction-withdrawn", WITHDRAWN, next_step="Remove or change the pin, then evict the entry again."
    )


def _pinned(plan: Plan) -> set[tuple[str, str]]:
    """(node uid, digest) of what pins hold, await or are refused; what goes all the same is not among them."""
    lines = {
        (uid, item.digest)
        for uid, items in plan.desired.items()
        for item in items
        if item.pin_id and item.action is Action.ENSURE
    }
    lines |= {(wait.node_uid, wait.digest) for wait in plan.waits if wait.pin_id}
    lines |= {(refusal.node_uid, refusal.digest) for refusal in plan.refusals if refusal.pin_id}
    return lines - {(eviction.node_uid, eviction.digest) for eviction in plan.evictions}


def _withdraw(entry: CacheEntry, actor: Actor) -> bool:
    with transaction.atomic():
        now = timezone.now()
        asked = CacheEntry.objects.filter(pk=entry.pk, evict_requested_at=entry.evict_requested_at)
        if asked.update(evict_requested_at=None, updated_at=now) != 1:
            return False
        active = Operation.objects.filter(
            kind=OperationKind.ENTRY_EVICT, subject_id=str(entry.pk), state__in=ACTIVE_STATES
        )
        operations = list(active.values_list("pk", flat=True))
        for operation_id in operations:
            eviction_fail(operation_id=operation_id, actor=actor)
        audit_write(
            actor=actor,
            action="entry.evict-withdrawn",
            object_type="entry",
            object_id=str(entry.pk),
            object_name=entry_name(entry),
            before={"evict_requested": True},
            after={"evict_requested": False},
            message=WITHDRAWN,
            operation_id=operations[0] if operations else None,
        )
    return True


def eviction_fail(*, operation_id: UUID, actor: Actor = SYSTEM) -> bool:
    """End the Operation with its target. False when it was cancelled or had ended: then nothing is written."""
    with transaction.atomic():
        if not operation_fail(operation_id=operation_id, error=withdrawn_error(), actor=actor):
            return False
        operation = Operation.objects.get(pk=operation_id)
        operation.targets.exclude(state__in=_ENDED).update(
            state=TargetState.FAILED, detail=WITHDRAWN, updated_at=timezone.now()
        )
    return True
