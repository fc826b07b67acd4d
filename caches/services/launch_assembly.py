"""From observations to a launch's row: whatever waits is assembled anew, by whichever worker comes first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from caches.domain.launch_labels import classify, image_label, weights_label
from caches.domain.launch_observations import Observation
from caches.domain.launch_timeline import PhaseTime, Timeline, assemble
from caches.models import Launch, LaunchHour
from caches.selectors.launch_circumstances import Surroundings, circumstances_of, fact, surroundings_of
from caches.selectors.launch_observations import observations_by_launch
from controlplane.locks import deadlock_retried

BATCH = 50  # locked at once: whoever reports of one of them waits
# Launches are kept for so long; counts of older hours are not made again, because nobody could.
KEPT = timedelta(days=90)


def launches_assemble(*, limit: int = 200) -> int:
    """Assemble launches with new observations, those first that wait longest. Returns how many were assembled."""
    stale = Launch.objects.filter(stale_at__isnull=False).order_by("stale_at").values_list("pk", flat=True)
    keys = list(stale[:limit])
    return sum(_assemble(keys[start : start + BATCH]) for start in range(0, len(keys), BATCH))


@deadlock_retried
@transaction.atomic
def _assemble(keys: Sequence[UUID]) -> int:
    """Nobody can say that there is more to a launch while it is locked, so what is read here is all of it."""
    rows = Launch.objects.filter(pk__in=keys, stale_at__isnull=False).select_related("node__pool", "endpoint")
    locked = list(rows.select_for_update(of=("self",), no_key=True, skip_locked=True).order_by("pk"))
    seen = observations_by_launch([launch.pk for launch in locked])
    # What came before decides what is first, and is written before it is asked for.
    pairs = sorted(((launch, seen.get(launch.pk, ())) for launch in locked), key=lambda pair: pair[0].began_at)
    changed: dict[UUID, list[datetime]] = defaultdict(list)
    for (launch, own), around in zip(pairs, surroundings_of(pairs), strict=True):
        changed[launch.cluster_id] += [launch.began_at, _write(launch, own, around)]
    for cluster_id in sorted(changed):
        hours_mark_dirty(cluster_id=cluster_id, moments=changed[cluster_id])
    return len(locked)


def _write(launch: Launch, seen: Sequence[Observation], around: Surroundings) -> datetime:
    """The row as it follows from ``seen``; returns when it began."""
    timeline = assemble(seen)
    began = timeline.started_at or launch.began_at
    fields = {**_timeline_fields(timeline), **_label_fields(launch, seen, around, timeline)}
    Launch.objects.filter(pk=launch.pk).update(**fields, began_at=began, stale_at=None, updated_at=timezone.now())
    return began


def hours_mark_dirty(*, cluster_id: UUID, moments: Sequence[datetime]) -> None:
    """The counts of these hours are made again. In the order of time, so that no two callers deadlock."""
    now = timezone.now()
    starts = sorted({hour_of(moment) for moment in moments if moment > now - KEPT})
    rows = [LaunchHour(cluster_id=cluster_id, start=start, dirty_at=now) for start in starts]
    LaunchHour.objects.bulk_create(
        rows, update_conflicts=True, unique_fields=["cluster", "start"], update_fields=["dirty_at"]
    )


def hour_of(moment: datetime) -> datetime:
    """The hour (UTC) that ``moment`` lies in."""
    return moment.replace(minute=0, second=0, microsecond=0)


def launches_of_version_refresh(*, digest: str) -> int:
    """Assemble again what has no name for this digest yet: its version was registered afterwards."""
    nameless = Launch.objects.filter(digest=digest, version__isnull=True, stale_at__isnull=True)
    return nameless.update(stale_at=timezone.now())


def _timeline_fields(timeline: Timeline) -> dict[str, Any]:
    return {
        "state": timeline.state.value,
        "reached": timeline.reached.value,
        "started_at": timeline.started_at,
        "ready_at": timeline.ready_at,
        "served_at": timeline.served_at,
        "ended_at": timeline.ended_at,
        "end_reason": timeline.end_reason[:200],
        "ready_seconds": timeline.ready_seconds,
        "total_seconds": timeline.total_seconds,
        "unknown_seconds": timeline.unknown_seconds,
        "clock_shift_seconds": timeline.clock_shift_seconds,
        "phase_seconds": [one.seconds for one in timeline.phases],
        "phases": [_phase(one) for one in timeline.phases],
    }


def _phase(one: PhaseTime) -> dict[str, Any]:
    return {
        "phase": one.phase.value,
        "state": one.state.value,
        "seconds": one.seconds,
        "observer": one.observer.value if one.observer else "",
        "pieces": [[start.isoformat(), end.isoformat()] for start, end in one.pieces],
    }


def _label_fields(
    launch: Launch, seen: Sequence[Observation], around: Surroundings, timeline: Timeline
) -> dict[str, Any]:
    """What is known once stays known: rows around a launch go away before it does."""
    circumstances = circumstances_of(launch, around, timeline)
    node, endpoint, version = around.node, around.endpoint, around.version
    pool = node.pool.name if node is not None and node.pool is not None else ""
    return {
        "node": node,
        "node_name": node.name if node is not None else fact(seen, "node") or launch.node_name,
        "pool_name": launch.pool_name or pool,
        "endpoint": endpoint,
        "endpoint_name": endpoint.full_name if endpoint is not None else launch.endpoint_name,
        "digest": around.digest[:80],
        "version": version,
        "version_name": version.full_name[:320] if version is not None else launch.version_name,
        "pod_name": fact(seen, "pod")[:320] or launch.pod_name,
        "event_class": classify(circumstances).value,
        "weights": weights_label(seen).value,
        "image": image_label(seen, launch.container).value,
        "first_on_node": circumstances.first_of_version_on_node,
        "node_age_seconds": circumstances.node_age_seconds,
    }


def launches_purge(*, now: datetime) -> int:
    """Delete launches whose time is over, with what was seen of them; their counts stay. Returns how many, of a batch
    at most."""
    old = Launch.objects.filter(began_at__lte=now - KEPT).order_by("began_at").values_list("pk", flat=True)
    keys = list(old[:5000])
    Launch.objects.filter(pk__in=keys).delete()
    return len(keys)
