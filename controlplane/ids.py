"""Identifiers: UUIDv7, so that rows sort by creation and pages need no second key."""

from __future__ import annotations

from uuid import UUID

import uuid_utils.compat


def new_id() -> UUID:
    """A fresh UUIDv7 as the standard library's class."""
    return uuid_utils.compat.uuid7()
