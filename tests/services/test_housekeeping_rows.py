"""What is deleted and what must outlive it: bounds on both sides, batches, references, holds that end."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from caches.models import CacheEntry, EntryChange, Pin, Transfer, Webhook, WebhookDelivery
from caches.services import housekeeping
from caches.services.housekeeping import lost_close, rows_purge
from caches.services.pins import PinSpec, pin_create
from controlplane.audit.models import AuditEvent
from controlplane.audit.services import Actor
from controlplane.clusters.documents import EntryState
from controlplane.clusters.models import Node
from controlplane.operations.models import Operation
from controlplane.operations.services import operation_cancel, operation_retry
from controlplane.operations.steps import operation_step
from tests import factories

pytestmark = pytest.mark.django_db
NOW = datetime(2030, 6, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)


@pytest.mark.parametrize(("age", "left"), [(timedelta(days=30), 0), (timedelta(days=30) - SECOND, 1)])
def test_changes_and_deliveries_are_kept_for_thirty_days(age: timedelta, left: int) -> None:
    EntryChange.objects.create(entry=factories.entry(), at=NOW - age, old_state="Absent", new_state="Ready")
    hook = Webhook.objects.create(name="pager", url="http://127.0.0.1:9/", secret_name="pager")
    delivery = WebhookDelivery.objects.create(
        webhook=hook, event="entry.failed", dedup_key="k", payload={}, state="Delivered"
    )
    WebhookDelivery.objects.filter(pk=delivery.pk).update(updated_at=NOW - age)
    rows_purge(now=NOW)
    assert EntryChange.objects.count() == WebhookDelivery.objects.count() == left


@pytest.mark.parametrize(("age", "left"), [(timedelta(days=90), 0), (timedelta(days=90) - SECOND, 1)])
def test_measurements_operations_and_lost_nodes_are_kept_for_ninety(age: timedelta, left: int, actor: Actor) -> None:
    pool = factories.pool()
    _, operation = pin_create(actor=actor, spec=PinSpec(factories.version().pk, (pool.pk,)))
    Operation.objects.filter(pk=operation.pk).update(state="Succeeded", ended_at=NOW - age)
    entry = factories.entry()
    Transfer.objects.create(
        entry=entry, connection=factories.connection(), bytes_moved=1, seconds=1, ended_at=NOW - age
    )
    Node.objects.filter(pk=factories.node().pk).update(lost_at=NOW - age)
    rows_purge(now=NOW)
    assert Transfer.objects.count() == Operation.objects.count() == left
    assert Node.objects.filter(lost_at__isnull=False).count() == left
    pin = Pin.objects.get()
    assert pin.operation_id == (operation.pk if left else None)  # the pin outlives what warmed it


@pytest.mark.parametrize("state", ["Pending", "Running", "Canceling"])
def test_what_still_works_is_never_purged(state: str, actor: Actor) -> None:
    _, operation = pin_create(actor=actor, spec=PinSpec(factories.version().pk, (factories.pool().pk,)))
    Operation.objects.update(state=state, ended_at=NOW - timedelta(days=900), created_at=NOW - timedelta(days=900))
    rows_purge(now=NOW)
    assert Operation.objects.filter(pk=operation.pk).exists()


def test_a_delivery_that_waits_is_kept_however_old(actor: Actor) -> None:
    hook = Webhook.objects.create(name="pager", url="http://127.0.0.1:9/", secret_name="pager", enabled=False)
    WebhookDelivery.objects.create(webhook=hook, event="entry.failed", dedup_key="k", payload={})
    WebhookDelivery.objects.update(updated_at=NOW - timedelta(days=400))
    assert rows_purge(now=NOW)["deliveries"] == 0 and WebhookDelivery.objects.exists()


def test_the_first_of_a_chain_of_retries_may_go_alone(actor: Actor) -> None:
    _, first = pin_create(actor=actor, spec=PinSpec(factories.version().pk, (factories.pool().pk,)))
    operation_cancel(actor=actor, operation_id=first.pk)
    operation_step(operation_id=first.pk)
    second = operation_retry(actor=actor, operation_id=first.pk)
    Operation.objects.filter(pk=first.pk).update(ended_at=NOW - timedelta(days=100))
    audits = AuditEvent.objects.count()
    assert rows_purge(now=NOW)["operations"] == 1
    kept = Operation.objects.get()
    assert (kept.pk, kept.retry_of_id) == (second.pk, None)
    assert AuditEvent.objects.count() == audits


def test_a_lost_node_takes_its_entries_along_and_never_an_artifact() -> None:
    entry = factories.entry(on=factories.node(lost_at=NOW - timedelta(days=91)), state=EntryState.LOST)
    other = factories.entry(of=entry.artifact)
    rows_purge(now=NOW)
    assert [row.pk for row in CacheEntry.objects.all()] == [other.pk]


def test_a_purge_takes_a_bounded_bite_and_goes_on_with_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(housekeeping, "BATCH", 2)
    entry = factories.entry()
    EntryChange.objects.bulk_create(
        EntryChange(entry=entry, at=NOW - timedelta(days=31), old_state="Absent", new_state="Ready") for _ in range(5)
    )
    assert [rows_purge(now=NOW)["entry_changes"] for _ in range(4)] == [2, 2, 1, 0]


@pytest.mark.parametrize(
    ("fields", "ended"),
    [
        ({"hold_reason": "Retention", "hold_until": -1}, True),
        ({"hold_reason": "Retention", "hold_until": 0}, True),
        ({"hold_reason": "Retention", "hold_until": 1}, False),
        ({"hold_reason": "Rollback", "hold_until": None}, False),  # without an end
    ],
)
def test_holds_end_when_their_time_is_over(fields: dict[str, Any], ended: bool) -> None:
    seconds = fields.pop("hold_until")
    until = None if seconds is None else NOW + seconds * SECOND
    entry = factories.entry(hold_until=until, **fields)
    lost_close(now=NOW)
    entry.refresh_from_db()
    assert (entry.hold_reason, entry.hold_until) == (("", None) if ended else (fields["hold_reason"], until))


@pytest.mark.parametrize("state", [state for state in EntryState if state is not EntryState.LOST])
def test_whatever_a_lost_node_held_is_lost_once(state: EntryState) -> None:
    entry = factories.entry(
        on=factories.node(lost_at=timezone.now()), state=state, evict_requested_at=NOW, retry_at=NOW, eta_seconds=5
    )
    there = factories.entry(of=entry.artifact)
    assert [lost_close(now=NOW), lost_close(now=NOW)] == [1, 0]
    entry.refresh_from_db()
    assert (entry.state, entry.desired, entry.evict_requested_at) == ("Lost", "", None)
    assert (entry.retry_at, entry.eta_seconds) == (None, None)
    assert [(c.old_state, c.new_state) for c in EntryChange.objects.all()] == [(state.value, "Lost")]
    there.refresh_from_db()
    assert there.state == "Ready"
