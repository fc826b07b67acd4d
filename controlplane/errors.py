"""Errors with a stable code, a sentence and a next step. Anything else that is raised is a bug.

``Permanent`` will fail again in the same way; ``Transient`` may succeed later (``retry_at``). ``code`` is
``area:who:what`` where *who* is the party that can change the outcome (user, source, node, cluster, hearth).
Imports no Django, so the agent and the sources raise the same classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class FieldError:
    """One wrong input field; ``field`` is a dotted path, or "" for the whole body."""

    field: str
    code: str
    detail: str


class HearthError(Exception):
    """Base of every expected failure. ``status`` is the HTTP status that the faces answer with."""

    status = 500

    def __init__(
        self,
        code: str,
        detail: str,
        *,
        next_step: str = "",
        status: int | None = None,
        errors: Sequence[FieldError] = (),
    ) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.next_step = next_step
        self.errors = tuple(errors)
        if status is not None:
            self.status = status


class Permanent(HearthError):
    """Will fail again until somebody changes something; ``reason`` is a documents.Reason value where one applies."""

    status = 422

    def __init__(
        self,
        code: str,
        detail: str,
        *,
        reason: str = "",
        next_step: str = "",
        status: int | None = None,
        errors: Sequence[FieldError] = (),
    ) -> None:
        super().__init__(code, detail, next_step=next_step, status=status, errors=errors)
        self.reason = reason


class Transient(HearthError):
    """May succeed later. ``retry_at`` None leaves the time to the caller's backoff."""

    status = 503

    def __init__(
        self,
        code: str,
        detail: str,
        *,
        reason: str = "",
        retry_at: datetime | None = None,
        next_step: str = "Nothing to do: it is tried again by itself.",
    ) -> None:
        super().__init__(code, detail, next_step=next_step)
        self.reason = reason
        self.retry_at = retry_at


class Invalid(Permanent):
    """The request cannot be understood or is not allowed by a rule."""

    status = 400


class Missing(Permanent):
    status = 404


class Clash(Permanent):
    """The state does not allow it now, or another writer was first."""

    status = 409


class Stale(Permanent):
    """If-Match did not match: somebody changed the object since it was read."""

    status = 412


class Unauthenticated(Permanent):
    """Nobody valid is calling: no credentials, or credentials that do not count any more."""

    status = 401


class Denied(Permanent):
    status = 403
