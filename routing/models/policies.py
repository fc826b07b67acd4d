"""What is wanted of each variant, and what was last found out about it."""

from __future__ import annotations

from django.db import models

from controlplane.models_base import Row
from controlplane.serving.models import Endpoint, Variant


class RoutedEndpoint(Row):
    """The name that clients use, unique over all clusters, and the secret that its keys are made with (hexadecimal)."""

    endpoint = models.OneToOneField(Endpoint, on_delete=models.CASCADE, related_name="routed")
    name = models.CharField(max_length=400, unique=True)
    secret = models.CharField(max_length=128)

    def __str__(self) -> str:
        return self.name


class RoutingPolicy(Row):
    """One version of a variant's policy; the highest is in force. Never changed."""

    variant = models.ForeignKey(Variant, on_delete=models.CASCADE, related_name="routing_policies")
    version = models.PositiveIntegerField()
    strategy = models.CharField(max_length=40)
    document = models.JSONField(help_text="as the managed API has it, and RoutingExtensions")
    notes = models.JSONField(default=list, help_text="what was mapped from another spelling")
    set_by = models.CharField(max_length=150)

    class Meta:
        ordering = ["-version"]
        constraints = [models.UniqueConstraint(fields=["variant", "version"], name="routing_policy_version")]


class RoutedVariant(Row):
    """What routers need beside the policy. ``membership``: the ids and weights of the last published version.

    ``weight`` over the sum of its endpoint's is its share of the requests; ``wanted_weight`` is what it will be once
    all that get more are ready, None when nothing else is wanted. ``source``: the endpoint (its id) whose instances
    serve it; None: its own endpoint's. It may be gone by now: then nobody serves it.
    ``hot`` are keyed digests of 16 hexadecimal digits; ``counted`` is the aged sum that they follow from.
    """

    variant = models.OneToOneField(Variant, on_delete=models.CASCADE, related_name="routed")
    membership_version = models.PositiveBigIntegerField(default=0)
    membership = models.JSONField(default=list)
    hot_version = models.PositiveBigIntegerField(default=0)
    hot = models.JSONField(default=list)
    counted = models.JSONField(default=dict)
    weight = models.FloatField(default=1.0)
    wanted_weight = models.FloatField(null=True, blank=True)
    source = models.UUIDField(null=True, blank=True)
    hot_at = models.DateTimeField(null=True, blank=True)
