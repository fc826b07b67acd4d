"""Announcing failures before traffic meets them: signed, deduplicated, retried with backoff until given up.

Events: ``entry.failed``, ``pin.refused``, ``version.drifted``. A receiver checks
``Hearth-Signature: t=<unix seconds>,v1=<hex HMAC-SHA256 of "<t>.<body>">`` and ignores a delivery id it has seen.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import structlog
from django.conf import settings
from django.db import transaction
from django.db.models import F
from django.utils import timezone

from caches.models import DriftState, ModelVersion, Webhook, WebhookDelivery
from caches.services.webhooks.posts import PostRefused, post
from caches.sources.secrets import read_secret
from controlplane.celery import publish_on_commit
from controlplane.errors import HearthError

EVENTS = ("entry.failed", "pin.refused", "version.drifted")
MAX_ATTEMPTS = 12
FIRST_BACKOFF = timedelta(seconds=10)
LONGEST_BACKOFF = timedelta(hours=1)
SIGNING_KEY = "signing_key"

log = structlog.get_logger(__name__)


def webhook_announce(*, event: str, dedup_key: str, payload: Mapping[str, Any]) -> int:
    """Queue one delivery for every enabled webhook that wants the event; returns how many. A repeated key announces
    nothing."""
    hooks = [hook for hook in Webhook.objects.filter(enabled=True) if not hook.events or event in hook.events]
    if not hooks:
        return 0
    key = dedup_key if len(dedup_key) <= 200 else hashlib.sha256(dedup_key.encode()).hexdigest()
    with transaction.atomic():
        now = timezone.now()
        body = {"event": event, "at": now.isoformat(), **payload}
        made = [
            WebhookDelivery(webhook=hook, event=event, dedup_key=key, payload=body, next_attempt_at=now)
            for hook in hooks
        ]
        WebhookDelivery.objects.bulk_create(made, ignore_conflicts=True)
        # What was announced before has another row already.
        fresh = WebhookDelivery.objects.filter(pk__in=[delivery.pk for delivery in made]).values_list("pk", flat=True)
        for delivery_id in fresh:
            publish_on_commit("caches.webhook_deliver", str(delivery_id))
    return len(fresh)


def webhook_deliver(*, delivery_id: UUID) -> bool:
    """One attempt. The next one is booked before the first byte is sent: a killed worker costs at most a repeat.

    A disabled webhook is sent nothing; what waits for it goes once it is enabled again.
    """
    now = timezone.now()
    rows = WebhookDelivery.objects.select_related("webhook")
    delivery = rows.filter(pk=delivery_id, state="Pending", webhook__enabled=True).first()
    if delivery is None or (delivery.next_attempt_at is not None and delivery.next_attempt_at > now):
        return False
    attempts = delivery.attempts
    if attempts >= MAX_ATTEMPTS:  # its last attempt never said how it ended
        WebhookDelivery.objects.filter(pk=delivery_id, state="Pending").update(state="GivenUp", updated_at=now)
        return False
    claimed = WebhookDelivery.objects.filter(pk=delivery_id, state="Pending", attempts=attempts).update(
        attempts=F("attempts") + 1, next_attempt_at=now + backoff(attempts), updated_at=now
    )
    if claimed != 1:
        return False
    status, problem = _attempt(delivery, now)
    delivered = status is not None and 200 <= status < 300
    state = "Delivered" if delivered else ("GivenUp" if attempts + 1 >= MAX_ATTEMPTS else "Pending")
    WebhookDelivery.objects.filter(pk=delivery_id, attempts=attempts + 1).update(
        state=state, last_status=status, last_error=problem[:500], updated_at=timezone.now()
    )
    if not delivered:
        log.warning("webhook.failed", webhook=delivery.webhook.name, status=status, state=state, error=problem)
    return delivered


def webhooks_due(*, now: datetime, limit: int = 200) -> list[UUID]:
    """Deliveries of enabled webhooks whose next attempt is due, oldest first."""
    due = WebhookDelivery.objects.filter(state="Pending", next_attempt_at__lte=now, webhook__enabled=True)
    return list(due.order_by("next_attempt_at").values_list("pk", flat=True)[:limit])


def drift_announce() -> int:
    """Announce every drifted version, once for each set of changes."""
    drifted = ModelVersion.objects.filter(drift=DriftState.DRIFTED).select_related("model")
    return sum(
        webhook_announce(
            event="version.drifted",
            dedup_key=f"version.drifted:{version.pk}:{json.dumps(version.drift_changed, sort_keys=True)}",
            payload={"model": version.model.name, "version": version.version, "changed": version.drift_changed},
        )
        for version in drifted.only("model__name", "version", "drift_changed")
    )


def backoff(attempts: int) -> timedelta:
    """10 s, doubled with every attempt, at most an hour."""
    doubled: int = 2 ** min(attempts, 20)
    return min(FIRST_BACKOFF * doubled, LONGEST_BACKOFF)


def signature(*, key: str, timestamp: int, body: bytes) -> str:
    """The value of Hearth-Signature."""
    digest = hmac.new(key.encode(), str(timestamp).encode() + b"." + body, hashlib.sha256).hexdigest()
    return f"t={timestamp},v1={digest}"


def _attempt(delivery: WebhookDelivery, now: datetime) -> tuple[int | None, str]:
    body = json.dumps(delivery.payload, sort_keys=True).encode()
    try:
        key = read_secret(delivery.webhook.secret_name).get(SIGNING_KEY, "")
        if not key:
            return None, f"The secret {delivery.webhook.secret_name} has no {SIGNING_KEY}."
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "hearth",
            "Hearth-Event": delivery.event,
            "Hearth-Delivery": str(delivery.pk),
            "Hearth-Signature": signature(key=key, timestamp=int(now.timestamp()), body=body),
        }
        return post(delivery.webhook.url, body, headers, private=settings.SOURCE_PRIVATE_ADDRESSES), ""
    except (PostRefused, HearthError) as error:
        return None, str(error) or type(error).__name__
    except (OSError, ValueError) as error:
        # Not their text: it may quote what was about to be sent.
        return None, f"The delivery was not possible: {type(error).__name__}."
