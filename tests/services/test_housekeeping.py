"""Beat's work: every scheduled task exists, old rows go, holds end, lost entries are closed, no broker is no error."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from celery import Celery
from django.utils import timezone

from caches import tasks
from caches.models import CacheEntry, EntryChange, Transfer
from caches.services import housekeeping
from controlplane import celery
from controlplane.audit.models import AuditEvent
from controlplane.audit.services import SYSTEM, Actor, audit_write
from controlplane.celery import app
from controlplane.clusters.models import Node
from controlplane.errors import Permanent
from controlplane.operations import steps
from controlplane.operations.models import Operation, OperationKind
from controlplane.operations.services import operation_fail, operation_start
from controlplane.rest.models import IdempotencyKey
from tests import factories
from tests.services.world import World

pytestmark = pytest.mark.django_db


def test_every_scheduled_task_exists_and_expires() -> None:
    app.loader.import_default_modules()
    for name, entry in app.conf.beat_schedule.items():
        assert entry["task"] in app.tasks, name
        assert entry["options"]["expires"] >= entry["schedule"]


def test_it_deletes_what_is_past_its_time_and_keeps_the_audit_trail(actor: Actor) -> None:
    now = timezone.now()
    long_ago = now - timedelta(days=400)
    entry = factories.entry()
    for at in (long_ago, now):
        EntryChange.objects.create(entry=entry, at=at, old_state="Absent", new_state="Ready")
        Transfer.objects.create(entry=entry, connection=factories.connection(), bytes_moved=1, seconds=1, ended_at=at)
        IdempotencyKey.objects.create(owner="o", key=str(at), fingerprint="f", expires_at=at + timedelta(seconds=1))
    lost = factories.node(lost_at=long_ago)
    kept = factories.node(lost_at=now)
    old, active = (
        operation_start(actor=actor, kind=OperationKind.PIN_WARM, subject_type="pin", subject_id="1", subject_name="x")
        for _ in range(2)
    )
    operation_fail(operation_id=old.pk, error=Permanent("a:b:c", "no"))
    Operation.objects.filter(pk=old.pk).update(ended_at=long_ago)
    audit_write(actor=SYSTEM, action="a", object_type="t", object_id="1", object_name="n")
    audits = AuditEvent.objects.count()
    deleted = housekeeping.rows_purge(now=now)
    assert deleted == {
        "idempotency_keys": 1,
        "entry_changes": 1,
        "transfers": 1,
        "deliveries": 0,
        "operations": 1,
        "lost_nodes": 1,
    }
    assert not Node.objects.filter(pk=lost.pk).exists() and Node.objects.filter(pk=kept.pk).exists()
    assert Operation.objects.filter(pk=active.pk).exists()
    assert AuditEvent.objects.count() == audits


def test_it_ends_holds_and_closes_the_entries_of_lost_nodes() -> None:
    now = timezone.now()
    held = factories.entry(hold_reason="Retention", hold_until=now - timedelta(seconds=1))
    holding = factories.entry(hold_reason="Retention", hold_until=now + timedelta(hours=1))
    orphaned = factories.entry(on=factories.node(lost_at=now))
    assert housekeeping.lost_close(now=now) == 1
    held.refresh_from_db()
    holding.refresh_from_db()
    orphaned.refresh_from_db()
    assert (held.hold_reason, held.hold_until) == ("", None)
    assert holding.hold_reason == "Retention"
    assert (orphaned.state, orphaned.desired) == ("Lost", "")
    assert housekeeping.lost_close(now=now) == 0


def test_the_sweep_sends_what_is_due_and_stops_without_a_broker(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []

    def send(task: str, *ids: str) -> bool:
        sent.append((task, *ids))
        return len(sent) < 2

    monkeypatch.setattr(tasks, "publish", send)
    others = [factories.pool(of=world.cluster) for _ in range(3)]
    tasks.pools_sweep()
    assert len(sent) == 2 and {task for task, _ in sent} == {"caches.pool_reconcile"}
    assert {pool for _, pool in sent} <= {str(world.pool.pk), *(str(other.pk) for other in others)}


def test_a_task_reconciles_the_pool_it_is_told(world: World) -> None:
    tasks.pool_reconcile(str(world.pool.pk))
    assert world.loop().reconciled_at is not None
    assert CacheEntry.objects.count() == 0


def test_publishing_says_false_instead_of_failing(monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = Celery("nobody", broker="redis://127.0.0.1:9/0", set_as_current=False)
    monkeypatch.setattr(celery, "app", nobody)
    assert celery.publish("operations.step", "1") is False
    nobody.close()


def test_resuming_stops_without_a_broker(actor: Actor, monkeypatch: pytest.MonkeyPatch) -> None:
    operation_start(actor=actor, kind=OperationKind.PIN_WARM, subject_type="pin", subject_id="1", subject_name="x")
    Operation.objects.update(updated_at=timezone.now() - timedelta(minutes=5))
    monkeypatch.setattr(steps, "publish", lambda task, *ids: False)
    assert steps.operations_resume() == 0
