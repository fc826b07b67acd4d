"""Pins in force, by pool."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from uuid import UUID

from caches.domain.pool_view import PlacementType
from caches.models import Pin
from controlplane.clusters.models import NodePool


def live_pins(pools: Collection[NodePool | UUID]) -> Mapping[UUID | None, list[Pin]]:
    """Pins whose version is Available, in the order of their versions' names, in two queries."""
    found: dict[UUID | None, list[Pin]] = defaultdict(list)
    live = Pin.objects.filter(removed_at__isnull=True, version__artifact__isnull=False, pools__in=pools).distinct()
    live = live.select_related("version__model", "version__artifact").defer("version__artifact__manifest")
    for pin in live.prefetch_related("pools").order_by("version__model__name", "version__version"):
        for pool in pin.pools.all():
            found[pool.id].append(pin)
    return found


def is_everywhere(pin: Pin) -> bool:
    """Whether it wants its artifact on every node of its pools: nobody has to be chosen."""
    return pin.placement_type == PlacementType.ALL and not pin.node_selector
