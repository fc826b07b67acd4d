"""Rollout: an Endpoint on its way to a version. The rules are in caches.domain.rollouts."""

from __future__ import annotations

from django.db import models

from caches.domain.endpoints.resolved import resolved_image, resolved_source
from caches.models.catalogue import ModelVersion
from controlplane.clusters.models import Cluster
from controlplane.models_base import Row
from controlplane.serving.models import Endpoint

LIVE_STATES = ("Preparing", "WaitingForRoom", "Warming", "Switching")


class Rollout(Row):
    """One attempt to serve one source with one image. ``opened_at``: its gate opened, so the Deployment is about it.

    ``image`` is as the document says it, ``resolved_image`` what that meant when it was first needed: set once, so that
    a tag that moves changes nothing that runs. ``previous`` is what served when it began, which is held until
    ``held_until``.
    """

    endpoint = models.ForeignKey(Endpoint, on_delete=models.CASCADE, related_name="rollouts")
    number = models.PositiveIntegerField()
    generation = models.BigIntegerField(help_text="of the document that asked for it")
    source = models.CharField(max_length=1500)
    image = models.CharField(max_length=600, blank=True, default="")
    resolved_image = models.ForeignKey("Image", null=True, on_delete=models.SET_NULL, related_name="rollouts")
    parts = models.JSONField(default=dict, help_text="of the document: what another rollout goes back to")
    version = models.ForeignKey(ModelVersion, null=True, on_delete=models.SET_NULL, related_name="rollouts")
    connection = models.CharField(max_length=63, blank=True, default="")  # that the document named for this version
    connection_problem = models.CharField(max_length=1000, blank=True, default="")  # why another one is not followed
    connection_asked_at = models.DateTimeField(null=True)
    previous = models.ForeignKey("self", null=True, on_delete=models.SET_NULL, related_name="+")
    state = models.CharField(max_length=16, default="Preparing")
    state_since = models.DateTimeField()
    reason = models.CharField(max_length=64, blank=True, default="")
    message = models.CharField(max_length=1000, blank=True, default="")
    released_at = models.DateTimeField(null=True, blank=True, help_text="when a person opened its gate")
    released_by = models.CharField(max_length=150, blank=True, default="")
    warming_at = models.DateTimeField(null=True, blank=True, help_text="since when its gate is waited for")
    opened_at = models.DateTimeField(null=True, blank=True)
    pods_source = models.TextField(blank=True, default="")  # where its pods may fetch by themselves
    held_until = models.DateTimeField(null=True, blank=True)
    held_at = models.DateTimeField(null=True, blank=True, help_text="when a person said until when it is held")
    held_by = models.CharField(max_length=150, blank=True, default="")
    ended_at = models.DateTimeField(null=True, blank=True)
    applied_hash = models.CharField(max_length=64, blank=True, default="")  # of the documents applied last
    pods_number = models.PositiveIntegerField(null=True, help_text="of an earlier one, whose pods it goes on with")

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(fields=["endpoint", "number"], name="caches_rollout_number"),
            models.UniqueConstraint(
                fields=["endpoint"],
                condition=models.Q(state__in=LIVE_STATES),
                name="caches_one_live_rollout_per_endpoint",
            ),
        ]

    @property
    def mark(self) -> str:
        """The number that its pods carry."""
        return str(self.pods_number or self.number)

    @property
    def hold_was_ended(self) -> bool:
        """A person (``held_by``) ended its hold at ``held_at``, before its time had passed."""
        return self.held_at is not None and self.held_until == self.held_at

    @property
    def shown_source(self) -> str:
        """Its weights for people: what ``source`` came to."""
        return resolved_source(self.source, self._facts)

    @property
    def shown_image(self) -> str:
        """Its image for people, also where its model alone names one."""
        return resolved_image(self.image, self._facts)

    @property
    def _facts(self) -> object:
        return self.version.metadata.get("jumpstart") if self.version is not None else None


class ShownMirror(Row):
    """A read-only object that shows a cache to kubectl: what was written of it last, whichever process did."""

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="mirrors")
    kind = models.CharField(max_length=40)
    namespace = models.CharField(max_length=63)
    name = models.CharField(max_length=253)
    endpoint = models.ForeignKey(  # whose weights it shows; an image's is shared
        Endpoint, null=True, on_delete=models.SET_NULL, related_name="mirrors"
    )
    written_hash = models.CharField(max_length=64, blank=True, default="")  # "" before it was written
    written_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["kind", "namespace", "name"]
        constraints = [
            models.UniqueConstraint(fields=["cluster", "kind", "namespace", "name"], name="caches_mirror_once")
        ]
