"""Registering as an operation of steps: what versions and images do alike. Each says what its row is, how it is worked
on, and how it is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from controlplane.clusters.documents import Reason
from controlplane.errors import HearthError, Missing, Permanent, Transient
from controlplane.operations.models import FINAL_STATES, Operation, OperationState
from controlplane.operations.services import operation_acknowledge, operation_fail, operation_run

Row = TypeVar("Row")
Refuse = Callable[[Row | None, Operation, HearthError], None]


class CanceledMeanwhile(Exception):
    """The operation was cancelled while the last step worked: its transaction is undone."""


def registration_step(
    *,
    operation_id: UUID,
    noun: str,
    patience: timedelta,
    subject: Callable[[Operation], Row | None],
    work: Callable[[Operation, Row], bool],
    refuse: Refuse[Row],
) -> bool:
    """One step. True when the operation ended; False asks for the next step; Transient when to try later, for as long
    as ``patience`` lasts. ``noun`` names the subject (version, image)."""
    operation = Operation.objects.filter(pk=operation_id).first()
    if operation is None or operation.state in FINAL_STATES:
        return True
    row = subject(operation)
    if operation.state == OperationState.CANCELING:
        refuse(row, operation, _canceled(noun))
        operation_acknowledge(operation_id=operation_id, message="Registration was cancelled.")
        return True
    operation_run(operation_id=operation_id)
    try:
        if row is None:
            raise deleted(noun)
        return work(operation, row)
    except Transient as error:
        if timezone.now() - operation.created_at < patience:
            raise
        return _give_up(row, operation, error, refuse)
    except HearthError as error:
        return _give_up(row, operation, error, refuse)
    except CanceledMeanwhile:
        return False


def deleted(noun: str) -> Missing:
    """The row is gone while it is worked on."""
    return Missing(f"{noun}:user:not-found", f"The {noun} was deleted meanwhile.")


def _canceled(noun: str) -> Permanent:
    return Permanent(
        f"{noun}:user:canceled",
        "Registration was cancelled.",
        reason=Reason.CANCELED,
        next_step=f"Retry the operation, or register the {noun} again.",
    )


def _give_up(row: Row | None, operation: Operation, error: HearthError, refuse: Refuse[Row]) -> bool:
    with transaction.atomic():
        refuse(row, operation, error)
        return operation_fail(operation_id=operation.pk, error=error)  # False: cancelled; the next step says so
