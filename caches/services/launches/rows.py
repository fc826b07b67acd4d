"""Writing launches: any number of rows in one statement."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from django.db import connection

from caches.models import Launch

# Columns that follow from observations, by the type that PostgreSQL reads them as.
_TYPES = {
    "text": (
        "state", "reached", "end_reason", "node_name", "pool_name", "endpoint_name", "digest", "version_name",
        "pod_name", "event_class", "weights", "miss_reason", "image",
    ),
    "timestamptz": ("began_at", "started_at", "ready_at", "served_at", "ended_at"),
    "float8": ("ready_seconds", "total_seconds", "unknown_seconds", "clock_shift_seconds", "node_age_seconds"),
    "uuid": ("node_id", "endpoint_id", "version_id"),
    "boolean": ("first_on_node",),
    "int2": ("rule",),
    "float8[]": ("phase_seconds",),
    "jsonb": ("phases",),
}  # fmt: skip
MOST_NAMED = 10_000
COLUMNS = {name: kind for kind, names in _TYPES.items() for name in names}


def launches_write(rows: Sequence[Mapping[str, Any]]) -> None:
    """Each of ``rows`` has ``id`` and all COLUMNS, times and keys as text; none of them waits any more afterwards.

    The caller holds the locks of the rows.
    """
    with connection.cursor() as cursor:
        cursor.execute(_UPDATE, [json.dumps(rows)])


def launches_mark_stale(*, keys: Sequence[UUID]) -> int:
    """Have these assembled, again where they were. Returns how many there are."""
    if not keys:
        return 0
    with connection.cursor() as cursor:
        cursor.execute(_MARK, [list(keys)])
        return len(cursor.fetchall())


def launches_of_version_refresh(*, digest: str) -> int:
    """Have launches assembled again that have no name for this digest: its version was registered after them. Returns
    how many, MOST_NAMED of the latest at most."""
    nameless = Launch.objects.filter(digest=digest, version__isnull=True, stale_at__isnull=True).order_by("-began_at")
    return launches_mark_stale(keys=list(nameless.values_list("pk", flat=True)[:MOST_NAMED]))


_TABLE = Launch._meta.db_table
# Always another value than before: whoever assembles meanwhile must not take these for known. In the order of the ids,
# so that no two callers deadlock.
_MARK = f"""
    WITH mine AS (SELECT id FROM {_TABLE} WHERE id = ANY(%s::uuid[]) ORDER BY id FOR NO KEY UPDATE)
    UPDATE {_TABLE} SET stale_at = clock_timestamp() FROM mine WHERE {_TABLE}.id = mine.id
    RETURNING {_TABLE}.id
"""
_UPDATE = f"""
    UPDATE {_TABLE} AS launch
       SET {", ".join(f"{name} = new.{name}" for name in COLUMNS)}, stale_at = NULL, updated_at = clock_timestamp()
      FROM json_to_recordset(%s::json) AS new (id uuid, {", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())})
     WHERE launch.id = new.id
"""
