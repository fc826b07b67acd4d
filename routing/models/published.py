"""What routers were told, which routers there are, and what they told."""

from __future__ import annotations

from django.db import models

from controlplane.models_base import Row
from controlplane.serving.models import Variant


class Configuration(Row):
    """One published version. ``document`` is what routers read, but without any secret.

    ``changes``: what is other than in the version before, as ``{endpoint, variant, kind, detail}``.
    """

    version = models.PositiveBigIntegerField(unique=True)
    digest = models.CharField(max_length=64)
    document = models.JSONField()
    changes = models.JSONField(default=list)

    class Meta:
        ordering = ["-version"]


class RouterProcess(Row):
    """One router process, by the id that it draws when it starts. ``figures``: what is in flight there.

    ``number`` is that of the last message that was counted.
    """

    name = models.CharField(max_length=64, unique=True)
    host = models.CharField(max_length=255, blank=True, default="")
    address = models.CharField(max_length=300, blank=True, default="")
    config_version = models.PositiveBigIntegerField(default=0)
    figures = models.JSONField(default=dict)
    number = models.PositiveBigIntegerField(default=0)
    started_at = models.DateTimeField()
    seen_at = models.DateTimeField(db_index=True)

    class Meta:
        ordering = ["host", "name"]


class Intake(Row):
    """How far a stream was read, moved in the transaction that stores what was read."""

    name = models.CharField(max_length=64, unique=True)
    last_id = models.CharField(max_length=64, default="0-0")


class RoutingWindow(models.Model):
    """What all routers counted for one variant in ``seconds`` seconds from ``at``: see routing.domain.figures."""

    variant = models.ForeignKey(Variant, on_delete=models.CASCADE, related_name="routing_windows")
    seconds = models.PositiveIntegerField()
    at = models.DateTimeField()
    figures = models.JSONField(default=dict)

    class Meta:
        ordering = ["at"]
        constraints = [models.UniqueConstraint(fields=["variant", "seconds", "at"], name="routing_window")]
        indexes = [models.Index(fields=["seconds", "at"], name="routing_window_age")]
