"""Connections, models, versions and manifests for pages and REST."""

from __future__ import annotations

from collections.abc import Sequence

from django.db.models import Count, Max, QuerySet

from caches.domain.manifests import manifest_decode
from caches.models import Artifact, Model, ModelVersion, SourceConnection
from controlplane.clusters.documents import FileRecord
from controlplane.errors import Missing


def connections_list() -> QuerySet[SourceConnection]:
    """Every connection with ``versions_count``."""
    return SourceConnection.objects.annotate(versions_count=Count("versions"))


def models_list() -> QuerySet[Model]:
    """Every model with ``versions_count`` and ``latest_at``, when its last version was registered."""
    return Model.objects.annotate(versions_count=Count("versions"), latest_at=Max("versions__created_at"))


def versions_list(*, model: str | None = None) -> QuerySet[ModelVersion]:
    """Versions with model, connection and artifact (without the manifest's bytes)."""
    rows = ModelVersion.objects.select_related("model", "connection", "artifact", "image__artifact")
    rows = rows.defer("artifact__manifest", "image__artifact__manifest")
    return rows if model is None else rows.filter(model__name=model)


def version_get(*, model: str, version: str) -> ModelVersion:
    """One version by its names. Raises errors.Missing."""
    found = versions_list(model=model).filter(version=version).first()
    if found is None:
        raise Missing(
            "version:user:not-found",
            f"There is no version {version} of {model}.",
            next_step="List the model's versions, or register this one.",
        )
    return found


def manifest_files(version: ModelVersion) -> Sequence[FileRecord]:
    """The files of an Available version in path order. Raises errors.Missing while it has no manifest."""
    if version.artifact_id is None:
        raise Missing(
            "version:user:no-manifest",
            f"{version.full_name} has no manifest: it is {version.state}.",
            next_step="Follow its registration, or read the reason why it was refused.",
        )
    packed = Artifact.objects.values_list("manifest", flat=True).get(pk=version.artifact_id)
    return manifest_decode(bytes(packed)).files
