"""Which step drives which kind of Operation; registered once from AppConfig.ready()."""

from __future__ import annotations

from uuid import UUID

from caches.services import pool_deletion, progress
from caches.services.catalogue import version_recheck_step, version_resolve_step
from caches.services.endpoints.documents import endpoint_apply_step
from caches.services.images.resolving import image_resolve_step
from caches.services.launches.trials import trial_step
from controlplane.operations.handlers import OperationHandler, register
from controlplane.operations.models import OperationKind

# Steps that only read observations are cheap; waiting for the next one is what a person would notice.
_WATCHED_SECONDS = 1.5


def register_handlers() -> None:
    """Idempotent."""
    register(OperationKind.MODEL_REGISTER, OperationHandler(step=_resolve))
    register(OperationKind.MODEL_RECHECK, OperationHandler(step=_recheck))
    register(OperationKind.IMAGE_REGISTER, OperationHandler(step=_resolve_image))
    register(OperationKind.ENDPOINT_APPLY, OperationHandler(step=_apply_endpoint))
    register(
        OperationKind.PIN_WARM,
        OperationHandler(
            step=progress.warm_step,
            canceled=progress.warm_canceled,
            retried=progress.warm_retried,
            idle_seconds=_WATCHED_SECONDS,
        ),
    )
    register(OperationKind.PIN_REMOVE, OperationHandler(step=progress.remove_step, idle_seconds=_WATCHED_SECONDS))
    register(
        OperationKind.ENTRY_EVICT,
        OperationHandler(
            step=progress.evict_step,
            canceled=progress.evict_canceled,
            retried=progress.evict_retried,
            idle_seconds=_WATCHED_SECONDS,
        ),
    )
    register(
        OperationKind.ENTRY_SCRUB,
        OperationHandler(step=progress.scrub_step, retried=progress.scrub_retried, idle_seconds=_WATCHED_SECONDS),
    )
    register(
        OperationKind.POOL_DELETE,
        OperationHandler(
            step=pool_deletion.delete_step,
            canceled=pool_deletion.delete_canceled,
            retried=pool_deletion.delete_retried,
            idle_seconds=_WATCHED_SECONDS,
        ),
    )
    register(OperationKind.LAUNCH_TRIAL, OperationHandler(step=_trial, idle_seconds=1.0))


def _resolve(operation_id: UUID) -> bool:
    return version_resolve_step(operation_id=operation_id)


def _recheck(operation_id: UUID) -> bool:
    return version_recheck_step(operation_id=operation_id)


def _resolve_image(operation_id: UUID) -> bool:
    return image_resolve_step(operation_id=operation_id)


def _apply_endpoint(operation_id: UUID) -> bool:
    return endpoint_apply_step(operation_id=operation_id)


def _trial(operation_id: UUID) -> bool:
    return trial_step(operation_id=operation_id)
