"""Stored observations as the domain reads them."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from uuid import UUID

from django.db.models import TextField
from django.db.models.functions import Cast

from caches.domain.launches.endings import told_its_end, with_end
from caches.domain.launches.observations import Observation
from caches.domain.launches.words import Clock, Mark, Observer, Phase
from caches.models import Launch, LaunchObservation

_COLUMNS = ("observer", "mark", "at", "seconds", "clock", "phase", "told")
# Looking a word up is what most of reading would be spent on.
_OBSERVERS, _MARKS = {one.value: one for one in Observer}, {one.value: one for one in Mark}
_CLOCKS, _PHASES = {one.value: one for one in Clock}, {"": None} | {one.value: one for one in Phase}


def observations_by_launch(keys: Collection[UUID]) -> Mapping[UUID, Sequence[Observation]]:
    """Everything that was seen of each launch."""
    found: dict[UUID, list[Observation]] = defaultdict(list)
    rows = LaunchObservation.objects.filter(launch_id__in=keys).order_by()
    # As text: most have no facts, and those of many launches are the same.
    rows = rows.annotate(told=Cast("facts", TextField()))
    for launch_id, *columns in rows.values_list("launch_id", *_COLUMNS):
        if (seen := _read(*columns)) is not None:
            found[launch_id].append(seen)
    return found


def runs_seen(launches: Collection[Launch]) -> Mapping[UUID, Sequence[Observation]]:
    """Everything that was seen of each launch, and that it has ended where a later run of its container is known."""
    seen = observations_by_launch([one.pk for one in launches])
    begins = _next_begins([one for one in launches if one.pk in seen and not told_its_end(seen[one.pk])])
    return {key: with_end(some, begins.get(key)) for key, some in seen.items()}


def _next_begins(launches: Sequence[Launch]) -> Mapping[UUID, datetime]:
    """When the next run of its container began, of each that has one."""
    of = {one.pk: (one.cluster_id, one.pod_uid, one.container) for one in launches}
    if not of:
        return {}
    begins: dict[tuple[UUID, str, str], list[tuple[int, datetime]]] = defaultdict(list)
    clusters, pods, _ = zip(*of.values(), strict=True)
    rows = Launch.objects.filter(cluster__in=set(clusters), pod_uid__in=set(pods), restart_count__gt=0)
    columns = ("cluster_id", "pod_uid", "container", "restart_count", "began_at")
    for cluster, pod, container, run, began in rows.order_by("restart_count").values_list(*columns):
        begins[cluster, pod, container].append((run, began))
    found = {}
    for one in launches:
        runs = begins.get(of[one.pk], [])
        if (place := bisect_right(runs, one.restart_count, key=lambda run: run[0])) < len(runs):
            found[one.pk] = runs[place][1]
    return found


def _read(
    observer: str, mark: str, at: datetime | None, seconds: float | None, clock: str, phase: str, facts: str
) -> Observation | None:
    """None for what this version does not understand: a later one wrote it, and will read it again."""
    try:
        told = () if facts == "{}" else _told(facts)
        return Observation(
            _OBSERVERS[observer], _MARKS[mark], at, seconds, _CLOCKS[clock], phase=_PHASES[phase], facts=told
        )
    except (KeyError, ValueError):
        return None


@lru_cache(maxsize=4096)
def _told(facts: str) -> tuple[tuple[str, str], ...]:
    """Facts by their names. Raises ValueError for what is no object."""
    read = json.loads(facts)
    if not isinstance(read, dict):
        raise ValueError("facts are an object")
    return tuple(sorted((str(name), str(value)) for name, value in read.items()))
