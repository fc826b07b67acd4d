"""Pins: intent that a version is warm on pools. Admission, change, suspension and two-phase removal."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import IntegrityError, transaction
from django.db.models import Max, Q
from django.utils import timezone

from caches.domain.plans import Plan
from caches.models import CacheEntry, ModelVersion, Pin, PoolLoop
from caches.selectors.labelled import labelled
from caches.selectors.pin_artifacts import gate_artifact, gate_name, pin_artifacts, pin_name
from caches.services.admission import admit, can_open, draft_pin, node_name, plans_with, target_specs
from caches.services.eviction_requests import evictions_withdraw
from caches.services.loop.pool_rounds import pools_mark_dirty
from caches.services.pin_specs import PinSpec, spec_check, spec_document, spec_fields, spec_of
from controlplane.audit.services import Actor, audit_write
from controlplane.clusters.documents import Action, EntryState
from controlplane.clusters.models import NodePool
from controlplane.errors import Clash, HearthError, Invalid, Missing, Stale
from controlplane.locks import deadlock_retried
from controlplane.operations.models import ACTIVE_STATES, Operation, OperationKind
from controlplane.operations.services import TargetSpec, operation_cancel, operation_start

__all__ = [
    "PinSpec",
    "pin_create",
    "pin_preview",
    "pin_remove",
    "pin_resume",
    "pin_suspend",
    "pin_update",
    "spec_of",
]

RETENTION = "Retention"


def pin_preview(*, spec: PinSpec, pin_id: UUID | None = None) -> tuple[Plan, ...]:
    """What this pin would do, pool by pool. ``pin_id`` names the pin that it would replace. Writes nothing."""
    version, pools = spec_check(spec)
    now = timezone.now()
    pin = Pin.objects.filter(pk=pin_id).first() if pin_id else None
    return plans_with(draft_pin(spec, now=now, pin=pin), version, pools, now=now)


@deadlock_retried
def pin_create(*, actor: Actor, spec: PinSpec, endpoint_id: UUID | None = None) -> tuple[Pin, Operation]:
    """Create the pin and the Operation that follows its warming. With ``endpoint_id`` it belongs to that endpoint.

    Clash ``pin:user:exists`` when the version has a live pin, ``pin:user:insufficient-capacity`` (with ``plans``)
    when there is no room for what its gate needs.
    """
    version, pools = spec_check(spec)
    # Asked first, so that an ordinary duplicate is no error in the log of PostgreSQL; the constraint decides races.
    if version is None and endpoint_id is None:
        raise Invalid("pin:user:invalid", "A pin of an image alone is an endpoint's.", next_step="Name a version.")
    whose = Q(endpoint_id=endpoint_id, image_id=spec.image_id) if endpoint_id else Q(endpoint__isnull=True)
    if Pin.objects.filter(whose, version=version, removed_at__isnull=True).exists():
        raise _pinned(version)
    try:
        with transaction.atomic():
            # The pin's row before the pools' rows, as in every change of a pin: the other way round a removal that
            # waits for the pools and a creation that waits for the removal would wait for each other.
            pin = draft_pin(spec, now=timezone.now())
            pin.endpoint_id = endpoint_id
            pin.save(force_insert=True)
            _lock_pools(pools)
            _make_youngest(pin, pools)
            plans = plans_with(pin, version, pools, now=timezone.now())
            admit(pin, plans)
            pin.pools.set(pools)
            operation = _warm(actor, pin, pools, plans)
            _withdraw_evictions(actor, pin, pools, plans)
            _audit(actor, "pin.create", pin, version, None, spec_document(spec, pools), operation)
            pools_mark_dirty(pool_ids=spec.pool_ids)
    except IntegrityError as error:
        if "caches_one_live_pin_per_" not in str(error):
            raise
        raise _pinned(version) from error
    return pin, operation


@deadlock_retried
def pin_update(*, actor: Actor, pin_id: UUID, changes: Mapping[str, Any], if_updated_at: datetime | None = None) -> Pin:
    """Change fields of PinSpec by name (not the version). Stale when the pin changed since ``if_updated_at``."""
    with transaction.atomic():
        pin = _locked(pin_id, if_updated_at)
        before = spec_of(pin)
        if "version_id" in changes and changes["version_id"] != before.version_id:
            raise Clash("pin:user:version-fixed", "A pin keeps its version.", next_step="Pin the other version too.")
        spec = dataclasses.replace(before, **changes)
        # In the form in which it is read back, so that the same said otherwise is no change.
        spec = dataclasses.replace(spec, pool_ids=tuple(sorted(set(spec.pool_ids))), artifacts=tuple(spec.artifacts))
        version, pools = spec_check(spec)
        old_pools = list(pin.pools.select_related("cluster"))
        if spec != before:
            _lock_pools([*pools, *old_pools])
            plans = _admit_change(pin, version, before, spec, pools)
            Pin.objects.filter(pk=pin.pk).update(**spec_fields(spec), updated_at=timezone.now())
            pin.pools.set(pools)
            pin.refresh_from_db()
            _withdraw_evictions(actor, pin, pools, plans)
            _audit(
                actor, "pin.update", pin, version, spec_document(before, old_pools), spec_document(spec, pools), None
            )
            pools_mark_dirty(pool_ids={*spec.pool_ids, *before.pool_ids})
        pin.refresh_from_db()
    return pin


@deadlock_retried
def pin_remove(
    *, actor: Actor, pin_id: UUID, if_updated_at: datetime | None = None, endpoint_id: UUID | None = None
) -> Operation:
    """Close the pin: its running work is cancelled, and what is warm is held for the pin's retention.

    Stale when the pin changed since ``if_updated_at``.
    """
    with transaction.atomic():
        now = timezone.now()
        _locked(pin_id, if_updated_at, endpoint_id)
        if Pin.objects.filter(pk=pin_id, removed_at__isnull=True).update(removed_at=now, updated_at=now) != 1:
            raise _missing(pin_id)
        related = ("version__model", "version__artifact", "version__image__artifact", "image__artifact")
        pin = Pin.objects.select_related(*related).defer("version__artifact__manifest").get(pk=pin_id)
        pools = list(pin.pools.select_related("cluster"))
        _cancel_warming(actor, pin)
        present = (
            CacheEntry.objects.filter(node__pool__in=pools, node__lost_at=None, artifact__in=pin_artifacts(pin))
            .filter(*labelled(pin.node_selector))
            .exclude(Q(state__in=(EntryState.ABSENT, EntryState.LOST)) & ~Q(desired=Action.ENSURE))
            .select_related("node__pool__cluster")
        )
        if pin.retention_seconds:
            hold_until = now + timedelta(seconds=pin.retention_seconds)
            # A longer hold is somebody else's promise: a shorter one never ends it early.
            shorter = present.filter(Q(hold_until__lt=hold_until) | Q(hold_until=None, hold_reason=""))
            shorter.update(hold_reason=RETENTION, hold_until=hold_until, updated_at=now)
        nodes = {str(entry.node_id): node_name(entry.node) for entry in present}
        operation = operation_start(
            actor=actor,
            kind=OperationKind.PIN_REMOVE,
            subject_type="pin",
            subject_id=str(pin.pk),
            subject_name=gate_name(pin)[:300],
            params={"pin_id": str(pin.pk)},
            targets=[TargetSpec(key, name) for key, name in sorted(nodes.items(), key=lambda item: item[1])],
        )
        _audit(actor, "pin.remove", pin, pin.version, spec_document(spec_of(pin), pools), None, operation)
        pools_mark_dirty(pool_ids=[pool.pk for pool in pools])
    return operation


def pin_suspend(*, actor: Actor, pin_id: UUID) -> Pin:
    """Fetch nothing new for this pin; what is warm stays protected. Repeating it is harmless."""
    return _set_suspended(actor, pin_id, suspended=True)


def pin_resume(*, actor: Actor, pin_id: UUID) -> Pin:
    """Warm again; an Operation follows it unless one still does."""
    return _set_suspended(actor, pin_id, suspended=False)


@deadlock_retried
def _set_suspended(actor: Actor, pin_id: UUID, *, suspended: bool) -> Pin:
    with transaction.atomic():
        pin = _locked(pin_id, by_anybody=True)
        changed = Pin.objects.filter(pk=pin_id, suspended=not suspended).update(
            suspended=suspended, updated_at=timezone.now()
        )
        if changed:
            pools = list(pin.pools.select_related("cluster").order_by("pk"))
            action = "pin.suspend" if suspended else "pin.resume"
            operation = None
            if not suspended and not _active(pin):
                _lock_pools(pools)
                pin.suspended = False
                plans = plans_with(pin, pin.version, pools, now=timezone.now())
                operation = _warm(actor, pin, pools, plans)
                _withdraw_evictions(actor, pin, pools, plans)
            _audit(actor, action, pin, pin.version, {"suspended": not suspended}, {"suspended": suspended}, operation)
            pools_mark_dirty(pool_ids=[pool.pk for pool in pools])
        pin.refresh_from_db()
    return pin


def _admit_change(
    pin: Pin, version: ModelVersion | None, before: PinSpec, spec: PinSpec, pools: list[NodePool]
) -> tuple[Plan, ...]:
    now = timezone.now()
    draft = draft_pin(spec, now=now, pin=pin)
    plans = plans_with(draft, version, pools, now=now)
    added = set(spec.pool_ids) - set(before.pool_ids)
    # What was admitted stays admitted: only new pools and a wider placement or gate can be refused.
    as_before = draft_pin(dataclasses.replace(spec, gate_type=before.gate_type, gate_value=before.gate_value), now=now)
    stricter = (spec.gate_type, spec.gate_value) != (before.gate_type, before.gate_value) and can_open(as_before, plans)
    other = gate_artifact(draft) != gate_artifact(draft_pin(before, now=now))
    if added or stricter or other or spec.placement != before.placement or spec.node_selector != before.node_selector:
        admit(draft, plans)
    return plans


def _withdraw_evictions(actor: Actor, pin: Pin, pools: Sequence[NodePool], plans: Sequence[Plan]) -> None:
    """In the same transaction: an eviction that was asked for before must not outlive the pin."""
    ids = [pool.pk for pool in pools]
    for artifact in pin_artifacts(pin):
        evictions_withdraw(plans=plans, pool_ids=ids, artifact_id=artifact.pk, actor=actor)


def _warm(actor: Actor, pin: Pin, pools: Sequence[NodePool], plans: Sequence[Plan]) -> Operation:
    operation = operation_start(
        actor=actor,
        kind=OperationKind.PIN_WARM,
        subject_type="pin",
        subject_id=str(pin.pk),
        subject_name=gate_name(pin)[:300],
        params={"pin_id": str(pin.pk)},
        targets=target_specs(plans, pin, pools),
    )
    Pin.objects.filter(pk=pin.pk).update(operation=operation)
    pin.operation = operation
    return operation


def _lock_pools(pools: Sequence[NodePool]) -> None:
    """Admissions that share a pool wait for each other here; always in the order of the loop rows' ids."""
    ids = {pool.pk for pool in pools}
    PoolLoop.objects.bulk_create([PoolLoop(pool_id=pk) for pk in sorted(ids)], ignore_conflicts=True)
    list(PoolLoop.objects.select_for_update(no_key=True).filter(pool_id__in=ids).order_by("id").values_list("pk"))
    going = NodePool.objects.filter(pk__in=ids, deleting_at__isnull=False).select_related("cluster").first()
    if going is not None:
        step = "Name another pool, or cancel the deletion first."
        raise Clash("pin:user:pool-deleting", f"Pool {going.full_name} is being deleted.", next_step=step)


def _make_youngest(pin: Pin, pools: Sequence[NodePool]) -> None:
    """Age is the order of admission, not of asking: one that waited for the pools must not outrank, as the older pin,
    what was admitted meanwhile. Looking at the others' times instead of a clock also holds between two hosts."""
    others = Pin.objects.filter(pools__in=pools, removed_at__isnull=True).exclude(pk=pin.pk)
    latest = others.aggregate(latest=Max("created_at"))["latest"]
    pin.created_at = max(timezone.now(), latest + timedelta(microseconds=1)) if latest else timezone.now()
    Pin.objects.filter(pk=pin.pk).update(created_at=pin.created_at)


def _locked(
    pin_id: UUID,
    if_updated_at: datetime | None = None,
    endpoint_id: UUID | None = None,
    *,
    by_anybody: bool = False,
) -> Pin:
    """The live pin for a change. What belongs to an endpoint is changed by nobody else, save for pausing it."""
    rows = Pin.objects.select_for_update(no_key=True, of=("self",)).select_related(
        "version__model", "version__artifact"
    )
    pin = rows.filter(pk=pin_id, removed_at__isnull=True).first()
    if pin is None:
        raise _missing(pin_id)
    if pin.endpoint_id is not None and pin.endpoint_id != endpoint_id and not by_anybody:
        raise Clash(
            "pin:user:locked",
            f"This pin belongs to the endpoint {pin.endpoint} and changes with it.",
            next_step="Change the endpoint, or pin the version yourself beside it.",
        )
    if if_updated_at is not None and pin.updated_at != if_updated_at:
        raise Stale(
            "pin:user:changed-meanwhile",
            "Somebody changed this pin since you read it.",
            next_step="Read it again, and repeat your change if it still makes sense.",
        )
    return pin


def _active(pin: Pin) -> bool:
    return Operation.objects.filter(
        kind=OperationKind.PIN_WARM, subject_type="pin", subject_id=str(pin.pk), state__in=ACTIVE_STATES
    ).exists()


def _cancel_warming(actor: Actor, pin: Pin) -> None:
    active = Operation.objects.filter(
        kind=OperationKind.PIN_WARM, subject_type="pin", subject_id=str(pin.pk), state__in=ACTIVE_STATES
    )
    for operation_id in active.values_list("pk", flat=True):
        try:
            operation_cancel(actor=actor, operation_id=operation_id)
        except HearthError:
            continue  # it ended meanwhile


def _pinned(version: ModelVersion | None) -> Clash:
    return Clash(
        "pin:user:exists",
        f"{version.full_name if version is not None else 'The image'} is already pinned.",
        next_step="Change the existing pin: add pools to it or raise its priority.",
    )


def _missing(pin_id: UUID) -> Missing:
    return Missing("pin:user:not-found", f"There is no pin {pin_id}, or it was removed.")


def _audit(
    actor: Actor,
    action: str,
    pin: Pin,
    version: ModelVersion | None,
    before: Mapping[str, Any] | None,
    after: Mapping[str, Any] | None,
    operation: Operation | None,
) -> None:
    audit_write(
        actor=actor,
        action=action,
        object_type="pin",
        object_id=str(pin.pk),
        object_name=version.full_name if version is not None else pin_name(pin),
        before=before,
        after=after,
        operation_id=operation.pk if operation else None,
    )
