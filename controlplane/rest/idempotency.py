"""Idempotency-Key: work asked for twice is done once, and the second caller gets the first answer.

The row is inserted before the work starts and completed with its answer. While it has no answer a twin is told to
come back; one that was not touched for a minute belongs to a process that died, and the next caller takes it over.
Answers of 5xx and 429 are forgotten, so that the same key may be tried again.
"""

from __future__ import annotations

import hmac
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.http import HttpResponse
from django.http.response import HttpResponseBase
from django.utils import timezone
from rest_framework.request import Request

from controlplane.accounts.permissions import person_of, token_of
from controlplane.errors import Clash, Invalid, Permanent
from controlplane.rest.models import IdempotencyKey
from controlplane.rest.problems import CONTENT_TYPE

KEPT = timedelta(hours=24)
DEAD_AFTER = timedelta(seconds=60)
PURGE_BATCH = 100
# What an answer is beside its body; everything else belongs to the connection or to one request.
KEPT_HEADERS = ("Content-Type", "Location", "ETag", "Link", "Allow")
# How long the caller is willing to wait does not change what is asked for.
NOT_PART_OF_THE_REQUEST = frozenset({"wait"})

_ACCEPTABLE = re.compile(r"[\x21-\x7e]{1,255}")


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to do the work of one key."""

    row_id: UUID


class Replay(Exception):
    """Not an error: the stored answer, raised past the view that must not run again."""

    def __init__(self, row: IdempotencyKey) -> None:
        super().__init__("replayed")
        self.row = row

    def response(self, request_id: str) -> HttpResponse:
        """The answer to this request: a problem names the id that its header and today's log lines have."""
        body = bytes(self.row.body)
        if self.row.headers.get("Content-Type", "").startswith(CONTENT_TYPE):
            body = json.dumps({**json.loads(body), "request_id": request_id}).encode()
        response = HttpResponse(body, status=self.row.status)
        for name, value in self.row.headers.items():
            response[name] = value
        response["Idempotency-Replayed"] = "true"
        return response


def claim(request: Request) -> Claim | None:
    """None without the header. Raises Replay, or errors for a bad, reused or running key."""
    key = request.headers.get("Idempotency-Key")
    if key is None:
        return None
    if not _ACCEPTABLE.fullmatch(key):
        raise Invalid(
            "idempotency:key:invalid",
            "Idempotency-Key must be 1 to 255 printable ASCII characters without spaces.",
            next_step="Send a fresh UUID for each piece of work.",
        )
    _purge()
    owner, fingerprint = _owner(request), _fingerprint(request)
    row, created = _insert(owner, key, fingerprint)
    if not created and _is_over(row):
        row, created = _take_over(row, owner, key, fingerprint)
    if created:
        return Claim(row.pk)
    if row.fingerprint != fingerprint:
        raise Permanent(
            "idempotency:key:reused",
            "This Idempotency-Key was used for another request within the last 24 hours.",
            next_step="Send a fresh key for other work; repeat the exact request to get the first answer.",
        )
    if row.status is None:
        error = Clash(
            "idempotency:key:running",
            "A request with this Idempotency-Key is still being answered.",
            next_step="Repeat the request after the time in Retry-After.",
        )
        error.headers = {"Retry-After": "2"}  # type: ignore[attr-defined]
        raise error
    raise Replay(row)


def touch(held: Claim) -> None:
    """Say that the work is still going on; a wait longer than DEAD_AFTER must."""
    IdempotencyKey.objects.filter(pk=held.row_id, status__isnull=True).update(updated_at=timezone.now())


def settle(held: Claim, response: HttpResponseBase, redacted: Sequence[str] = ()) -> None:
    """Store the answer for repeats, without the fields named in ``redacted``; forget an answer that may change."""
    mine = IdempotencyKey.objects.filter(pk=held.row_id, status__isnull=True)
    if response.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR or response.status_code == 429:
        mine.delete()
        return
    mine.update(
        status=response.status_code,
        headers={name: response[name] for name in KEPT_HEADERS if response.has_header(name)},
        body=_without(getattr(response, "content", b""), redacted),
        updated_at=timezone.now(),
    )


def _insert(owner: str, key: str, fingerprint: str) -> tuple[IdempotencyKey, bool]:
    fields: Mapping[str, Any] = {"fingerprint": fingerprint, "expires_at": timezone.now() + KEPT}
    return IdempotencyKey.objects.get_or_create(owner=owner, key=key, defaults=fields)


def _is_over(row: IdempotencyKey) -> bool:
    now = timezone.now()
    return row.expires_at <= now or (row.status is None and row.updated_at <= now - DEAD_AFTER)


def _take_over(row: IdempotencyKey, owner: str, key: str, fingerprint: str) -> tuple[IdempotencyKey, bool]:
    with transaction.atomic():
        # Guarded by what was seen: of several callers one deletes, and the others find that one's new row.
        IdempotencyKey.objects.filter(pk=row.pk, status=row.status, updated_at=row.updated_at).delete()
        return _insert(owner, key, fingerprint)


def _owner(request: Request) -> str:
    token = token_of(request)
    # A token never sees what another token of the same person was answered: their limits may differ.
    return f"{person_of(request).pk}/{token.id if token is not None else 'session'}"


def _fingerprint(request: Request) -> str:
    query = sorted(
        (name, values) for name, values in request.query_params.lists() if name not in NOT_PART_OF_THE_REQUEST
    )
    head = json.dumps([request.method, request.path, query])
    # Keyed, so that whoever reads the row cannot try texts against it: a body may be somebody's prompt.
    return hmac.new(settings.SECRET_KEY.encode(), head.encode() + b"\n" + request._request.body, "sha256").hexdigest()


def _without(content: bytes, redacted: Sequence[str]) -> bytes:
    if not redacted or not content:
        return content
    document = json.loads(content)
    return json.dumps({name: None if name in redacted else value for name, value in document.items()}).encode()


def _purge() -> None:
    with transaction.atomic():
        over = IdempotencyKey.objects.filter(expires_at__lte=timezone.now())
        doomed = list(over.select_for_update(skip_locked=True).values_list("pk", flat=True)[:PURGE_BATCH])
        if doomed:
            IdempotencyKey.objects.filter(pk__in=doomed).delete()
