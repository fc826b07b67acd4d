"""Images: what people name by a reference, and the digest that it was resolved to, once."""

from __future__ import annotations

from django.db import models

from caches.models.catalogue import Artifact, SourceConnection
from controlplane.clusters.models import Cluster, NodePool
from controlplane.models_base import Row


class ImageState(models.TextChoices):
    """Resolving ──► Available | Refused. Only Available images can be warmed."""

    RESOLVING = "Resolving"
    AVAILABLE = "Available"
    REFUSED = "Refused"


class Image(Row):
    """A reference as written and what it meant when it was registered: an Artifact of kind Image, whose ``digest`` is
    the registry's for the manifest or index and whose ``size_bytes`` are the unpacked ones.

    A tag that moves changes nothing here but ``moved_to``; registering the reference again makes another row.
    ``revoked_at``: the digest takes no new pins. ``withdrawn_at``: it is kept nowhere any more either.
    """

    reference = models.CharField(max_length=500)
    registry = models.CharField(max_length=260, blank=True, default="")
    repository = models.CharField(max_length=500)
    tag = models.CharField(max_length=128, blank=True, default="")
    connection = models.ForeignKey(SourceConnection, null=True, on_delete=models.PROTECT, related_name="images")
    pull_secret = models.CharField(max_length=253, blank=True, default="")  # by name, where the holders run
    state = models.CharField(max_length=16, choices=ImageState.choices, default=ImageState.RESOLVING)
    code = models.CharField(max_length=100, blank=True, default="")  # why Refused
    message = models.CharField(max_length=1000, blank=True, default="")
    next_step = models.CharField(max_length=500, blank=True, default="")
    artifact = models.ForeignKey(Artifact, null=True, on_delete=models.PROTECT, related_name="images")
    media_type = models.CharField(max_length=120, blank=True, default="")
    platforms = models.JSONField(default=list)  # ["linux/amd64", …]
    compressed_bytes = models.BigIntegerField(null=True)  # what a pull moves; size_bytes is what it takes on a disk
    resolved_at = models.DateTimeField(null=True)
    moved_to = models.CharField(max_length=80, blank=True, default="")  # what the tag names now, "" while it is ours
    checked_at = models.DateTimeField(null=True)
    check_message = models.CharField(max_length=1000, blank=True, default="")  # why the registry could not be asked
    revoked_at = models.DateTimeField(null=True)
    revoked_by = models.CharField(max_length=150, blank=True, default="")
    revoked_reason = models.CharField(max_length=500, blank=True, default="")
    withdrawn_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["reference", "-id"]
        constraints = [
            models.UniqueConstraint(fields=["reference", "artifact"], name="caches_image_once"),
            models.UniqueConstraint(
                fields=["reference"], condition=models.Q(state="Resolving"), name="caches_image_resolving_once"
            ),
            models.CheckConstraint(
                condition=models.Q(state="Available", artifact__isnull=False)
                | (~models.Q(state="Available") & models.Q(artifact__isnull=True)),
                name="caches_image_artifact_when_available",
            ),
        ]
        indexes = [models.Index(fields=["checked_at"], name="caches_image_checked", condition=models.Q(tag__gt=""))]

    def __str__(self) -> str:
        return self.reference

    @property
    def full_name(self) -> str:
        """As people name it, like a version's."""
        return self.reference


class ImageHold(Row):
    """A holder that a pool's cluster was given: which image, and on which nodes as last applied."""

    pool = models.ForeignKey(NodePool, on_delete=models.CASCADE, related_name="image_holds")
    artifact = models.ForeignKey(Artifact, on_delete=models.CASCADE, related_name="holds")
    reference = models.CharField(max_length=500)  # by digest, as the cluster was told
    spec_hash = models.CharField(max_length=64, blank=True)  # "" before it was applied for the first time
    applied_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["reference"]
        constraints = [models.UniqueConstraint(fields=["pool", "artifact"], name="caches_hold_once")]


class PullSecret(Row):
    """Credentials of a Registry connection where the holders of a cluster run, as they were last applied."""

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="pull_secrets")
    connection = models.ForeignKey(SourceConnection, null=True, on_delete=models.SET_NULL, related_name="pull_secrets")
    name = models.CharField(max_length=253)
    content_mac = models.CharField(max_length=64, blank=True, default="")  # keyed, so that it tells nothing of them

    class Meta:
        ordering = ["name"]
        constraints = [models.UniqueConstraint(fields=["cluster", "name"], name="caches_pull_secret_once")]
