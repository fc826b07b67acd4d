"""Pin: the intent that a version is warm on pools. Deleting is two-phase (``removed_at``): entries outlive intent."""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models

from caches.models.catalogue import ModelVersion
from controlplane.clusters.documents import ArtifactKind
from controlplane.clusters.models import NodePool
from controlplane.models_base import Row
from controlplane.serving.models import Endpoint


class GateType(models.TextChoices):
    """When the pin's Operation succeeds: all targets, a count, a percentage, or after a time whatever happened."""

    ALL = "All"
    COUNT = "Count"
    PERCENT = "Percent"
    TIMEOUT = "Timeout"


class Pin(Row):
    version = models.ForeignKey(  # none: an endpoint's image alone, whose weights its pods bring along
        ModelVersion, null=True, on_delete=models.PROTECT, related_name="pins"
    )
    pools = models.ManyToManyField(NodePool, related_name="pins")
    image = models.ForeignKey(  # what Image among the artifacts means; without one it is the version's own
        "Image", null=True, on_delete=models.PROTECT, related_name="pins"
    )
    artifacts = ArrayField(models.CharField(max_length=16, choices=[(k.value, k.value) for k in ArtifactKind]))
    priority = models.PositiveIntegerField(default=500, validators=[MinValueValidator(0), MaxValueValidator(1000)])
    placement_type = models.CharField(
        max_length=8, choices=[("All", "All"), ("Count", "Count"), ("Percent", "Percent")], default="All"
    )
    placement_value = models.PositiveIntegerField(default=100)
    spread_label = models.CharField(max_length=200, blank=True, default="")
    node_selector = models.JSONField(default=dict)
    window_start = models.TimeField(null=True, blank=True)
    window_end = models.TimeField(null=True, blank=True)
    window_time_zone = models.CharField(max_length=64, blank=True, default="")
    needed_at = models.DateTimeField(null=True, blank=True)
    suspended = models.BooleanField(default=False)
    retention_seconds = models.PositiveIntegerField(default=0, help_text="kept after the pin is removed")
    gate_type = models.CharField(max_length=8, choices=GateType.choices, default=GateType.ALL)
    gate_value = models.PositiveIntegerField(default=100)
    removed_at = models.DateTimeField(null=True, blank=True)
    endpoint = models.ForeignKey(
        Endpoint, null=True, blank=True, on_delete=models.CASCADE, related_name="pins", help_text="whose pin it is"
    )
    operation = models.ForeignKey("operations.Operation", null=True, on_delete=models.SET_NULL, related_name="+")

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["version"],
                condition=models.Q(removed_at__isnull=True, endpoint__isnull=True),
                name="caches_one_live_pin_per_version",
            ),
            # An endpoint's weights, and beside them each image that it runs or may go back to.
            models.UniqueConstraint(
                fields=["version", "endpoint"],
                condition=models.Q(removed_at__isnull=True, endpoint__isnull=False, image__isnull=True),
                name="caches_one_live_pin_per_endpoint",
            ),
            models.UniqueConstraint(
                fields=["version", "image", "endpoint"],
                condition=models.Q(removed_at__isnull=True, endpoint__isnull=False, image__isnull=False),
                name="caches_one_live_pin_per_endpoint_image",
            ),
            models.UniqueConstraint(
                fields=["image", "endpoint"],
                condition=models.Q(removed_at__isnull=True, version__isnull=True),
                name="caches_one_live_pin_per_endpoint_image_alone",
            ),
            models.CheckConstraint(condition=models.Q(priority__lte=1000), name="caches_pin_priority"),
            models.CheckConstraint(
                condition=models.Q(version__isnull=False) | models.Q(image__isnull=False, endpoint__isnull=False),
                name="caches_pin_of_something",
            ),
        ]
