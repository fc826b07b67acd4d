"""What a pin is about: weights, an image, or both; and the one of them by which it is judged."""

from __future__ import annotations

from uuid import UUID

from django.db.models import Q, QuerySet

from caches.models import Artifact, Image, Pin
from controlplane.clusters.documents import ArtifactKind


def wants_weights(pin: Pin) -> bool:
    return ArtifactKind.WEIGHTS in pin.artifacts


def image_named(pin: Pin) -> Image | None:
    """The image that Image among the artifacts means, whatever its state; None where it is not among them."""
    if ArtifactKind.IMAGE not in pin.artifacts:
        return None
    return pin.image or (pin.version.image if pin.version is not None else None)


def pin_name(pin: Pin) -> str:
    """``model version``; of one without, its image's reference."""
    if pin.version is not None:
        return pin.version.full_name
    return pin.image.reference if pin.image is not None else ""


def gate_artifact(pin: Pin) -> Artifact | None:
    """What the pin's gate and its Operations count: its weights, or its image where it wants nothing else. An image
    beside weights never holds anything up."""
    if wants_weights(pin):
        return pin.version.artifact if pin.version is not None else None
    image = image_named(pin)
    return image.artifact if image is not None else None


def gate_name(pin: Pin) -> str:
    """How people call that: ``model version``, or the image's reference."""
    image = None if wants_weights(pin) else image_named(pin)
    return image.reference if image is not None else pin_name(pin)


def pin_artifacts(pin: Pin) -> list[Artifact]:
    """Everything that it wants, in the order of the kinds."""
    image = image_named(pin)
    weights = pin.version.artifact if pin.version is not None and wants_weights(pin) else None
    found = [weights, image.artifact if image is not None else None]
    return [artifact for artifact in found if artifact is not None]


def pins_of(artifact_id: UUID) -> QuerySet[Pin]:
    """The live pins that want this artifact, as weights or as an image."""
    weights = Q(version__artifact=artifact_id, artifacts__contains=[ArtifactKind.WEIGHTS])
    image = Q(image__artifact=artifact_id) | Q(image=None, version__image__artifact=artifact_id)
    image &= Q(artifacts__contains=[ArtifactKind.IMAGE])
    return Pin.objects.filter(weights | image, removed_at__isnull=True)
