"""Operation: a background action that a person or CI can follow, cancel, retry and link to.

States move only by guarded updates (services)::

    Pending ──► Running ──► Succeeded | Failed
       │           │
       └──► Canceling ──► Canceled          (cancel is two-phase: asked, then acknowledged)

A retry makes a new Operation that names the old one in ``retry_of``.
"""

from __future__ import annotations

from django.db import models

from controlplane.models_base import Row


class OperationState(models.TextChoices):
    PENDING = "Pending"
    RUNNING = "Running"
    CANCELING = "Canceling"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    CANCELED = "Canceled"


FINAL_STATES = frozenset({OperationState.SUCCEEDED, OperationState.FAILED, OperationState.CANCELED})
ACTIVE_STATES = frozenset(OperationState) - FINAL_STATES


class OperationKind(models.TextChoices):
    MODEL_REGISTER = "ModelRegister"
    MODEL_RECHECK = "ModelRecheck"
    IMAGE_REGISTER = "ImageRegister"
    PIN_WARM = "PinWarm"
    PIN_REMOVE = "PinRemove"
    ENTRY_EVICT = "EntryEvict"
    ENTRY_SCRUB = "EntryScrub"
    POOL_DELETE = "PoolDelete"
    ENDPOINT_APPLY = "EndpointApply"
    ROUTING_REPLAY = "RoutingReplay"
    LAUNCH_TRIAL = "LaunchTrial"


class TargetState(models.TextChoices):
    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    SKIPPED = "Skipped"  # the target went away, or was no longer wanted


class Operation(Row):
    """``subject_*`` names what it works on. ``error`` is a problem document (api.md) when Failed."""

    kind = models.CharField(max_length=32, choices=OperationKind.choices)
    state = models.CharField(max_length=16, choices=OperationState.choices, default=OperationState.PENDING)
    subject_type = models.CharField(max_length=40)
    subject_id = models.CharField(max_length=64)
    subject_name = models.CharField(max_length=300)
    bytes_done = models.BigIntegerField(default=0)
    bytes_total = models.BigIntegerField(default=0)
    eta_seconds = models.FloatField(null=True)
    message = models.CharField(max_length=1000, blank=True, default="")
    params = models.JSONField(default=dict)  # what the steps need to resume, e.g. a page token; never a secret
    result = models.JSONField(null=True)
    error = models.JSONField(null=True)
    started_by = models.CharField(max_length=150)
    request_id = models.CharField(max_length=64, blank=True, default="")
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    retry_of = models.ForeignKey("self", null=True, on_delete=models.SET_NULL, related_name="retries")

    class Meta:
        ordering = ["-id"]
        indexes = [
            models.Index(fields=["subject_type", "subject_id"], name="operations_subject"),
            models.Index(
                fields=["kind"],
                name="operations_active",
                condition=models.Q(state__in=["Pending", "Running", "Canceling"]),
            ),
        ]


class OperationTarget(Row):
    """One target as it was at the start, e.g. one node; ``key`` is its stable id within the operation."""

    operation = models.ForeignKey(Operation, on_delete=models.CASCADE, related_name="targets")
    key = models.CharField(max_length=200)
    name = models.CharField(max_length=300)
    state = models.CharField(max_length=16, choices=TargetState.choices, default=TargetState.PENDING)
    detail = models.CharField(max_length=1000, blank=True, default="")
    bytes_done = models.BigIntegerField(default=0)
    bytes_total = models.BigIntegerField(default=0)

    class Meta:
        ordering = ["name"]
        constraints = [models.UniqueConstraint(fields=["operation", "key"], name="operations_target_once")]
