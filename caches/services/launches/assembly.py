"""From observations to a launch's row: whatever waits is assembled anew, by whichever worker comes first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from caches.domain.launches.labels import Circumstances, classify, image_label, miss_reason, weights_label
from caches.domain.launches.observations import Observation
from caches.domain.launches.timeline import RULE, PhaseTime, Timeline, assemble
from caches.models import Launch, LaunchHour
from caches.selectors.launches.circumstances import (
    Start,
    circumstances_of,
    fact,
    first_at,
    scheduled_at,
    surroundings_of,
)
from caches.selectors.launches.dependents import wrong_beside, wrong_lately
from caches.selectors.launches.observations import runs_seen
from caches.services.launches.rows import launches_mark_stale, launches_write
from controlplane.locks import deadlock_retried

BATCH = 500  # locked at once for a few tenths of a second: whoever reports of one of them waits
# Launches are kept for so long; counts of older hours are not made again, because nobody could.
KEPT = timedelta(days=90)
# And for so much longer, so that an hour whose counts are asked for within KEPT is whole when they are made.
SPARE = timedelta(days=1)


def launches_assemble(*, limit: int = 2 * BATCH) -> int:
    """Assemble launches with new observations, those first that wait longest, and mark those for assembly that change
    with them. Returns how many were assembled."""
    count = 0
    while count < limit:
        asked = min(BATCH, limit - count)
        starts = _assemble(asked)
        # Once more: what another worker assembled meanwhile was not to be seen from within.
        launches_mark_stale(keys=wrong_beside(starts))
        count += len(starts)
        if len(starts) < asked:
            break
    return count


@deadlock_retried
@transaction.atomic
def _assemble(most: int) -> Sequence[Start]:
    """Nobody can say that there is more to a launch while it is locked, so what is read here is all of it. What another
    worker has locked is left to it."""
    rows = Launch.objects.filter(stale_at__isnull=False).order_by("stale_at").defer("phases", "phase_seconds")
    locked = list(rows.select_for_update(no_key=True, skip_locked=True)[:most])
    if not locked:
        return ()
    seen = runs_seen(locked)
    pairs = [(launch, seen.get(launch.pk, ())) for launch in locked]
    starts = [
        Start(launch, around, timeline := assemble(own), scheduled_at(own, timeline), first_at(own))
        for (launch, own), around in zip(pairs, surroundings_of(pairs), strict=True)
    ]
    found = zip(starts, pairs, circumstances_of(starts), strict=True)
    launches_write([_row(start, own, circumstances) for start, (_, own), circumstances in found])
    changed: dict[UUID, list[datetime]] = defaultdict(list)
    for start in starts:
        changed[start.launch.cluster_id] += [start.launch.began_at, start.began]
    for cluster_id in sorted(changed):
        hours_mark_dirty(cluster_id=cluster_id, moments=changed[cluster_id])
    launches_mark_stale(keys=wrong_beside(starts))
    return starts


def hours_mark_dirty(*, cluster_id: UUID, moments: Sequence[datetime]) -> None:
    """The counts of these hours are made again. In the order of time, so that no two callers deadlock."""
    now = timezone.now()
    starts = sorted({hour_of(moment) for moment in moments if moment > now - KEPT})
    rows = [LaunchHour(cluster_id=cluster_id, start=start, dirty_at=now) for start in starts]
    LaunchHour.objects.bulk_create(
        rows, update_conflicts=True, unique_fields=["cluster", "step", "start"], update_fields=["dirty_at"]
    )


def hour_of(moment: datetime) -> datetime:
    """The hour (UTC) that ``moment`` lies in."""
    return moment.replace(minute=0, second=0, microsecond=0)


def launches_recheck(*, now: datetime) -> int:
    """Have launches of the last hour assembled again that the rows around them contradict by now: a node that was lost
    or came back, a row that came after the launch, a later run of a container beside one that goes on. Returns how
    many."""
    return launches_mark_stale(keys=wrong_lately(now))


def _row(start: Start, seen: Sequence[Observation], circumstances: Circumstances) -> dict[str, Any]:
    """The launch as it follows from ``seen`` and from what is around it."""
    timeline = start.timeline
    return {
        "id": str(start.launch.pk),
        "began_at": start.began.isoformat(),
        "state": timeline.state.value,
        "reached": timeline.reached.value,
        "started_at": _text(timeline.started_at),
        "ready_at": _text(timeline.ready_at),
        "served_at": _text(timeline.served_at),
        "ended_at": _text(timeline.ended_at),
        "end_reason": timeline.end_reason[:200],
        "ready_seconds": timeline.ready_seconds,
        "total_seconds": timeline.total_seconds,
        "unknown_seconds": timeline.unknown_seconds,
        "clock_shift_seconds": timeline.clock_shift_seconds,
        "phase_seconds": [one.seconds for one in timeline.phases],
        "phases": phase_rows(timeline),
        "rule": RULE,
        **_label_fields(start, seen, circumstances),
    }


def phase_rows(timeline: Timeline) -> list[dict[str, Any]]:
    """Launch.phases."""
    return [_phase(one) for one in timeline.phases]


def _phase(one: PhaseTime) -> dict[str, Any]:
    return {
        "phase": one.phase.value,
        "state": one.state.value,
        "seconds": one.seconds,
        "observer": one.observer.value if one.observer else "",
        "pieces": [[begin.isoformat(), end.isoformat()] for begin, end in one.pieces],
    }


def _label_fields(start: Start, seen: Sequence[Observation], circumstances: Circumstances) -> dict[str, Any]:
    """What is known once stays known: rows around a launch go away before it does."""
    launch, around = start.launch, start.around
    node, endpoint, version = around.node, around.endpoint, around.version
    pool = node.pool.name if node is not None and node.pool is not None else ""
    weights = weights_label(seen)
    return {
        "node_id": _text(start.node_id),
        "node_name": node.name if node is not None else fact(seen, "node")[:253] or launch.node_name,
        "pool_name": launch.pool_name or pool,
        "endpoint_id": _text(endpoint.pk if endpoint is not None else None),
        "endpoint_name": start.endpoint_name,
        "digest": around.digest[:80],
        "version_id": _text(version.pk if version is not None else None),
        "version_name": version.full_name[:320] if version is not None else launch.version_name,
        "pod_name": (fact(seen, "pod") or launch.pod_name or around.pod)[:320],
        "event_class": classify(circumstances).value,
        "weights": weights.value,
        "miss_reason": miss_reason(seen, weights, circumstances) or "",
        "image": image_label(seen, launch.container).value,
        "first_on_node": circumstances.first_of_version_on_node,
        "node_age_seconds": circumstances.node_age_seconds,
    }


def _text(value: datetime | UUID | None) -> str | None:
    if value is None:
        return None
    return value.isoformat() if isinstance(value, datetime) else str(value)


def launches_purge(*, now: datetime) -> int:
    """Delete launches whose time is over, with what was seen of them; their counts stay (launch_counts.counts_purge).
    Returns how many, of a batch at most."""
    old = Launch.objects.filter(began_at__lte=now - KEPT - SPARE).order_by("began_at").values_list("pk", flat=True)
    keys = list(old[:5000])
    Launch.objects.filter(pk__in=keys).delete()
    return len(keys)
