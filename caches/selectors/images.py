"""Images for pages and REST."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from uuid import UUID

from django.db.models import Count, Q, QuerySet
from django.utils import timezone

from caches.domain.planning import plan
from caches.domain.plans import Plan
from caches.models import Image
from caches.selectors.pool_view import pool_view
from controlplane.clusters.models import NodePool
from controlplane.errors import Missing


def images_list() -> QuerySet[Image]:
    """Every image with its connection, its digest's row and ``versions_count``."""
    rows = Image.objects.select_related("connection", "artifact").defer("artifact__manifest")
    return rows.annotate(versions_count=Count("versions"))


def image_pools(image: Image) -> Sequence[NodePool]:
    """The pools on which a live pin may want its digest, or whose nodes have it; none before it has one."""
    if image.artifact_id is None:
        return ()
    wanting = Q(pins__removed_at__isnull=True) & (
        Q(pins__image__artifact=image.artifact_id) | Q(pins__version__image__artifact=image.artifact_id)
    )
    having = Q(image_holds__artifact=image.artifact_id)
    rows = NodePool.objects.select_related("cluster").filter(wanting | having)
    return list(rows.distinct().order_by("cluster__name", "name"))


def withdraw_preview(image: Image) -> Sequence[Plan]:
    """The plans of those pools as if nobody wanted the digest any more."""
    now, digest = timezone.now(), image.artifact.digest if image.artifact else ""
    plans = []
    for pool in image_pools(image):
        view = pool_view(pool, now=now)
        pins = tuple(pin for pin in view.pins if pin.digest != digest)
        plans.append(plan(dataclasses.replace(view, pins=pins), now))
    return plans


def image_get(*, image_id: UUID) -> Image:
    """One image. Raises errors.Missing."""
    found = images_list().filter(pk=image_id).first()
    if found is None:
        raise Missing("image:user:not-found", f"There is no image {image_id}.", next_step="List the images.")
    return found
