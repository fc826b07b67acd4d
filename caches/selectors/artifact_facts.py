"""Where an artifact's bytes come from: two versions may share one, so one of them is chosen, always the same."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from uuid import UUID

from django.db.models import Exists, OuterRef

from caches.domain.pool_view import ArtifactFacts
from caches.models import EndpointToken, ModelVersion, Pin, SourceConnection, VersionState
from controlplane.clusters.documents import ArtifactKind


@dataclass(frozen=True, slots=True)
class ArtifactOrigin:
    """The facts for the planner, the artifact's row id, and the connection its bytes are fetched through."""

    facts: ArtifactFacts
    artifact_id: UUID
    version_id: UUID
    connection: SourceConnection
    version: ModelVersion  # without its artifact's manifest


def artifact_origins(digests: Collection[str]) -> Mapping[str, ArtifactOrigin]:
    """By digest, in one query. A pinned version is preferred to an unpinned one, then the older one; those whose token
    cannot be read any more come last."""
    closed = EndpointToken.objects.filter(connection=OuterRef("connection")).exclude(problem="")
    live = Pin.objects.filter(version=OuterRef("pk"), removed_at__isnull=True)
    versions = (
        ModelVersion.objects.filter(state=VersionState.AVAILABLE, artifact__digest__in=list(digests))
        .annotate(pinned=Exists(live), closed=Exists(closed))
        .select_related("artifact", "model", "connection")
        .defer("artifact__manifest", "metadata", "drift_changed")
        .order_by("closed", "-pinned", "id")
    )
    origins: dict[str, ArtifactOrigin] = {}
    for version in versions:
        artifact = version.artifact
        assert artifact is not None  # Available versions have one, by constraint
        if artifact.digest not in origins:
            origins[artifact.digest] = ArtifactOrigin(
                facts=ArtifactFacts(
                    digest=artifact.digest,
                    name=version.full_name,
                    kind=ArtifactKind(artifact.kind),
                    size_bytes=artifact.size_bytes,
                    connection=version.connection.name,
                    uri=version.uri,
                    witness=artifact.witness,
                ),
                artifact_id=artifact.id,
                version_id=version.id,
                connection=version.connection,
                version=version,
            )
    return origins
