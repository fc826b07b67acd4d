"""The row of an artifact: made once, whoever comes with its manifest first."""

from __future__ import annotations

from caches.domain.launches.trials import servable
from caches.domain.manifests import manifest_encode
from caches.models import Artifact
from controlplane.clusters.documents import ArtifactKind, Manifest


def weights_artifact(manifest: Manifest, *, witness: str = "") -> tuple[Artifact, bool]:
    """The artifact of these files, and whether it was made now: only then ``witness`` is taken."""
    fit = servable(file.path for file in manifest.files)
    artifact, made = Artifact.objects.get_or_create(
        digest=manifest.digest,
        defaults={
            "kind": ArtifactKind.WEIGHTS,
            "size_bytes": manifest.size_bytes,
            "files_count": len(manifest.files),
            "anchored": all(file.algorithm.is_content for file in manifest.files),
            "manifest": manifest_encode(manifest),
            "servable_locally": fit,
            "witness": witness,
        },
    )
    if fit and not artifact.servable_locally:  # made by a process that did not know of it yet
        Artifact.objects.filter(pk=artifact.pk).update(servable_locally=True)
        artifact.servable_locally = True
    return artifact, made
