"""The audit trail for pages and REST."""

from __future__ import annotations

from django.db.models import QuerySet

from controlplane.audit.models import AuditEvent


def audit_list() -> QuerySet[AuditEvent]:
    """Every event, newest first."""
    return AuditEvent.objects.all()
