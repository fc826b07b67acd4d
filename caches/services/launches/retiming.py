"""Phases of stored launches by the rule of this version: from their own observations, and nothing else of them.

Labels and counts stay as they are: what was around a launch goes away before it does, so that nobody could find them
again.
"""

from __future__ import annotations

from django.db import transaction

from caches.domain.launches.timeline import RULE, assemble
from caches.models import Launch
from caches.selectors.launches.observations import runs_seen
from caches.services.launches.assembly import phase_rows

BATCH = 500


@transaction.atomic
def launches_retime(*, limit: int = BATCH) -> int:
    """Of the latest that follow an earlier rule. Those that wait to be assembled get the rule with that. Returns how
    many."""
    rows = Launch.objects.filter(rule__lt=RULE, stale_at__isnull=True).order_by("-began_at")
    rows = rows.only("cluster", "pod_uid", "container", "restart_count")
    locked = list(rows.select_for_update(no_key=True, skip_locked=True)[:limit])
    seen = runs_seen(locked)
    for launch in locked:
        launch.rule = RULE
        if launch.pk not in seen:
            continue  # nothing to make them of
        timeline = assemble(seen[launch.pk])
        launch.reached, launch.unknown_seconds = timeline.reached.value, timeline.unknown_seconds
        launch.phases, launch.phase_seconds = phase_rows(timeline), [one.seconds for one in timeline.phases]
    known = [launch for launch in locked if launch.pk in seen]
    Launch.objects.bulk_update(known, ["reached", "unknown_seconds", "phases", "phase_seconds"], batch_size=100)
    Launch.objects.filter(pk__in=[launch.pk for launch in locked]).update(rule=RULE)
    return len(locked)
