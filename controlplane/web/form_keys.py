"""A form sent twice does its work once: the second sending goes to the first one's result."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from django.http import HttpRequest, HttpResponseRedirect
from django.utils import timezone

from controlplane.errors import Clash, FieldError, HearthError
from controlplane.ids import new_id
from controlplane.rest.models import IdempotencyKey

KEPT = timedelta(hours=24)
DEAD_AFTER = timedelta(seconds=60)
FIELD = "form_key"


class SentForm(Protocol):
    """A form that shows a refusal at the fields that it is about."""

    def is_valid(self) -> bool: ...

    def take(self, errors: Sequence[FieldError], detail: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Sent:
    """What became of a form: ``answer`` leads to its result. Without one it is shown, with ``status``, and where
    something else than a field was wrong ``refused`` says what."""

    answer: HttpResponseRedirect | None = None
    status: int = 200
    refused: HearthError | None = None


def fresh_key() -> str:
    """For the hidden field ``form_key``."""
    return str(new_id())


def sent(request: HttpRequest, form: SentForm, work: Callable[[], str]) -> Sent:
    """Do the work of a form that was sent and is valid, once (see once); nothing for one that is only asked for."""
    if request.method != "POST":
        return Sent()
    if not form.is_valid():
        return Sent(status=400)
    try:
        return Sent(once(request, work))
    except HearthError as error:
        form.take(error.errors, error.detail)
        return Sent(status=error.status, refused=error)


def once(request: HttpRequest, work: Callable[[], str]) -> HttpResponseRedirect:
    """Do the work, which answers with the address of its result, unless this form key has done it.

    A failing work frees the key: the corrected form may be sent again. Raises errors.Clash while a twin is running.
    """
    key = request.POST.get(FIELD, "")[:255]
    if not key:
        return HttpResponseRedirect(work())
    owner = f"{request.user.pk}/form"
    fingerprint = hashlib.sha256(request.path.encode()).hexdigest()
    mine = IdempotencyKey.objects.filter(owner=owner, key=key)
    mine.filter(status__isnull=True, updated_at__lt=timezone.now() - DEAD_AFTER).delete()
    row, created = IdempotencyKey.objects.get_or_create(
        owner=owner, key=key, defaults={"fingerprint": fingerprint, "expires_at": timezone.now() + KEPT}
    )
    if not created:
        if row.status is None:
            raise Clash(
                "page:user:sent-twice",
                "This form was sent twice and the first one is still being worked on.",
                next_step="Open Operations, or the list that it belongs to: its result appears there in a moment.",
            )
        return HttpResponseRedirect(row.headers["Location"])
    try:
        address = work()
    except BaseException:
        mine.filter(pk=row.pk).delete()
        raise
    mine.filter(pk=row.pk).update(status=303, headers={"Location": address}, updated_at=timezone.now())
    return HttpResponseRedirect(address)
