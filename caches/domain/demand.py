"""From pins to demands: their order of value, the nodes that match, how many of them, and an even, stable choice."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import blake2b
from typing import TypeVar

from caches.domain.pool_view import PinView, Placement, PlacementType
from controlplane.clusters.documents import ArtifactKind

OR = "|"  # in no value of a label
_NEVER = datetime.max.replace(tzinfo=UTC)
T = TypeVar("T")


def value_key(pin: PinView) -> tuple[int, datetime, datetime, bool, str, str]:
    """Sorts the most valuable first: priority, then the soonest launch, then the older pin, then its weights before its
    image, then by digest."""
    is_image = pin.kind is ArtifactKind.IMAGE
    return (-pin.priority, pin.needed_at or _NEVER, pin.created_at, is_image, pin.digest, pin.id)


def by_value(pins: Iterable[PinView]) -> list[PinView]:
    """Most valuable first. Where several pins name one digest, the first that reaches a node speaks for it there."""
    return sorted(pins, key=value_key)


def any_of(values: Iterable[str]) -> str:
    """The value of a selector that any of these values of a label satisfies."""
    return OR.join(values)


def alternatives(value: str) -> list[str]:
    """The values of a label that a selector's value stands for."""
    return value.split(OR)


def selects(selector: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    """Whether every label of the selector is on the node with that value, or with one of those that the selector gives
    as ``a|b``; an empty selector takes every node."""
    return all(
        labels.get(name) == value or (OR in value and labels.get(name) in alternatives(value))
        for name, value in selector.items()
    )


def required_count(placement: Placement, matching: int) -> int:
    """How many of the matching nodes must hold the artifact; percentages are rounded up."""
    if placement.type is PlacementType.COUNT:
        return min(max(0, placement.value), matching)
    if placement.type is PlacementType.PERCENT:
        return min(matching, -(-matching * max(0, placement.value) // 100))
    return matching


def home_weight(digest: str, node_uid: str) -> int:
    """A number that is stable for a pair: artifacts spread over nodes, and a new node attracts only its share."""
    return int.from_bytes(blake2b(f"{digest}|{node_uid}".encode(), digest_size=8).digest(), "big")


def spread_choose(
    items: Sequence[T],
    count: int,
    zone: Callable[[T], Hashable],
    key: Callable[[T], tuple[object, ...]],
    taken: Counter[Hashable],
) -> list[T]:
    """Choose up to ``count`` items, each time the best one (lowest key) of the zone with the fewest so far.

    ``taken`` counts what earlier choices put in each zone and is updated. Keys must differ between items.
    """
    zones: dict[Hashable, list[T]] = {}
    for item in sorted(items, key=key, reverse=True):
        zones.setdefault(zone(item), []).append(item)
    heap: list[tuple[int, tuple[object, ...], int, Hashable]] = [
        (taken[name], key(members[-1]), number, name) for number, (name, members) in enumerate(zones.items())
    ]
    heapq.heapify(heap)
    chosen: list[T] = []
    while heap and len(chosen) < count:
        _, _, number, name = heapq.heappop(heap)
        chosen.append(zones[name].pop())
        taken[name] += 1
        if zones[name]:
            heapq.heappush(heap, (taken[name], key(zones[name][-1]), number, name))
    return chosen
