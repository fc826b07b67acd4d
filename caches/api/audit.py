"""Audit events."""

from __future__ import annotations

from uuid import UUID

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from caches.api.base import ApiRowsView, ApiView, one
from caches.api.serializers.operations import AuditEventSerializer
from caches.filters import AuditFilter
from caches.selectors.audit import audit_list
from controlplane.audit.models import AuditEvent


class AuditEventList(ApiRowsView):
    serializer_class = AuditEventSerializer
    filterset_class = AuditFilter
    ordering_fields = {"at": "at", "actor": "actor", "action": "action"}
    ordering = "-at"

    def rows(self) -> QuerySet[AuditEvent]:
        return audit_list(targets=self.targets)


class AuditEventDetail(ApiView):
    @extend_schema(responses=AuditEventSerializer)
    def get(self, request: Request, event_id: UUID) -> Response:
        return self.answer(AuditEventSerializer, one(audit_list(targets=self.targets).filter(pk=event_id)))
