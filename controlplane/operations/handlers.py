"""What each kind of Operation does at its steps. Apps register from AppConfig.ready(), so controlplane imports none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from controlplane.audit.services import Actor
from controlplane.operations.models import Operation, OperationKind


def _nothing(operation: Operation, actor: Actor) -> None:
    """Most kinds have nothing to do beside the state change."""


@dataclass(frozen=True, slots=True)
class OperationHandler:
    """``step(operation_id)`` does one short idempotent piece of work in the worker and returns True when nothing is
    left to do now: the operation ended, or it waits for an observation. False asks for the next step at once.
    It may raise HearthError: Permanent fails the operation, Transient leaves it for a later step.

    A step that finds the operation Canceling must stop and call ``operation_acknowledge``. ``canceled`` and
    ``retried`` run inside the transaction that asks for the cancel or makes the new operation. An active operation
    that nobody stepped for ``idle_seconds`` is stepped again: a killed worker or an empty broker costs that long.
    """

    step: Callable[[UUID], bool]
    canceled: Callable[[Operation, Actor], None] = _nothing
    retried: Callable[[Operation, Actor], None] = _nothing
    idle_seconds: float = 15.0


_handlers: dict[str, OperationHandler] = {}


def register(kind: OperationKind, handler: OperationHandler) -> None:
    """The last registration of a kind wins, so that tests may replace one."""
    _handlers[kind] = handler


def handler_of(kind: str) -> OperationHandler | None:
    """None for a kind that no installed app handles."""
    return _handlers.get(kind)


def registered() -> dict[str, OperationHandler]:
    """Every handler by kind."""
    return dict(_handlers)
