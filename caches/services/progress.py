"""How the Operations of pins and entries get on: each step reads what was observed and records it, nothing more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from caches.domain.gating import Gate, GateState, GateType, gate
from caches.domain.states import is_moving_bytes, is_permanent
from caches.domain.text import plural
from caches.models import CacheEntry, Pin
from caches.selectors.pin_artifacts import gate_artifact, pin_artifacts, pins_of
from caches.services.eviction_requests import eviction_fail
from caches.services.loop.pool_rounds import pools_mark_dirty
from caches.services.progress_targets import (
    Seen,
    clusters_unheard,
    gate_target,
    targets_now,
    targets_record,
    targets_seen,
    warm_target,
)
from caches.services.scrub_findings import DAMAGED, MOVED, scrub_found
from controlplane.audit.services import Actor, audit_write
from controlplane.clusters.documents import Action, EntryState
from controlplane.errors import Missing, Permanent
from controlplane.operations.models import Operation, OperationState, TargetState
from controlplane.operations.services import (
    operation_acknowledge,
    operation_fail,
    operation_progress,
    operation_succeed,
    operation_targets_add,
)

_SUSPENDED = "The pin is suspended."
_ENDED = (TargetState.SUCCEEDED, TargetState.FAILED, TargetState.SKIPPED)


def warm_step(operation_id: UUID) -> bool:
    """PinWarm: the gate over the targets as they were at the start decides."""
    operation = Operation.objects.get(pk=operation_id)
    pin = _pin(operation)
    artifact = gate_artifact(pin) if pin is not None else None
    if pin is None or artifact is None:
        return _fail(operation, "operation:user:subject-gone", "The pin does not exist any more.")
    seen = targets_seen(operation, artifact.pk, pin)
    if operation.state == OperationState.CANCELING:
        return _acknowledge_when_quiet(operation, pin, seen)
    if not seen:
        return _look_for_targets(operation, pin)
    targets_record([(item, *warm_target(item)) for item in seen])
    decided = gate(
        GateType(pin.gate_type),
        pin.gate_value,
        [gate_target(item) for item in seen],
        started_at=operation.started_at or operation.created_at,
        now=timezone.now(),
    )
    if decided.state is GateState.OPEN:
        result = {"ready": decided.ready, "required": decided.required, "targets": len(seen)}
        with transaction.atomic():
            _record_bytes(operation, seen, decided, suspended=pin.suspended, last=True)
            return operation_succeed(operation_id=operation_id, result=result, message=decided.reason)
    if decided.state is GateState.FAILED:
        with transaction.atomic():
            _record_bytes(operation, seen, decided, suspended=pin.suspended, last=True)
            return _fail(operation, "pin:node:gate-unreachable", decided.reason, _first_step(seen))
    _record_bytes(operation, seen, decided, suspended=pin.suspended)
    return True


def remove_step(operation_id: UUID) -> bool:
    """PinRemove: done when nothing is fetched for the pin any more; what is warm stays until room is needed."""
    operation = Operation.objects.get(pk=operation_id)
    pin = _pin(operation)
    artifact = gate_artifact(pin) if pin is not None else None
    if pin is None or artifact is None:
        return operation_succeed(operation_id=operation_id, message="Nothing is left of it.")
    seen = targets_seen(operation, artifact.pk)
    if operation.state == OperationState.CANCELING:
        return operation_acknowledge(operation_id=operation_id, message="The pin stays removed.")
    shared = set(pins_of(artifact.pk).values_list("pools", flat=True))
    found = []
    for item in seen:
        if item.lost:
            found.append((item, TargetState.SKIPPED, "Its node is gone."))
        elif item.node is not None and item.node.pool_id in shared and _is_wanted(item):
            found.append((item, TargetState.SUCCEEDED, "Another pin still wants it."))
        elif is_moving_bytes(item.entry_state) and item.entry_state is not EntryState.REPAIRING:
            found.append((item, TargetState.RUNNING, "The transfer is being stopped."))
        else:
            found.append((item, TargetState.SUCCEEDED, _kept(item)))
    return _finish(operation, found)


def evict_step(operation_id: UUID) -> bool:
    """EntryEvict: done when the node reports that the files are gone."""
    operation = Operation.objects.get(pk=operation_id)
    entry = _entry(operation)
    if operation.state == OperationState.CANCELING:
        return operation_acknowledge(operation_id=operation_id)
    if entry is None or entry.state == EntryState.LOST:
        return _end_single(operation, TargetState.SKIPPED, "Its node is gone.")
    if entry.state == EntryState.ABSENT:
        return _end_single(operation, TargetState.SUCCEEDED, "The files are gone.")
    if entry.evict_requested_at is None:
        eviction_fail(operation_id=operation_id)
        return True
    going = entry.desired == Action.EVICT
    text = "The node removes the files." if going else "Waiting until nothing uses it."
    operation_progress(operation_id=operation_id, message=text)
    return True


def scrub_step(operation_id: UUID) -> bool:
    """EntryScrub: done when the node echoes the round and the entry is Ready, failed when damage cannot be repaired."""
    operation = Operation.objects.get(pk=operation_id)
    entry = _entry(operation)
    if operation.state == OperationState.CANCELING:
        return operation_acknowledge(operation_id=operation_id, message="The node may still finish reading.")
    if entry is None or entry.state in (EntryState.LOST, EntryState.ABSENT):
        return _end_single(operation, TargetState.SKIPPED, "The entry is gone.")
    checked = entry.observed_verify_round >= int(operation.params["round"])
    found = scrub_found(operation, entry)
    if checked and entry.state == EntryState.READY:
        return _end_single(operation, TargetState.SUCCEEDED, found.message, found.result)
    if checked and entry.state == EntryState.FAILED and is_permanent(entry.reason):
        return _fail(operation, "entry:source:not-repairable", entry.message or entry.reason)
    # What was damaged is kept at once: the node forgets it when it is right again.
    params = {**operation.params, DAMAGED: found.damaged} if found.is_news else None
    text = plural(found.count, "damaged file") if found.damaged else ""
    operation_progress(operation_id=operation_id, message=text, params=params)
    return True


def warm_canceled(operation: Operation, actor: Actor) -> None:
    """A cancel is an intent: the pin is suspended, and the loop never undoes that."""
    _suspend(operation, actor, suspended=True)


def warm_retried(operation: Operation, actor: Actor) -> None:
    """The pin is resumed, and what had failed is tried again at once."""
    pin = _pin(operation)
    if pin is None or pin.removed_at is not None:
        raise Permanent("pin:user:removed", "The pin was removed.", next_step="Pin the version again.", status=409)
    Pin.objects.filter(pk=pin.pk).update(operation=operation)
    _suspend(operation, actor, suspended=False)
    nodes = list(operation.targets.values_list("key", flat=True))
    CacheEntry.objects.filter(node_id__in=nodes, artifact__in=pin_artifacts(pin), state=EntryState.FAILED).update(
        retry_round=F("retry_round") + 1, updated_at=timezone.now()
    )
    pools_mark_dirty(pool_ids=list(pin.pools.values_list("pk", flat=True)))


def evict_canceled(operation: Operation, actor: Actor) -> None:
    """Take the request back; files that are gone already stay gone."""
    _set_evict(operation, None)


def evict_retried(operation: Operation, actor: Actor) -> None:
    _set_evict(operation, timezone.now())


def scrub_retried(operation: Operation, actor: Actor) -> None:
    """A new round, so that an answer to the old one does not count."""
    entry_id = operation.params["entry_id"]
    CacheEntry.objects.filter(pk=entry_id).update(verify_round=F("verify_round") + 1, updated_at=timezone.now())
    entry = CacheEntry.objects.select_related("node").filter(pk=entry_id).first()
    if entry is None:
        raise Missing("entry:user:not-found", "The entry does not exist any more.")
    operation.params = {**operation.params, "round": entry.verify_round, MOVED: entry.bytes_moved}
    Operation.objects.filter(pk=operation.pk).update(params=operation.params)
    _mark([entry])


def _look_for_targets(operation: Operation, pin: Pin) -> bool:
    """An operation without targets ends only on the word of the clusters that there is no node for it: a pool may be
    younger than the last word about its nodes."""
    silent = clusters_unheard(pin, since=operation.created_at)
    if silent or pin.suspended:
        text = _SUSPENDED if pin.suspended else f"Waiting until {' and '.join(silent)} has said which nodes there are."
        operation_progress(operation_id=operation.pk, message=text, force=text != operation.message)
        return True
    if targets := targets_now(pin):
        operation_targets_add(operation_id=operation.pk, targets=targets)
        return True
    return operation_succeed(operation_id=operation.pk, message="No node matches the pin yet; new ones are warmed.")


def _record_bytes(
    operation: Operation, seen: list[Seen], decided: Gate, *, suspended: bool, last: bool = False
) -> None:
    """The sum over the targets as they were just recorded; ``last`` writes it however recent the one before is."""
    live = [item for item in seen if not item.lost]
    etas = [item.entry.eta_seconds for item in live if item.entry and item.entry.eta_seconds is not None]
    moving = [item for item in live if is_moving_bytes(item.entry_state)]
    operation_progress(
        operation_id=operation.pk,
        bytes_done=sum(item.target.bytes_done for item in live),
        bytes_total=sum(item.target.bytes_total for item in live),
        eta_seconds=max(etas) if etas and len(etas) == len(moving) else None,
        message=_SUSPENDED if suspended else decided.reason,
        force=last,
    )


def _acknowledge_when_quiet(operation: Operation, pin: Pin, seen: list[Seen]) -> bool:
    """Cancelled once no node that can be heard of is still fetching."""
    busy = [s for s in seen if not s.silent and not s.lost and is_moving_bytes(s.entry_state)]
    if busy:
        return True
    suspended = "The pin is suspended; what is warm stays."
    removed = "The pin was removed; what is warm stays until room is needed."
    return operation_acknowledge(operation_id=operation.pk, message=removed if pin.removed_at else suspended)


def _is_wanted(item: Seen) -> bool:
    return item.entry is not None and item.entry.desired == Action.ENSURE


def _kept(item: Seen) -> str:
    if item.entry is None or item.entry_state is EntryState.ABSENT:
        return "Nothing is there."
    if item.entry.hold_until is not None:
        return f"Kept until {item.entry.hold_until:%Y-%m-%d %H:%M} UTC, then until room is needed."
    return "Kept until room is needed."


def _finish(operation: Operation, found: list[tuple[Seen, TargetState, str]]) -> bool:
    targets_record(found)
    if all(state in _ENDED for _, state, _ in found):
        return operation_succeed(operation_id=operation.pk)
    operation_progress(operation_id=operation.pk)
    return True


def _end_single(operation: Operation, state: TargetState, detail: str, result: Mapping[str, Any] | None = None) -> bool:
    operation.targets.update(state=state, detail=detail[:1000], updated_at=timezone.now())
    return operation_succeed(operation_id=operation.pk, message=detail, result=result)


def _fail(operation: Operation, code: str, detail: str, next_step: str = "") -> bool:
    operation.targets.exclude(state__in=_ENDED).update(
        state=TargetState.FAILED, detail=detail[:1000], updated_at=timezone.now()
    )
    error = Permanent(code, detail, next_step=next_step or "Remove the cause, then retry the operation.")
    if not operation_fail(operation_id=operation.pk, error=error):
        operation_acknowledge(operation_id=operation.pk, message=detail)
    return True


def _first_step(seen: Iterable[Seen]) -> str:
    return next((str(item.refusal["next_step"]) for item in seen if item.refusal), "")


def _pin(operation: Operation) -> Pin | None:
    related = ("version__model", "version__artifact", "version__image__artifact", "image__artifact")
    rows = Pin.objects.select_related(*related).defer("version__artifact__manifest")
    return rows.filter(pk=operation.params["pin_id"]).first()


def _entry(operation: Operation) -> CacheEntry | None:
    rows = CacheEntry.objects.select_related("node")
    return rows.filter(pk=operation.params["entry_id"], node__lost_at__isnull=True).first()


def _set_evict(operation: Operation, at: Any) -> None:
    rows = CacheEntry.objects.filter(pk=operation.params["entry_id"])
    # Files that are gone already need no request, which would only wait for those that come after them.
    asked = rows if at is None else rows.exclude(state__in=(EntryState.ABSENT, EntryState.LOST))
    asked.update(evict_requested_at=at, updated_at=timezone.now())
    _mark(rows.select_related("node"))


def _mark(entries: Iterable[CacheEntry]) -> None:
    pools_mark_dirty(pool_ids=[entry.node.pool_id for entry in entries if entry.node.pool_id])


def _suspend(operation: Operation, actor: Actor, *, suspended: bool) -> None:
    pin_id = operation.params["pin_id"]
    rows = Pin.objects.filter(pk=pin_id, suspended=not suspended, removed_at__isnull=True)
    if rows.update(suspended=suspended, updated_at=timezone.now()) != 1:
        return
    audit_write(
        actor=actor,
        action="pin.suspend" if suspended else "pin.resume",
        object_type="pin",
        object_id=str(pin_id),
        object_name=operation.subject_name,
        before={"suspended": not suspended},
        after={"suspended": suspended},
        operation_id=operation.pk,
    )
    pools_mark_dirty(
        pool_ids=list(Pin.pools.through.objects.filter(pin_id=pin_id).values_list("nodepool_id", flat=True))
    )
