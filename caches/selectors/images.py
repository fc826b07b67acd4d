"""Images for pages and REST."""

from __future__ import annotations

from uuid import UUID

from django.db.models import Count, QuerySet

from caches.models import Image
from controlplane.errors import Missing


def images_list() -> QuerySet[Image]:
    """Every image with its connection, its digest's row and ``versions_count``."""
    rows = Image.objects.select_related("connection", "artifact").defer("artifact__manifest")
    return rows.annotate(versions_count=Count("versions"))


def image_get(*, image_id: UUID) -> Image:
    """One image. Raises errors.Missing."""
    found = images_list().filter(pk=image_id).first()
    if found is None:
        raise Missing("image:user:not-found", f"There is no image {image_id}.", next_step="List the images.")
    return found
