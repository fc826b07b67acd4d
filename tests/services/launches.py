"""Launches for the tests of services and selectors: sightings of a pod, taken in and assembled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

from caches.domain.launches.observations import Observation
from caches.domain.launches.words import EventClass, Mark
from caches.models import Launch
from caches.services.launches.assembly import hours_mark_dirty, launches_assemble
from caches.services.launches.counts import hours_count
from caches.services.launches.ingest import Sighting, sightings_record
from controlplane.clusters.models import Cluster, Node
from tests.domain.launches import T0, mark


def sighting(cluster: Cluster, pod: str, *seen: Observation, restart: int = 0, at: datetime = T0) -> Sighting:
    """``seen`` of the container ``engine``, moved from T0 to ``at``."""
    moved = tuple(replace(one, at=one.at + (at - T0)) if one.at is not None else one for one in seen)
    return Sighting(cluster.pk, cluster.name, pod, "engine", restart, moved)


def ready_pod(
    cluster: Cluster,
    pod: str,
    seconds: float,
    *,
    at: datetime = T0,
    node: Node | None = None,
    digest: str = "",
    found: str = "",
    image: bool | None = None,
    restart: int = 0,
) -> Sighting:
    """A launch that was ready after ``seconds``: placed after 1, fetched until half of it, loaded until nine tenths."""
    facts: dict[str, Any] = {"node_uid": node.uid} if node is not None else {}
    seen = (
        [mark(Mark.RESTARTED, 0)]
        if restart
        else [mark(Mark.CREATED, 0, digest=digest) if digest else mark(Mark.CREATED, 0)]
    )
    seen += [mark(Mark.SCHEDULED, min(1, seconds / 10), **facts)]
    if found:
        seen += [mark(Mark.ENSURE_STARTED, seconds * 0.1), mark(Mark.ENSURE_ENDED, seconds * 0.5, found=found)]
    if image is not None:
        seen += [mark(Mark.IMAGE_PRESENT, seconds * 0.1) if image else mark(Mark.PULLED, seconds * 0.1, seconds=0)]
    seen += [
        mark(Mark.STARTED, seconds * 0.5),
        mark(Mark.LOAD_STARTED, seconds * 0.6),
        mark(Mark.LOADED, seconds * 0.9),
    ]
    seen += [mark(Mark.SERVING, seconds * 0.95), mark(Mark.READY, seconds)]
    return sighting(cluster, pod, *seen, restart=restart, at=at)


def take_in(*items: Sighting) -> list[Launch]:
    """Recorded, assembled and counted; the launches in the order of ``items``."""
    sightings_record(items=items)
    settle()
    found = Launch.objects.in_bulk([item.id for item in items])
    return [found[item.id] for item in items]


def settle() -> None:
    """Until nothing waits."""
    while launches_assemble():
        pass
    while hours_count():
        pass


def hours(count: float) -> timedelta:
    return timedelta(hours=count)


def pods(cluster: Cluster, lengths: Sequence[float], **fields: object) -> list[Sighting]:
    """One ready pod for each length, their names by number."""
    return [ready_pod(cluster, f"pod-{number}", seconds, **fields) for number, seconds in enumerate(lengths)]  # type: ignore[arg-type]  # ready_pod's


def put_launches(cluster: Cluster, lengths: Sequence[float | None], *, at: datetime, **fields: Any) -> list[Launch]:
    """Assembled launches, written straight into the table and counted: one for each length, None was never ready."""
    fields.setdefault("event_class", EventClass.COLD_POD)
    made = [
        Launch(
            id=uuid4(),
            cluster=cluster,
            pod_uid=f"pod-{number}",
            container="engine",
            restart_count=0,
            began_at=at,
            started_at=at,
            state="Ready" if seconds is not None else "Ended",
            ready_seconds=seconds,
            total_seconds=seconds,
            phase_seconds=phase_seconds(seconds),
            **fields,
        )
        for number, seconds in enumerate(lengths)
    ]
    Launch.objects.bulk_create(made)
    hours_mark_dirty(cluster_id=cluster.pk, moments=[at])
    while hours_count():
        pass
    return made


def phase_seconds(seconds: float | None) -> list[float | None]:
    """A twentieth waited, half of it loaded, a tenth checked; nothing is known of the rest."""
    return [None] * 7 if seconds is None else [seconds / 20, None, None, None, seconds / 2, seconds / 10, None]
