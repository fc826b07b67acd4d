"""Who is told about failures: webhooks made, changed and removed by people. Delivery is services.webhooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

from django.db import IntegrityError, transaction

from caches.models import Webhook
from controlplane.audit.services import Actor, audit_write
from controlplane.errors import Clash, FieldError, Invalid, Missing, Stale

FIELDS = ("url", "secret_name", "events", "enabled")


def webhook_create(
    *, actor: Actor, name: str, url: str, secret_name: str, events: Sequence[str] = (), enabled: bool = True
) -> Webhook:
    """A new webhook. Clash when the name is taken, Invalid for an address that is not plain http(s)."""
    _check_url(url)
    try:
        with transaction.atomic():
            webhook = Webhook.objects.create(
                name=name, url=url, secret_name=secret_name, events=list(events), enabled=enabled
            )
            _audit(actor, "webhook.create", webhook, None, _facts(webhook))
    except IntegrityError as error:
        raise Clash(
            "webhook:user:exists", f"There is a webhook {name} already.", next_step="Change it, or choose another name."
        ) from error
    return webhook


def webhook_update(
    *, actor: Actor, webhook_id: UUID, changes: Mapping[str, Any], if_updated_at: datetime | None = None
) -> Webhook:
    """Change any of FIELDS. Stale when it was changed since ``if_updated_at``."""
    if "url" in changes:
        _check_url(changes["url"])
    with transaction.atomic():
        webhook = _locked(webhook_id, if_updated_at)
        before = _facts(webhook)
        for name in FIELDS:
            if name in changes:
                setattr(webhook, name, changes[name])
        if _facts(webhook) != before:
            webhook.save(update_fields=[*FIELDS, "updated_at"])
            _audit(actor, "webhook.update", webhook, before, _facts(webhook))
    return webhook


def webhook_delete(*, actor: Actor, webhook_id: UUID, if_updated_at: datetime | None = None) -> None:
    """Remove it with what it has not delivered yet."""
    with transaction.atomic():
        webhook = _locked(webhook_id, if_updated_at)
        _audit(actor, "webhook.delete", webhook, _facts(webhook), None)
        webhook.delete()


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


def _check_url(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.password:
        detail = "The address must be http or https, without a user name or password in it."
        raise Invalid(
            "webhook:user:url", detail, next_step="Correct url.", errors=[FieldError("url", "invalid", detail)]
        )


def _facts(webhook: Webhook) -> dict[str, Any]:
    return {name: getattr(webhook, name) for name in FIELDS}


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
