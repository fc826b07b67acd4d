"""Operations: follow, cancel, try again."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from caches.api.base import DRY_RUN, PLAN_OR_WORK, WAIT, WORK, ApiRowsView, ApiView
from caches.api.operation_effects import effect_of
from caches.api.plans import plan_response
from caches.api.serializers.operations import OperationSerializer
from caches.filters import OperationFilter
from caches.selectors.operations import operation_get, operation_pools, operations_list
from controlplane.accounts import access
from controlplane.accounts.actors import actor_of
from controlplane.accounts.models import Role, Scope
from controlplane.accounts.permissions import person_of, require_scope, require_target
from controlplane.operations.models import Operation, OperationKind
from controlplane.operations.services import (
    operation_cancel,
    operation_cancel_check,
    operation_retry,
    operation_retry_check,
)
from controlplane.rest.validation import flag

# Whoever may start a kind of work may stop it and start it again.
SCOPES: Mapping[str, Scope] = {
    OperationKind.MODEL_REGISTER: Scope.MODELS_WRITE,
    OperationKind.MODEL_RECHECK: Scope.MODELS_WRITE,
    OperationKind.IMAGE_REGISTER: Scope.MODELS_WRITE,
    OperationKind.PIN_WARM: Scope.PINS_WRITE,
    OperationKind.PIN_REMOVE: Scope.PINS_WRITE,
    OperationKind.ENTRY_EVICT: Scope.EVICT,
    OperationKind.ENTRY_SCRUB: Scope.PINS_WRITE,
    OperationKind.POOL_DELETE: Scope.FLEET_WRITE,
    OperationKind.ENDPOINT_APPLY: Scope.ROLLOUTS_WRITE,
    OperationKind.ROUTING_REPLAY: Scope.ROUTING_WRITE,
    OperationKind.LAUNCH_TRIAL: Scope.FLEET_WRITE,
}


class OperationList(ApiRowsView):
    serializer_class = OperationSerializer
    filterset_class = OperationFilter
    ordering_fields = {"created_at": "created_at", "ended_at": "ended_at", "state": "state", "kind": "kind"}
    ordering = "-created_at"

    def rows(self) -> QuerySet[Operation]:
        return operations_list(targets=self.targets)


class OperationDetail(ApiView):
    """200 when it has ended, 202 when not yet; ``?wait=`` holds the answer meanwhile."""

    parameters = {"GET": ("wait",)}

    @extend_schema(parameters=[WAIT], responses=WORK)
    def get(self, request: Request, operation_id: UUID) -> Response:
        operation_get(operation_id=operation_id, targets=self.targets)
        return self.follow(operation_id)


class OperationAction(ApiView):
    """Base of what can be done to an operation: it needs the scope that its kind needs, where it works."""

    write_scope = None
    parameters = {"POST": ("dry_run", "wait")}
    bodies = ()

    def operation(self, request: Request, operation_id: UUID) -> Operation:
        access.require_anywhere(person_of(request), Role.VIEWER)  # whoever sees nothing is told that, not "no such"
        operation = operation_get(operation_id=operation_id, targets=self.targets)
        scope = SCOPES.get(operation.kind, Scope.ADMIN)
        require_scope(request, scope)
        require_target(request, scope, *operation_pools(operation))
        return operation


class OperationCancel(OperationAction):
    """Ask it to stop. Cancelling the warming of a pin suspends the pin."""

    @extend_schema(request=None, parameters=[DRY_RUN, WAIT], responses=PLAN_OR_WORK)
    def post(self, request: Request, operation_id: UUID) -> Response:
        operation = self.operation(request, operation_id)
        if flag(request, "dry_run"):
            operation_cancel_check(operation)
            return plan_response(effect_of(operation, suspended=True))
        return self.follow(operation_cancel(actor=actor_of(request), operation_id=operation.id).id)


class OperationRetry(OperationAction):
    """Start a failed or cancelled one again, as a new operation that names it in ``retry_of``."""

    @extend_schema(request=None, parameters=[DRY_RUN, WAIT], responses=PLAN_OR_WORK)
    def post(self, request: Request, operation_id: UUID) -> Response:
        operation = self.operation(request, operation_id)
        if flag(request, "dry_run"):
            operation_retry_check(operation)
            return plan_response(effect_of(operation, suspended=False))
        return self.follow(operation_retry(actor=actor_of(request), operation_id=operation.id).id)
