"""Phases of stored launches by the rule of this version: from their own observations, and nothing else of them.

Labels and counts stay as they are: what was around a launch goes away before it does, so that nobody could find them
again. One that is stored as if it went on although a later run of its container began is assembled as a whole: phases
alone would be those of what has ended beside a row that has not.
"""

from __future__ import annotations

from django.db import transaction

from caches.domain.launches.timeline import RULE, assemble
from caches.models import Launch
from caches.selectors.launches.observations import runs_seen
from caches.services.launches.assembly import phase_rows
from caches.services.launches.rows import launches_mark_stale

BATCH = 500


@transaction.atomic
def launches_retime(*, limit: int = BATCH) -> int:
    """Of the latest that follow an earlier rule. Those that wait to be assembled get the rule with that. Returns how
    many."""
    rows = Launch.objects.filter(rule__lt=RULE, stale_at__isnull=True).order_by("-began_at")
    rows = rows.only("cluster", "pod_uid", "container", "restart_count", "ended_at")
    locked = list(rows.select_for_update(no_key=True, skip_locked=True)[:limit])
    lines = {key: assemble(seen) for key, seen in runs_seen(locked).items()}
    left_open = {one.pk for one in locked if one.ended_at is None and one.pk in lines and lines[one.pk].ended_at}
    launches_mark_stale(keys=sorted(left_open))
    made = [launch for launch in locked if launch.pk in lines and launch.pk not in left_open]
    for launch in made:
        timeline = lines[launch.pk]
        launch.reached, launch.unknown_seconds = timeline.reached.value, timeline.unknown_seconds
        launch.phases, launch.phase_seconds = phase_rows(timeline), [one.seconds for one in timeline.phases]
    Launch.objects.bulk_update(made, ["reached", "unknown_seconds", "phases", "phase_seconds"], batch_size=100)
    # Also of those of which nothing that was seen is left to make them of.
    Launch.objects.filter(pk__in=[one.pk for one in locked if one.pk not in left_open]).update(rule=RULE)
    return len(locked)
