"""Stored observations as the domain reads them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from caches.domain.launches.observations import Observation
from caches.domain.launches.words import Clock, Mark, Observer, Phase
from caches.models import LaunchObservation

_COLUMNS = ("observer", "mark", "at", "seconds", "clock", "phase", "facts")
# Looking a word up is what most of reading would be spent on.
_OBSERVERS, _MARKS = {one.value: one for one in Observer}, {one.value: one for one in Mark}
_CLOCKS, _PHASES = {one.value: one for one in Clock}, {"": None} | {one.value: one for one in Phase}


def observations_by_launch(keys: Collection[UUID]) -> Mapping[UUID, Sequence[Observation]]:
    """Everything that was seen of each launch."""
    found: dict[UUID, list[Observation]] = defaultdict(list)
    rows = LaunchObservation.objects.filter(launch_id__in=keys).order_by()
    for launch_id, *columns in rows.values_list("launch_id", *_COLUMNS):
        if (seen := _read(*columns)) is not None:
            found[launch_id].append(seen)
    return found


def _read(
    observer: str, mark: str, at: datetime | None, seconds: float | None, clock: str, phase: str, facts: dict[str, Any]
) -> Observation | None:
    """None for what this version does not understand: a later one wrote it, and will read it again."""
    try:
        told = tuple(sorted((str(name), str(value)) for name, value in facts.items())) if facts else ()
        return Observation(
            _OBSERVERS[observer], _MARKS[mark], at, seconds, _CLOCKS[clock], phase=_PHASES[phase], facts=told
        )
    except (KeyError, ValueError):
        return None
