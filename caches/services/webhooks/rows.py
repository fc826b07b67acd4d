"""Who is told about failures: webhooks made, changed and removed by people. Delivery is services.webhooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

from django.conf import settings
from django.db import IntegrityError, transaction

from caches.models import Webhook
from caches.services.webhooks.announcing import SIGNING_KEY
from caches.services.webhooks.posts import address_problem, url_problem, url_shown
from caches.sources import allowed
from caches.sources.secrets import read_secret
from controlplane.audit.services import Actor, audit_write
from controlplane.errors import Clash, FieldError, HearthError, Invalid, Missing, Stale, Transient

FIELDS = ("url", "secret_name", "events", "enabled")


def webhook_create(
    *, actor: Actor, name: str, url: str, secret_name: str, events: Sequence[str] = (), enabled: bool = True
) -> Webhook:
    """A new webhook. Clash when the name is taken, Invalid for an address or secret that cannot work."""
    _check({"url": url, "secret_name": secret_name})
    # Asked first, so that an ordinary duplicate is no error in the log of PostgreSQL; the constraint decides races.
    if Webhook.objects.filter(name=name).exists():
        raise _taken(name)
    try:
        with transaction.atomic():
            webhook = Webhook.objects.create(
                name=name, url=url, secret_name=secret_name, events=list(events), enabled=enabled
            )
            _audit(actor, "webhook.create", webhook, None, _facts(webhook))
    except IntegrityError as error:
        raise _taken(name) from error
    return webhook


def webhook_update(
    *, actor: Actor, webhook_id: UUID, changes: Mapping[str, Any], if_updated_at: datetime | None = None
) -> Webhook:
    """Change any of FIELDS. Stale when it was changed since ``if_updated_at``."""
    _check(changes)
    with transaction.atomic():
        webhook = _locked(webhook_id, if_updated_at)
        before, old = _facts(webhook), _values(webhook)
        for name in FIELDS:
            if name in changes:
                setattr(webhook, name, changes[name])
        if _values(webhook) != old:
            webhook.save(update_fields=[*FIELDS, "updated_at"])
            _audit(actor, "webhook.update", webhook, before, _facts(webhook))
    return webhook


def webhook_delete(*, actor: Actor, webhook_id: UUID, if_updated_at: datetime | None = None) -> None:
    """Remove it with what it has not delivered yet."""
    with transaction.atomic():
        webhook = _locked(webhook_id, if_updated_at)
        _audit(actor, "webhook.delete", webhook, _facts(webhook), None)
        webhook.delete()


def _taken(name: str) -> Clash:
    return Clash(
        "webhook:user:exists", f"There is a webhook {name} already.", next_step="Change it, or choose another name."
    )


def _locked(webhook_id: UUID, if_updated_at: datetime | None) -> Webhook:
    webhook = Webhook.objects.select_for_update(no_key=True).filter(pk=webhook_id).first()
    if webhook is None:
        raise Missing("webhook:user:not-found", "There is no such webhook.", next_step="List the webhooks.")
    if if_updated_at is not None and webhook.updated_at != if_updated_at:
        raise Stale(
            "webhook:user:stale",
            "Somebody changed this webhook since you read it.",
            next_step="Read it again, and repeat the change if it is still wanted.",
        )
    return webhook


def _check(given: Mapping[str, Any]) -> None:
    """Refuse what could never be delivered to, or never be signed. Only the fields that are given are looked at."""
    errors = []
    if "url" in given and (problem := _url_problem(given["url"])):
        errors.append(FieldError("url", "webhook:user:url", problem))
    if "secret_name" in given and (problem := _secret_problem(given["secret_name"])):
        errors.append(FieldError("secret_name", "webhook:user:secret", problem))
    if errors:
        detail = "This webhook is not possible: " + " ".join(error.detail for error in errors)
        raise Invalid(errors[0].code, detail, next_step="Correct the named fields.", errors=errors)


def _url_problem(url: str) -> str | None:
    if problem := url_problem(url):
        return f"The address cannot be used: {problem}."
    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        for address in allowed.resolve(host, parts.port or (443 if parts.scheme == "https" else 80)):
            if found := address_problem(address, private=settings.SOURCE_PRIVATE_ADDRESSES):
                return f"The address cannot be used: {found}."
    except Transient:
        pass  # a name that does not resolve now is looked at again before every delivery
    return None


def _secret_problem(name: str) -> str | None:
    try:
        key = read_secret(name).get(SIGNING_KEY, "")
    except (HearthError, ValueError) as error:
        return error.detail if isinstance(error, HearthError) else f"{name} cannot be the name of a secret."
    return None if key else f"The secret {name} has no {SIGNING_KEY}."


def _values(webhook: Webhook) -> dict[str, Any]:
    return {name: getattr(webhook, name) for name in FIELDS}


def _facts(webhook: Webhook) -> dict[str, Any]:
    """For the audit trail, which many may read."""
    return {**_values(webhook), "url": url_shown(webhook.url)}


def _audit(
    actor: Actor, action: str, webhook: Webhook, before: Mapping[str, Any] | None, after: Mapping[str, Any] | None
) -> None:
    audit_write(
        actor=actor,
        action=action,
        object_type="Webhook",
        object_id=str(webhook.pk),
        object_name=webhook.name,
        before=before,
        after=after,
    )
