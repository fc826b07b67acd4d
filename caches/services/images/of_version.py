"""Which image serves a model version."""

from __future__ import annotations

from uuid import UUID

from django.db import transaction
from django.utils import timezone

from caches.models import Image, ImageState, ModelVersion, Pin
from caches.services.loop.pool_rounds import pools_mark_dirty
from controlplane.audit.services import Actor, audit_write
from controlplane.clusters.documents import ArtifactKind
from controlplane.errors import Clash, FieldError, Invalid, Missing


def version_image_set(*, actor: Actor, version_id: UUID, image_id: UUID | None) -> ModelVersion:
    """Say which image serves the version from now on; None: nobody knows. Pins that warm the version's image follow.

    Invalid for no such image; Clash for one that is not Available or is revoked, and for none while a pin wants it.
    """
    with transaction.atomic():
        rows = ModelVersion.objects.select_for_update(of=("self",)).select_related("model", "image")
        version = rows.filter(pk=version_id).first()
        if version is None:
            raise Missing("version:user:not-found", "There is no such version.")
        image = _image(image_id)
        wanting = Pin.objects.filter(
            version=version, image=None, artifacts__contains=[ArtifactKind.IMAGE], removed_at__isnull=True
        )
        if image is None and wanting.exists():
            raise Clash(
                "version:user:image-pinned",
                f"A pin warms the image of {version.full_name}.",
                next_step="Take Image from the pin's artifacts first.",
            )
        if version.image_id == image_id:
            return version
        before = version.image.reference if version.image else None
        ModelVersion.objects.filter(pk=version.pk).update(image=image, updated_at=timezone.now())
        audit_write(
            actor=actor,
            action="version.image",
            object_type="version",
            object_id=str(version.pk),
            object_name=version.full_name,
            before={"image": before},
            after={"image": image.reference if image else None},
        )
        pools_mark_dirty(pool_ids=wanting.filter(pools__isnull=False).values_list("pools", flat=True))
        version.refresh_from_db()
    return version


def _image(image_id: UUID | None) -> Image | None:
    if image_id is None:
        return None
    image = Image.objects.select_for_update(no_key=True).filter(pk=image_id).first()
    if image is None:
        detail = "There is no such image."
        errors = [FieldError("image_id", "unknown", detail)]
        raise Invalid("version:user:no-such-image", detail, next_step="List the images.", errors=errors)
    if image.state != ImageState.AVAILABLE or image.revoked_at is not None:
        state = "revoked" if image.revoked_at is not None else image.state
        raise Clash(
            "version:user:image-not-usable",
            f"{image.reference} is {state}.",
            next_step="Choose an image that is Available and not revoked.",
        )
    return image
