"""AuditEvent: who changed what, when, from which to which value. Append-only: services.audit_write alone writes."""

from __future__ import annotations

from django.db import models

from controlplane.ids import new_id


class Via(models.TextChoices):
    BROWSER = "Browser"
    API = "Api"
    KUBECTL = "Kubectl"
    COMMAND = "Command"
    SYSTEM = "System"


class AuditEvent(models.Model):
    """Names are copied as text so that deleting an object keeps its history; one ``request_id`` groups one click."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    at = models.DateTimeField(auto_now_add=True, db_index=True)
    actor = models.CharField(max_length=150)
    via = models.CharField(max_length=16, choices=Via.choices)
    action = models.CharField(max_length=64)  # "pin.create", "entry.evict"
    object_type = models.CharField(max_length=40)
    object_id = models.CharField(max_length=64)
    object_name = models.CharField(max_length=300)
    before = models.JSONField(null=True)
    after = models.JSONField(null=True)
    message = models.CharField(max_length=1000, blank=True, default="")
    request_id = models.CharField(max_length=64, blank=True, default="", db_index=True)
    operation_id = models.UUIDField(null=True, blank=True, db_index=True)

    class Meta:
        ordering = ["-at", "-id"]
        indexes = [models.Index(fields=["object_type", "object_id", "-at"], name="audit_object_at")]
