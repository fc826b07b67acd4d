"""Whether what the Cold starts page says of a period may have changed, without reading it."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db import connection

from caches.domain.launches.period import HOUR, Period, hour_of
from caches.domain.launches.timeline import RULE
from caches.models import Launch, LaunchCount, LaunchHour
from caches.selectors.launches.trials import trials_within
from controlplane.audit.models import AuditEvent
from controlplane.clusters.models import Cluster, Node

# Older launches may go, or change, without being counted again.
_COUNTED = timedelta(days=89)


def launches_standing(period: Period, *, since: datetime, now: datetime) -> tuple[object, ...] | None:
    """What the figures, lists and markers of ``period`` follow from, all of the fleet's: the same while nothing of it
    changed. ``since`` where what is beside them begins. None: that cannot be told, so they are to be read.

    Whoever changes a launch marks its hour in the same transaction, and whoever counts that hour gives it new rows in
    the one that takes the mark away. So while nothing waits, the rows of the hours tell of every change; phases that
    follow an earlier rule wait too, as no hour tells of them. Changes that people make are told of by the audit trail:
    its rows are only added, with the time at which that was begun.
    """
    if since < now - _COUNTED or not (period.open or now >= period.end + (period.end - period.since)):
        return None
    with connection.cursor() as cursor:
        cursor.execute(_STANDING, [since, period.until, since, period.until, hour_of(now) - HOUR])
        waits, counted, events, *rows = cursor.fetchone()
    # Without any launch it follows from those of other times whether there ever was one.
    if waits or counted is None:
        return None
    shown = (period.since, period.until, period.step, period.open or period.end, hour_of(now))
    return *shown, counted, events, *rows, trials_within(period)


_STANDING = f"""
    SELECT EXISTS (SELECT FROM {Launch._meta.db_table} WHERE stale_at IS NOT NULL)
           OR EXISTS (SELECT FROM {Launch._meta.db_table} WHERE rule < {RULE})
           OR EXISTS (SELECT FROM {LaunchHour._meta.db_table}
                       WHERE step = 'Hour' AND start >= %s AND start < %s),
           (SELECT md5(string_agg(id::text, ' ' ORDER BY id)) FROM {LaunchCount._meta.db_table}
             WHERE by = 'Nothing' AND step = 'Hour' AND start >= %s AND start < %s),
           (SELECT count(*) FROM {AuditEvent._meta.db_table} WHERE at >= %s),
           (SELECT count(*) || ' ' || sum(uuid_hash_extended(id, 0)) FROM {Node._meta.db_table}),
           (SELECT md5(string_agg(id::text || name, ' ' ORDER BY id)) FROM {Cluster._meta.db_table})
"""
