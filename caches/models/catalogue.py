"""What can be warmed: connections to stores, artifacts (immutable bytes) and the model versions that name them."""

from __future__ import annotations

from django.db import models

from controlplane.clusters.documents import ArtifactKind, SourceType
from controlplane.models_base import Row


class SourceConnection(Row):
    """Where a store is and what may be read. Credentials live in a secret of this name, never here.

    ``allowed`` lists buckets (S3), absolute root folders (Filesystem) or repositories (HuggingFace: organisation/name,
    organisation, or * for all; Registry: repositories or folders of
    them; JumpStart: ids of models, or * for all); nothing else is read through it. ``namespaces`` are those whose
    endpoints may have it read for them; empty is every namespace. People with a role here are not bound by it.
    """

    name = models.SlugField(max_length=63, unique=True)
    type = models.CharField(max_length=16, choices=[(kind.value, kind.value) for kind in SourceType])
    endpoint = models.CharField(max_length=500, blank=True, default="")
    region = models.CharField(max_length=64, blank=True, default="")
    addressing = models.CharField(max_length=8, choices=[("path", "path"), ("virtual", "virtual")], default="path")
    ca_bundle = models.TextField(blank=True, default="")
    secret_name = models.CharField(max_length=100, blank=True, default="")
    allowed = models.JSONField(default=list)
    namespaces = models.JSONField(default=list)
    manifest = models.CharField(max_length=1100, blank=True, default="")  # JumpStart: s3://bucket/key, "" the region's
    hub_endpoint = models.CharField(max_length=500, blank=True, default="")  # JumpStart: for gated models
    max_downloads = models.PositiveIntegerField(null=True, blank=True, help_text="running at once over all pools")
    bytes_per_second = models.BigIntegerField(null=True, blank=True, help_text="read at most, over all nodes together")
    state = models.CharField(max_length=16, default="Unchecked")  # Unchecked, Reachable, Unreachable, AccessDenied
    message = models.CharField(max_length=1000, blank=True, default="")
    observed_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class EulaAcceptance(Row):
    """Somebody accepted a model's terms, word for word. Never changed; outlives its connection and its versions."""

    connection_name = models.CharField(max_length=63)
    subject = models.CharField(max_length=120)  # the model's id
    version = models.CharField(max_length=60)  # that it was accepted for; the same text counts for others too
    place = models.CharField(max_length=1200)  # where the text was read
    digest = models.CharField(max_length=64)  # SHA-256 of the text
    text = models.TextField()
    accepted_by = models.CharField(max_length=200)
    accepted_via = models.CharField(max_length=16)

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(fields=["connection_name", "subject", "digest"], name="caches_eula_accepted_once")
        ]


class Artifact(Row):
    """Immutable bytes with a digest. ``manifest`` is the canonical JSON, zlib-compressed (caches.domain.manifests).

    ``anchored`` is True when every file carries a content checksum from its store. ``witness`` is what the first node
    that published it computed; a node that computes another value ends in IntegrityMismatch.
    """

    digest = models.CharField(max_length=80, unique=True)
    kind = models.CharField(max_length=16, choices=[(kind.value, kind.value) for kind in ArtifactKind])
    size_bytes = models.BigIntegerField()
    files_count = models.PositiveIntegerField()
    anchored = models.BooleanField()
    witness = models.CharField(max_length=80, blank=True, default="")
    manifest = models.BinaryField()
    servable_locally = models.BooleanField(
        default=False,
        db_default=False,
        help_text="an engine of the local fleet can serve it, by the names of its files",
    )

    class Meta:
        ordering = ["-id"]


class Model(Row):
    name = models.SlugField(max_length=120, unique=True)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class VersionState(models.TextChoices):
    """Resolving ──► Available | Refused. Only Available versions can be pinned."""

    RESOLVING = "Resolving"
    AVAILABLE = "Available"
    REFUSED = "Refused"


class DriftState(models.TextChoices):
    UNCHECKED = "Unchecked"
    MATCHES = "Matches"
    DRIFTED = "Drifted"
    UNREACHABLE = "Unreachable"


class ModelVersion(Row):
    """A name and version on a source, resolved once. ``artifact`` is set exactly when Available."""

    model = models.ForeignKey(Model, on_delete=models.PROTECT, related_name="versions")
    version = models.CharField(max_length=120)
    connection = models.ForeignKey(SourceConnection, on_delete=models.PROTECT, related_name="versions")
    uri = models.CharField(max_length=1500)
    allow_patterns = models.JSONField(default=list)
    ignore_patterns = models.JSONField(default=list)
    state = models.CharField(max_length=16, choices=VersionState.choices, default=VersionState.RESOLVING)
    code = models.CharField(max_length=100, blank=True, default="")  # why Refused
    message = models.CharField(max_length=1000, blank=True, default="")
    next_step = models.CharField(max_length=500, blank=True, default="")
    artifact = models.ForeignKey(Artifact, null=True, on_delete=models.PROTECT, related_name="versions")
    revision = models.CharField(max_length=200, blank=True, default="")
    drift = models.CharField(max_length=16, choices=DriftState.choices, default=DriftState.UNCHECKED)
    drift_changed = models.JSONField(default=list)  # [{path, change: Added|Removed|Changed}], at most 100
    drift_checked_at = models.DateTimeField(null=True)
    image = models.ForeignKey("Image", null=True, on_delete=models.PROTECT, related_name="versions")  # that serves it
    metadata = models.JSONField(default=dict)  # parameters, context_length when read from headers

    class Meta:
        ordering = ["model__name", "version"]
        constraints = [
            models.UniqueConstraint(fields=["model", "version"], name="caches_version_name"),
            models.CheckConstraint(
                condition=models.Q(state="Available", artifact__isnull=False)
                | (~models.Q(state="Available") & models.Q(artifact__isnull=True)),
                name="caches_version_artifact_when_available",
            ),
        ]

    @property
    def full_name(self) -> str:
        return f"{self.model.name} {self.version}"
