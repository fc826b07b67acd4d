"""Pins in force, by pool, and the artifacts that they want."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple
from uuid import UUID

from django.db.models import Q

from caches.domain.pool_view import PlacementType
from caches.models import Artifact, Image, Pin
from caches.selectors.image_demand import image_of
from caches.selectors.pin_artifacts import wants_weights
from controlplane.clusters.models import NodePool


class Want(NamedTuple):
    """One artifact that a pin wants: its version's weights, or ``image``."""

    pin: Pin
    artifact: Artifact
    image: Image | None = None


def live_pins(pools: Collection[NodePool | UUID]) -> Mapping[UUID | None, list[Pin]]:
    """Pins whose version is Available, in the order of their versions' names, and those of images alone, in two
    queries."""
    found: dict[UUID | None, list[Pin]] = defaultdict(list)
    known = Q(version__artifact__isnull=False) | Q(version__isnull=True)
    live = Pin.objects.filter(known, removed_at__isnull=True, pools__in=pools).distinct()
    live = live.select_related("version__model", "version__artifact", "version__image__artifact", "image__artifact")
    live = live.defer("version__artifact__manifest", "version__image__artifact__manifest", "image__artifact__manifest")
    for pin in live.prefetch_related("pools").order_by("version__model__name", "version__version", "pk"):
        for pool in pin.pools.all():
            found[pool.id].append(pin)
    return found


def weights_wanted(pins: Iterable[Pin]) -> list[Want]:
    """The weights among what these pins want."""
    found = [(pin, pin.version.artifact) for pin in pins if pin.version is not None and wants_weights(pin)]
    return [Want(pin, artifact) for pin, artifact in found if artifact is not None]


def images_wanted(pins: Iterable[Pin]) -> list[Want]:
    """The images among what these pins want, those that may be kept."""
    found = [(pin, image_of(pin)) for pin in pins]
    return [Want(pin, image.artifact, image) for pin, image in found if image is not None and image.artifact]


def is_everywhere(pin: Pin) -> bool:
    """Whether it wants its artifact on every node of its pools: nobody has to be chosen."""
    return pin.placement_type == PlacementType.ALL and not pin.node_selector
