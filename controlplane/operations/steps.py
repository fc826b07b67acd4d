"""Driving operations forward: one step by id, and a sweep that finds those which nobody stepped for a while.

The sweep is what makes a killed worker, a lost message and an empty broker harmless.
"""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import structlog
from django.db import InterfaceError, OperationalError
from django.utils import timezone

from controlplane.celery import publish
from controlplane.errors import HearthError, Permanent, Transient
from controlplane.locks import advisory_lock
from controlplane.operations.handlers import OperationHandler, handler_of, registered
from controlplane.operations.models import ACTIVE_STATES, Operation, OperationState
from controlplane.operations.services import (
    operation_acknowledge,
    operation_fail,
    operation_progress,
    operation_run,
)

MAX_BUGS = 5
SWEEP_LIMIT = 500

log = structlog.get_logger(__name__)


def operation_step(*, operation_id: UUID) -> bool:
    """One step. True when nothing is left to do now (ended, waiting, or another worker is at it)."""
    with (
        structlog.contextvars.bound_contextvars(operation_id=str(operation_id)),
        advisory_lock(f"operation:{operation_id}") as mine,
    ):
        operation = Operation.objects.filter(pk=operation_id, state__in=ACTIVE_STATES).first() if mine else None
        if operation is None:
            return True
        handler = handler_of(operation.kind)
        if handler is None:
            log.error("operation.unhandled", kind=operation.kind)
            return True
        operation_run(operation_id=operation_id)
        return _step(operation, handler)


def _step(operation: Operation, handler: OperationHandler) -> bool:
    try:
        return handler.step(operation.id)
    except Transient as error:
        operation_progress(operation_id=operation.id, message=error.detail, force=True)
        return True
    except (OperationalError, InterfaceError):
        raise  # the database is away: nothing can be recorded, the sweep comes back
    except Exception as error:
        return _failed(operation, error)


def _failed(operation: Operation, error: Exception) -> bool:
    known = error if isinstance(error, HearthError) else _bug(operation, error)
    if known is not None and not operation_fail(operation_id=operation.id, error=known):
        operation_acknowledge(operation_id=operation.id, message=known.detail)
    return True


def _bug(operation: Operation, error: Exception) -> Permanent | None:
    """A bug is tried again a few times (it may be a race), then ends the operation instead of looping for ever."""
    bugs = int(operation.params.get("_bugs", 0)) + 1
    log.exception("operation.bug", kind=operation.kind, bugs=bugs, exc_info=error)
    if bugs >= MAX_BUGS or operation.state == OperationState.CANCELING:
        return Permanent(
            "operation:hearth:internal",
            f"A step failed with an unexpected error ({type(error).__name__}), {_times(bugs)} by now.",
            reason="Internal",
            next_step="Look for operation.bug in the worker's log, then retry the operation.",
        )
    params = Operation.objects.values_list("params", flat=True).get(pk=operation.id)
    operation_progress(operation_id=operation.id, params={**params, "_bugs": bugs})
    return None


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def operations_resume() -> int:
    """Queue a step for every active operation that is idle for longer than its kind allows; returns how many."""
    now, sent = timezone.now(), 0
    for kind, handler in registered().items():
        idle = Operation.objects.filter(
            kind=kind, state__in=ACTIVE_STATES, updated_at__lte=now - timedelta(seconds=handler.idle_seconds)
        ).order_by("updated_at")
        for operation_id in idle.values_list("id", flat=True)[:SWEEP_LIMIT]:
            if not publish("operations.step", str(operation_id)):
                return sent
            sent += 1
    return sent
