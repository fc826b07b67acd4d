"""ETag and If-Match on objects that people edit: an update based on an old reading is refused with 412."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from rest_framework.request import Request

from controlplane.errors import Stale
from controlplane.models_base import Row

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TAG = re.compile(r'(?:W/)?"([^"]*)"')


def etag_of(row: Row) -> str:
    """The row's version: its ``updated_at`` in microseconds, as a strong tag."""
    # In whole numbers: from 2038 on a float of the seconds gives some neighbouring microseconds the same tag.
    return f'"{(row.updated_at - _EPOCH) // timedelta(microseconds=1):x}"'


def expected_version(request: Request, row: Row) -> datetime | None:
    """What the service must find unchanged (``if_updated_at``): None when the caller sent no If-Match, or ``*``.

    Raises errors.Stale at once when the row is already another version than any that was named. A header that names
    none (a script's empty variable) is not the same as no header: it would overwrite what it meant to protect.
    """
    header = request.headers.get("If-Match")
    if header is None or header.strip() == "*":
        return None
    current = etag_of(row)
    if current not in {f'"{tag}"' for tag in _TAG.findall(header)}:
        raise Stale(
            "request:user:stale",
            "Somebody changed the object since you read it.",
            next_step="Read it again, look at what changed, and send the change with the new ETag.",
        )
    return row.updated_at
