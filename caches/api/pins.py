"""Pins: read, preview, create, change, remove."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from caches.api.base import DRY_RUN, PLAN_OR_WORK, WAIT, ApiRowsView, ApiView, plan_or
from caches.api.pin_input import existing_pin, pin_changes, pin_spec, spec_with
from caches.api.plans import plan_document, plan_response
from caches.api.serializers.pins import PinChanges, PinInput, PinSerializer
from caches.filters import PinFilter
from caches.models import Pin
from caches.selectors.pins import pin_get, pin_statuses, pins_list
from caches.selectors.previews import unpin_preview
from caches.services.pins import pin_create, pin_preview, pin_remove, pin_update
from controlplane.accounts.actors import actor_of
from controlplane.accounts.models import Scope
from controlplane.accounts.permissions import require_target
from controlplane.errors import HearthError
from controlplane.rest.etags import expected_version
from controlplane.rest.validation import flag


class PinList(ApiRowsView):
    """GET the live pins; POST one more."""

    write_scope = Scope.PINS_WRITE
    serializer_class = PinSerializer
    filterset_class = PinFilter
    ordering_fields = {"created_at": "created_at", "priority": "priority", "model": "model_name"}
    ordering = "-created_at"
    parameters = {"POST": ("dry_run", "wait")}

    def rows(self) -> QuerySet[Pin]:
        return pins_list(targets=self.targets)

    def present(self, rows: Sequence[Any]) -> Sequence[Any]:
        return with_status(rows)

    @extend_schema(
        request=PinInput,
        parameters=[DRY_RUN, WAIT],
        responses=PLAN_OR_WORK,
    )
    def post(self, request: Request) -> Response:
        spec, pools = pin_spec(self.read(PinInput, request), targets=self.targets)
        require_target(request, Scope.PINS_WRITE, *(pool.full_name for pool in pools))
        if flag(request, "dry_run"):
            return plan_response(pin_preview(spec=spec, pin_id=existing_pin(spec)))
        try:
            _, operation = pin_create(actor=actor_of(request), spec=spec)
        except HearthError as error:
            raise with_plan(error) from None
        return self.follow(operation.id)


class PinDetail(ApiView):
    """GET, PATCH, DELETE one pin."""

    write_scope = Scope.PINS_WRITE
    parameters = {"PATCH": ("dry_run",), "DELETE": ("dry_run", "wait")}

    @extend_schema(responses=PinSerializer)
    def get(self, request: Request, pin_id: UUID) -> Response:
        return self._show(pin_id)

    @extend_schema(
        request=PinChanges, parameters=[DRY_RUN], responses=plan_or(PinSerializer), extensions={"x-edited": True}
    )
    def patch(self, request: Request, pin_id: UUID) -> Response:
        pin = self._allowed(request, pin_id)
        changes, pools = pin_changes(self.read(PinChanges, request), targets=self.targets)
        require_target(request, Scope.PINS_WRITE, *(pool.full_name for pool in pools))
        version = expected_version(request, pin)
        if flag(request, "dry_run"):
            return plan_response(pin_preview(spec=spec_with(pin, changes), pin_id=pin.id))
        try:
            pin_update(actor=actor_of(request), pin_id=pin.id, changes=changes, if_updated_at=version)
        except HearthError as error:
            raise with_plan(error) from None
        return self._show(pin_id)

    @extend_schema(parameters=[DRY_RUN, WAIT], responses=PLAN_OR_WORK, extensions={"x-edited": True})
    def delete(self, request: Request, pin_id: UUID) -> Response:
        pin = self._allowed(request, pin_id)
        version = expected_version(request, pin)
        if flag(request, "dry_run"):
            return plan_response(unpin_preview(pin))
        return self.follow(pin_remove(actor=actor_of(request), pin_id=pin.id, if_updated_at=version).id)

    def _allowed(self, request: Request, pin_id: UUID) -> Pin:
        pin = pin_get(pin_id=pin_id, targets=self.targets)
        require_target(request, Scope.PINS_WRITE, *(pool.full_name for pool in pin.pools.all()))
        return pin

    def _show(self, pin_id: UUID) -> Response:
        [pin] = with_status([pin_get(pin_id=pin_id, targets=self.targets)])
        return self.answer(PinSerializer, pin, edited=True)


def with_status(pins: Sequence[Pin]) -> Sequence[Pin]:
    """The pins with ``status`` set on each."""
    statuses = pin_statuses(pins)
    for pin in pins:
        pin.status = statuses[pin.id]  # type: ignore[attr-defined]  # read by PinSerializer
    return pins


def with_plan(error: HearthError) -> HearthError:
    """A refusal that carries plans shows them in its problem document."""
    if plans := getattr(error, "plans", None):
        error.extensions = {"plan": plan_document(plans)}  # type: ignore[attr-defined]  # read by rest.problems
    return error
