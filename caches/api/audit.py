"""Audit events."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from caches.api.base import ApiRowsView, ApiView, one
from caches.api.serializers.operations import AuditEventSerializer
from caches.filters import AuditFilter
from caches.selectors.audit import audit_list
from controlplane.accounts.models import Scope
from controlplane.accounts.permissions import require_target
from controlplane.audit.models import AuditEvent
from controlplane.rest.views import HearthView


class FleetWide(HearthView):
    """The trail speaks of every pool, so reading it needs a role on the whole fleet."""

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        require_target(request, Scope.READ, "")


class AuditEventList(FleetWide, ApiRowsView):
    serializer_class = AuditEventSerializer
    filterset_class = AuditFilter
    ordering_fields = {"at": "at", "actor": "actor", "action": "action"}
    ordering = "-at"

    def rows(self) -> QuerySet[AuditEvent]:
        return audit_list()


class AuditEventDetail(FleetWide, ApiView):
    @extend_schema(responses=AuditEventSerializer)
    def get(self, request: Request, event_id: UUID) -> Response:
        return self.answer(AuditEventSerializer, one(audit_list().filter(pk=event_id)))
