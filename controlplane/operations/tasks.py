"""Thin tasks around controlplane.operations.steps."""

from __future__ import annotations

from uuid import UUID

from celery import shared_task

from controlplane.celery import publish
from controlplane.operations import steps


@shared_task(name="operations.step")
def step(operation_id: str) -> None:
    """One step of one operation, queued again at once while there is more to do."""
    if not steps.operation_step(operation_id=UUID(operation_id)):
        publish("operations.step", operation_id)


@shared_task(name="operations.resume")
def resume() -> None:
    steps.operations_resume()
