"""The life of an Operation. Every state moves by one guarded update: a lost race returns False, never overwrites.

See models.py for the states. Cancelling is two-phase: ``operation_cancel`` asks, the step acknowledges.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from typing import Any, TypeVar
from uuid import UUID

from django.db import transaction
from django.db.models import Sum
from django.utils import timezone

from controlplane.audit.services import SYSTEM, Actor, audit_write
from controlplane.celery import publish_on_commit
from controlplane.errors import Clash, HearthError, Missing
from controlplane.locks import deadlock_retried, transaction_lock
from controlplane.operations.handlers import handler_of
from controlplane.operations.models import (
    ACTIVE_STATES,
    Operation,
    OperationKind,
    OperationState,
    OperationTarget,
    TargetState,
)

T = TypeVar("T")
PROGRESS_INTERVAL = timedelta(seconds=1)
_UNENDED = (OperationState.PENDING, OperationState.RUNNING)
_UNFINISHED = (TargetState.PENDING, TargetState.RUNNING)


@dataclass(frozen=True, slots=True)
class TargetSpec:
    """One target as it is at the start; ``key`` is unique within the operation (for a node: its row id)."""

    key: str
    name: str
    bytes_total: int = 0


def operation_start(
    *,
    actor: Actor,
    kind: OperationKind,
    subject_type: str,
    subject_id: str,
    subject_name: str,
    params: Mapping[str, Any] | None = None,
    targets: Iterable[TargetSpec] = (),
    retry_of: Operation | None = None,
) -> Operation:
    """Create a Pending operation with its targets and queue its first step when the transaction commits."""
    targets = tuple(targets)
    with transaction.atomic():
        operation = Operation.objects.create(
            kind=kind,
            subject_type=subject_type,
            subject_id=str(subject_id),
            subject_name=subject_name[:300],
            params=dict(params or {}),
            bytes_total=sum(target.bytes_total for target in targets),
            started_by=actor.name,
            request_id=actor.request_id,
            retry_of=retry_of,
        )
        OperationTarget.objects.bulk_create(
            OperationTarget(operation=operation, key=t.key, name=t.name[:300], bytes_total=t.bytes_total)
            for t in targets
        )
        publish_on_commit("operations.step", str(operation.id))
    return operation


def operation_run(*, operation_id: UUID) -> bool:
    """Pending → Running. False when it was not Pending."""
    now = timezone.now()
    pending = Operation.objects.filter(pk=operation_id, state=OperationState.PENDING)
    return pending.update(state=OperationState.RUNNING, started_at=now, updated_at=now) == 1


def operation_progress(
    *,
    operation_id: UUID,
    bytes_done: int | None = None,
    bytes_total: int | None = None,
    eta_seconds: float | None = None,
    message: str | None = None,
    params: Mapping[str, Any] | None = None,
    force: bool = False,
) -> bool:
    """Record progress of an unended operation, at most once a second unless ``params`` (the resume point) moved.

    False when nothing was written: too soon, or the operation is no longer Pending or Running.
    """
    now = timezone.now()
    rows = Operation.objects.filter(pk=operation_id, state__in=_UNENDED)
    if params is None and not force:
        rows = rows.filter(updated_at__lte=now - PROGRESS_INTERVAL)
    changes: dict[str, Any] = {"updated_at": now, "eta_seconds": eta_seconds}
    if bytes_done is not None:
        changes["bytes_done"] = bytes_done
    if bytes_total is not None:
        changes["bytes_total"] = bytes_total
    if message is not None:
        changes["message"] = _storable(message)[:1000]
    if params is not None:
        changes["params"] = dict(params)
    return rows.update(**changes) == 1


def operation_targets_add(*, operation_id: UUID, targets: Sequence[TargetSpec]) -> bool:
    """Give an unended operation the targets that could not be known when it was asked for; those it has stay as they
    are. False when it was cancelled or had ended."""
    with transaction.atomic():
        now = timezone.now()
        rows = Operation.objects.filter(pk=operation_id, state__in=_UNENDED)
        if rows.update(updated_at=now) != 1:
            return False
        OperationTarget.objects.bulk_create(
            [
                OperationTarget(operation_id=operation_id, key=t.key, name=t.name[:300], bytes_total=t.bytes_total)
                for t in targets
            ],
            ignore_conflicts=True,
        )
        total = OperationTarget.objects.filter(operation_id=operation_id).aggregate(total=Sum("bytes_total"))["total"]
        rows.update(bytes_total=total or 0)
    return True


def target_update(
    *, operation_id: UUID, key: str, state: TargetState, detail: str = "", bytes_done: int | None = None
) -> bool:
    """Move one target that has not ended yet. False when it had."""
    changes: dict[str, Any] = {"state": state, "detail": _storable(detail)[:1000], "updated_at": timezone.now()}
    if bytes_done is not None:
        changes["bytes_done"] = bytes_done
    rows = OperationTarget.objects.filter(operation_id=operation_id, key=key, state__in=_UNFINISHED)
    return rows.update(**changes) == 1


def operation_succeed(
    *, operation_id: UUID, result: Mapping[str, Any] | None = None, message: str = "", actor: Actor = SYSTEM
) -> bool:
    """Pending or Running → Succeeded. False when it was cancelled or had ended."""
    return _end(operation_id, OperationState.SUCCEEDED, _UNENDED, actor, message=message, result=result)


def operation_fail(*, operation_id: UUID, error: HearthError, actor: Actor = SYSTEM) -> bool:
    """Pending or Running → Failed with the error as a problem document. False when it was cancelled or had ended."""
    document = {name: _storable(value) for name, value in problem_document(error).items()}
    return _end(operation_id, OperationState.FAILED, _UNENDED, actor, message=error.detail, error=document)


def operation_acknowledge(*, operation_id: UUID, message: str = "") -> bool:
    """Canceling → Canceled: the second phase, by whoever did the work. Unfinished targets become Skipped."""
    return _end(operation_id, OperationState.CANCELED, (OperationState.CANCELING,), SYSTEM, message=message)


@deadlock_retried
def operation_cancel(*, actor: Actor, operation_id: UUID) -> Operation:
    """Ask for a cancel; the answer is Canceling. Asking again is harmless, an ended operation is a Clash."""
    with transaction.atomic():
        now = timezone.now()
        rows = Operation.objects.filter(pk=operation_id, state__in=_UNENDED)
        won = rows.update(state=OperationState.CANCELING, updated_at=now) == 1
        operation = _get(operation_id)
        operation_cancel_check(operation)
        if won:
            _audit(operation, actor, "operation.cancel", {"state": OperationState.CANCELING})
            if handler := handler_of(operation.kind):
                handler.canceled(operation, actor)
            publish_on_commit("operations.step", str(operation.id))
    return operation


@deadlock_retried
def operation_retry(*, actor: Actor, operation_id: UUID) -> Operation:
    """A new operation of the same kind, subject and targets that names the old one in ``retry_of``."""
    with transaction.atomic():
        old = _get(operation_id)
        # Two simultaneous retries see each other, also of two ended operations of one subject: the second one finds
        # the first one's operation.
        transaction_lock(f"operation:{old.kind}:{old.subject_type}:{old.subject_id}")
        operation_retry_check(old)
        fresh = operation_start(
            actor=actor,
            kind=OperationKind(old.kind),
            subject_type=old.subject_type,
            subject_id=old.subject_id,
            subject_name=old.subject_name,
            params={key: value for key, value in old.params.items() if not key.startswith("_")},
            targets=[TargetSpec(t.key, t.name, t.bytes_total) for t in old.targets.all()],
            retry_of=old,
        )
        if handler := handler_of(old.kind):
            handler.retried(fresh, actor)
        _audit(fresh, actor, "operation.retry", {"retry_of": str(old.id), "state": fresh.state})
    return fresh


def operation_cancel_check(operation: Operation) -> None:
    """Refuse, as operation_cancel does, what has ended. Writes nothing."""
    if operation.state not in ACTIVE_STATES:
        raise Clash(
            "operation:user:ended",
            f"The operation has already ended: {operation.state}.",
            next_step="Nothing to cancel. Undo what it did with a new request.",
        )


def operation_retry_check(operation: Operation) -> None:
    """Refuse, as operation_retry does, what has not failed, or what somebody does already. Writes nothing."""
    if operation.state not in (OperationState.FAILED, OperationState.CANCELED):
        raise Clash(
            "operation:user:not-retryable",
            f"Only a Failed or Canceled operation can be retried; this one is {operation.state}.",
            next_step="Wait until it ends, or cancel it first.",
        )
    same = {"kind": operation.kind, "subject_type": operation.subject_type, "subject_id": operation.subject_id}
    twin = Operation.objects.filter(**same, state__in=ACTIVE_STATES).first()
    if twin is not None:
        raise Clash(
            "operation:user:already-running",
            f"Operation {twin.id} of the same kind is already working on {operation.subject_name}.",
            next_step=f"Follow operation {twin.id} instead.",
        )


def problem_document(error: HearthError) -> dict[str, Any]:
    """The stored form of an error: the fields of a problem that do not depend on a request."""
    document: dict[str, Any] = {
        "type": "about:blank",
        "title": HTTPStatus(error.status).phrase,
        "status": error.status,
        "detail": error.detail,
        "code": error.code,
        "next_step": error.next_step,
        "reason": getattr(error, "reason", ""),
    }
    if error.errors:
        document["errors"] = [{"field": e.field, "code": e.code, "detail": e.detail} for e in error.errors]
    return document


def _end(
    operation_id: UUID,
    state: OperationState,
    allowed: Sequence[OperationState],
    actor: Actor,
    *,
    message: str = "",
    result: Mapping[str, Any] | None = None,
    error: Mapping[str, Any] | None = None,
) -> bool:
    message = _storable(message)[:1000]
    with transaction.atomic():
        now = timezone.now()
        changes: dict[str, Any] = {"state": state, "ended_at": now, "updated_at": now, "eta_seconds": None}
        if message:
            changes["message"] = message
        if result is not None:
            changes["result"] = dict(result)
        if error is not None:
            changes["error"] = dict(error)
        if Operation.objects.filter(pk=operation_id, state__in=allowed).update(**changes) != 1:
            return False
        if state == OperationState.CANCELED:
            unfinished = OperationTarget.objects.filter(operation_id=operation_id, state__in=_UNFINISHED)
            unfinished.update(state=TargetState.SKIPPED, detail="The operation was cancelled.", updated_at=now)
        operation = _get(operation_id)
        _audit(operation, actor, f"operation.{state.value.lower()}", {"state": state}, message=message)
    return True


def _storable(value: T) -> T:
    """Text as PostgreSQL can hold it. A message may quote a file name or an answer with anything in it, and one that
    cannot be stored would keep its operation from ever ending.
    """
    if isinstance(value, str):
        return value.replace("\0", "").encode(errors="backslashreplace").decode()  # type: ignore[return-value]
    if isinstance(value, list):
        return [_storable(item) for item in value]  # type: ignore[return-value]
    if isinstance(value, dict):
        return {name: _storable(item) for name, item in value.items()}  # type: ignore[return-value]
    return value


def _get(operation_id: UUID) -> Operation:
    operation = Operation.objects.filter(pk=operation_id).first()
    if operation is None:
        raise _missing(operation_id)
    return operation


def _missing(operation_id: UUID) -> Missing:
    return Missing("operation:user:not-found", f"There is no operation {operation_id}.")


def _audit(operation: Operation, actor: Actor, action: str, after: Mapping[str, object], *, message: str = "") -> None:
    audit_write(
        actor=actor,
        action=action,
        object_type=operation.subject_type,
        object_id=operation.subject_id,
        object_name=operation.subject_name,
        after={"kind": operation.kind, **after},
        message=message,
        operation_id=operation.id,
    )
