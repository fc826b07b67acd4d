"""From observations to a launch's row: whatever waits is assembled anew, by whichever worker comes first."""

from __future__ import annotations

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

BATCH = 200
# Launches are kept for so long; counts of older hours are not made again, because nobody could.
KEPT = timedelta(days=90)


def launches_assemble(*, limit: int = BATCH) -> int:
    """Assemble launches with new observations, those first that wait longest. Returns how many were looked at."""
    waiting = list(Launch.objects.filter(stale_at__isnull=False).select_related("node").order_by("stale_at")[:limit])
    seen = observations_by_launch([launch.pk for launch in waiting])
    for launch in sorted(waiting, key=lambda one: one.began_at):  # what came before decides what is first
        launch_assemble(launch=launch, seen=seen.get(launch.pk, ()))
    return len(waiting)


def launch_assemble(*, launch: Launch, seen: Sequence[Observation]) -> bool:
    """Write what follows from ``seen``. False when more came meanwhile: it is assembled again."""
    timeline = assemble(seen)
    around = surroundings_of(launch, seen)
    fields = {
        **_timeline_fields(timeline),
        **_label_fields(launch, seen, around, timeline),
        "began_at": timeline.started_at or launch.began_at,
        "stale_at": None,
        "updated_at": timezone.now(),
    }
    with transaction.atomic():
        hours_mark_dirty(cluster_id=launch.cluster_id, moments=[launch.began_at, fields["began_at"]])
        mine = Launch.objects.filter(pk=launch.pk, stale_at=launch.stale_at)
        return mine.update(**fields) == 1


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
