"""The audit trail for pages and REST."""

from __future__ import annotations

from django.db.models import QuerySet

from caches.selectors.nodes import Targets
from caches.selectors.reach import pools_named_within, reach
from controlplane.audit.models import AuditEvent


def audit_list(*, targets: Targets = None) -> QuerySet[AuditEvent]:
    """Events that the reader may see (reach.py), newest first."""
    named = pools_named_within(targets, "before") & pools_named_within(targets, "after")
    return AuditEvent.objects.filter(reach(targets, subject="object") & named)
