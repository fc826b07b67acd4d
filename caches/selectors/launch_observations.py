"""Stored observations as the domain reads them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from uuid import UUID

from caches.domain.launch_observations import Observation
from caches.domain.launch_words import Clock, Mark, Observer, Phase
from caches.models import LaunchObservation


def observation_of(row: LaunchObservation) -> Observation | None:
    """None for what this version does not understand: a later one wrote it, and will read it again."""
    try:
        return Observation(
            Observer(row.observer),
            Mark(row.mark),
            row.at,
            row.seconds,
            Clock(row.clock),
            phase=Phase(row.phase) if row.phase else None,
            facts=tuple(sorted((str(name), str(value)) for name, value in row.facts.items())),
        )
    except ValueError:
        return None


def observations_by_launch(keys: Collection[UUID]) -> Mapping[UUID, Sequence[Observation]]:
    """Everything that was seen of each launch."""
    found: dict[UUID, list[Observation]] = defaultdict(list)
    for row in LaunchObservation.objects.filter(launch_id__in=keys):
        if (seen := observation_of(row)) is not None:
            found[row.launch_id].append(seen)
    return found
