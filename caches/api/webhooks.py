"""Webhooks: who is told about failures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from caches.api.base import ApiRowsView, ApiView, one
from caches.api.serializers.accounts import WebhookChanges, WebhookInput, WebhookSerializer
from caches.filters import WebhookFilter
from caches.models import Webhook, WebhookDelivery
from caches.services.webhooks.rows import webhook_create, webhook_delete, webhook_update
from controlplane.accounts.actors import actor_of
from controlplane.accounts.models import Scope
from controlplane.accounts.permissions import require_target
from controlplane.rest.etags import expected_version


def with_last_delivery(webhooks: Sequence[Webhook]) -> Sequence[Webhook]:
    """The webhooks with ``last_delivery`` set on each: the delivery that changed last, or None."""
    rows = WebhookDelivery.objects.filter(webhook__in=webhooks).defer("payload")
    newest = {row.webhook_id: row for row in rows.order_by("webhook_id", "-updated_at", "-id").distinct("webhook_id")}
    for webhook in webhooks:
        webhook.last_delivery = newest.get(webhook.id)  # type: ignore[attr-defined]  # read by WebhookSerializer
    return webhooks


class WebhookList(ApiRowsView):
    """GET the webhooks; POST one more."""

    write_scope = Scope.FLEET_WRITE
    serializer_class = WebhookSerializer
    filterset_class = WebhookFilter
    ordering_fields = {"name": "name", "created_at": "created_at"}
    ordering = "name"

    def rows(self) -> QuerySet[Webhook]:
        return Webhook.objects.all()

    def present(self, rows: Sequence[Any]) -> Sequence[Any]:
        return with_last_delivery(rows)

    @extend_schema(request=WebhookInput, responses={201: WebhookSerializer})
    def post(self, request: Request) -> Response:
        require_target(request, Scope.FLEET_WRITE, "")
        webhook = webhook_create(actor=actor_of(request), **self.read(WebhookInput, request))
        with_last_delivery([webhook])
        return self.answer(WebhookSerializer, webhook, status=201, edited=True)


class WebhookDetail(ApiView):
    write_scope = Scope.FLEET_WRITE

    @extend_schema(responses=WebhookSerializer)
    def get(self, request: Request, name: str) -> Response:
        [webhook] = with_last_delivery([_webhook(name)])
        return self.answer(WebhookSerializer, webhook, edited=True)

    @extend_schema(request=WebhookChanges, responses=WebhookSerializer, extensions={"x-edited": True})
    def patch(self, request: Request, name: str) -> Response:
        require_target(request, Scope.FLEET_WRITE, "")
        webhook = _webhook(name)
        version = expected_version(request, webhook)
        changes = self.read(WebhookChanges, request)
        changed = webhook_update(actor=actor_of(request), webhook_id=webhook.id, changes=changes, if_updated_at=version)
        with_last_delivery([changed])
        return self.answer(WebhookSerializer, changed, edited=True)

    @extend_schema(responses={204: None}, extensions={"x-edited": True})
    def delete(self, request: Request, name: str) -> Response:
        require_target(request, Scope.FLEET_WRITE, "")
        webhook = _webhook(name)
        version = expected_version(request, webhook)
        webhook_delete(actor=actor_of(request), webhook_id=webhook.id, if_updated_at=version)
        return Response(status=204)


def _webhook(name: str) -> Webhook:
    return one(Webhook.objects.filter(name=name))
