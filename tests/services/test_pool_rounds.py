"""Asking the loop to look again, what a round leaves behind, and the tasks that carry it."""

from __future__ import annotations

import dataclasses
import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.utils import timezone

from caches import tasks
from caches.domain.plans import DesiredItem, Eviction, EvictReason, Plan, Refusal, Wait, WaitReason
from caches.models import PoolLoop, Webhook, WebhookDelivery
from caches.services import connections, housekeeping
from caches.services.loop import pool_rounds
from caches.services.loop import rounds as loop
from caches.services.loop.memory import plan_document, refusals_announce
from caches.services.loop.pool_rounds import pools_mark_dirty
from caches.services.loop.rounds import pools_due
from caches.services.webhooks import announcing as webhooks
from controlplane.audit.models import AuditEvent, Via
from controlplane.audit.services import Actor
from controlplane.clusters.documents import Action
from controlplane.clusters.models import NodePool
from controlplane.clusters.services import cluster_pause, pool_update
from tests import factories

pytestmark = pytest.mark.django_db
AT = datetime(2030, 1, 1, tzinfo=UTC)
ADA = Actor("ada", Via.API)


@pytest.fixture
def pool() -> NodePool:
    return factories.pool(of=factories.cluster(name="east"), name="gpu")


def test_what_a_person_changes_of_a_pool_is_planned_for_at_once(
    pool: NodePool, django_capture_on_commit_callbacks: Any
) -> None:
    """Not with the next regular round: a pause during an incident, a selector that moves nodes."""
    other = factories.pool(of=pool.cluster, name="cpu", selector={"kind": "cpu"}, cache_path="/mnt/cpu")
    factories.node(of=other, labels={"kind": "cpu"})

    def wanted() -> dict[str, int]:
        return dict(PoolLoop.objects.values_list("pool__name", "wanted_round"))

    with django_capture_on_commit_callbacks(execute=True):
        pool_update(actor=ADA, pool_id=pool.pk, changes={"paused": True})
    assert wanted() == {"gpu": 1}
    with django_capture_on_commit_callbacks(execute=True):
        cluster_pause(actor=ADA, cluster_id=pool.cluster_id, paused=True)
    assert wanted() == {"gpu": 2, "cpu": 1}
    with django_capture_on_commit_callbacks(execute=True):
        pool_update(actor=ADA, pool_id=other.pk, changes={"selector": {"kind": "nobody"}})
    assert wanted()["gpu"] == 2 and wanted()["cpu"] > 1


def refusal(pin: str = "p1", node: str = "n1", **fields: Any) -> Refusal:
    base = Refusal(
        node, f"uid-{node}", "sha256:ab", "llama v1", "InsufficientCapacity", "No room.", 9, 5, 1, "Unpin.", pin
    )
    return dataclasses.replace(base, **fields)


def announce(pool: NodePool, *now: Refusal, before: tuple[Refusal, ...] = (), number: int = 1) -> int:
    previous = plan_document(Plan("gpu", refusals=before)) if before else None
    return refusals_announce(plan=Plan("gpu", refusals=now), previous=previous, round_number=number, pool=pool)


def test_marking_makes_rows_counts_and_sends_each_pool_once(pool: NodePool, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []
    monkeypatch.setattr(pool_rounds, "publish_on_commit", lambda task, key: sent.append(key))
    other = factories.pool()
    assert pools_mark_dirty(pool_ids=[pool.pk, other.pk, pool.pk]) == 2
    assert sorted(sent) == sorted([str(pool.pk), str(other.pk)])
    assert {row.wanted_round for row in PoolLoop.objects.all()} == {1}
    assert pools_mark_dirty(pool_ids=[]) == 0 and len(sent) == 2


def test_an_answered_request_starts_a_new_clock(pool: NodePool) -> None:
    pools_mark_dirty(pool_ids=[pool.pk])
    long_ago = timezone.now() - timedelta(hours=1)
    PoolLoop.objects.update(wanted_at=long_ago)
    pools_mark_dirty(pool_ids=[pool.pk])
    assert PoolLoop.objects.get().wanted_at == long_ago  # unanswered: the lag is measured from the oldest
    PoolLoop.objects.update(done_round=2)
    pools_mark_dirty(pool_ids=[pool.pk])
    wanted_at = PoolLoop.objects.get().wanted_at
    assert wanted_at is not None and wanted_at > long_ago


@pytest.mark.parametrize(
    ("fields", "due"),
    [
        ({"wanted_round": 2, "done_round": 1, "reconciled_at": 0}, True),
        ({"wanted_round": 2, "done_round": 2, "reconciled_at": 29}, False),
        ({"wanted_round": 2, "done_round": 2, "reconciled_at": 30}, True),
        ({"wanted_round": 0, "done_round": 0, "reconciled_at": None}, True),
        ({"wanted_round": 1, "done_round": 7, "reconciled_at": 1}, False),
    ],
)
def test_which_pools_are_due(pool: NodePool, fields: dict[str, Any], due: bool) -> None:
    ago = fields.pop("reconciled_at")
    PoolLoop.objects.create(pool=pool, reconciled_at=None if ago is None else AT - timedelta(seconds=ago), **fields)
    assert pools_due(now=AT) == ([pool.pk] if due else [])


def test_the_longest_waiting_pool_is_first(pool: NodePool) -> None:
    second, third = factories.pool(), factories.pool()
    for number, row in enumerate((second, pool, third)):
        PoolLoop.objects.create(pool=row, wanted_round=1, wanted_at=AT + timedelta(seconds=number))
    assert pools_due(now=AT) == [second.pk, pool.pk, third.pk]


def test_of_a_plan_only_what_it_refused_is_remembered() -> None:
    """A plan of a thousand nodes is megabytes, and everything that looks at the loop's row would read them."""
    plan = Plan(
        "gpu",
        evictions=(Eviction("n1", "u", "d", "llama", 5, EvictReason.MANUAL, "asked", AT, None),),
        waits=(Wait("n1", "u", "d", "llama", WaitReason.WINDOW, "later", AT + timedelta(hours=1)),),
        refusals=(refusal(detail="größe", until=AT),),
        desired={"u": (DesiredItem("d", Action.EVICT, 1, "Manual"),)},
    )
    document = plan_document(plan)
    assert json.loads(json.dumps(document)) == document and document.keys() == {"refusals"}
    (line,) = document["refusals"]
    assert (line["node_uid"], line["detail"], line["pin_id"]) == ("uid-n1", "größe", "p1")
    assert line["until"] == "2030-01-01T00:00:00+00:00"


def test_one_pin_refused_on_many_nodes_is_one_announcement(pool: NodePool) -> None:
    Webhook.objects.create(name="pager", url="http://127.0.0.1:9/", secret_name="pager")
    assert announce(pool, refusal(), refusal(node="n2"), refusal("p2")) == 2
    payload = WebhookDelivery.objects.get(payload__pin="p1").payload
    assert (payload["event"], payload["pool"], payload["nodes"]) == ("pin.refused", "east.gpu", ["n1", "n2"])
    assert (payload["need_bytes"], payload["free_bytes"], payload["reserved_bytes"]) == (9, 5, 1)
    assert payload["next_step"] == "Unpin." and payload["reason"] == "InsufficientCapacity"
    event = AuditEvent.objects.get(object_id="p1")
    assert (event.action, event.actor, event.object_name) == ("pin.refused", "system", "llama v1")


@pytest.mark.parametrize(
    ("now", "before", "news"),
    [
        ((refusal(),), (refusal(),), 0),
        ((refusal(detail="Other words.", free_bytes=4),), (refusal(),), 0),
        ((refusal(reason="SourceUnavailable"),), (refusal(),), 1),
        ((refusal(), refusal(node="n2")), (refusal(),), 1),
        ((refusal(node_uid="replaced"),), (refusal(),), 1),
        ((refusal("p2"),), (refusal(),), 1),
        ((), (refusal(),), 0),
    ],
)
def test_only_what_is_new_is_announced(
    pool: NodePool, now: tuple[Refusal, ...], before: tuple[Refusal, ...], news: int
) -> None:
    assert announce(pool, *now, before=before) == news == AuditEvent.objects.count()


def test_a_round_that_is_repeated_after_a_kill_announces_once(pool: NodePool) -> None:
    Webhook.objects.create(name="pager", url="http://127.0.0.1:9/", secret_name="pager")
    for _ in range(2):
        announce(pool, refusal(), number=7)
    assert WebhookDelivery.objects.count() == 1
    announce(pool, refusal(), number=8)  # refused, well, and refused again
    assert WebhookDelivery.objects.count() == 2


SWEEPS = (
    (tasks.pools_sweep, loop, "pools_due", "caches.pool_reconcile"),
    (tasks.webhooks_sweep, webhooks, "webhooks_due", "caches.webhook_deliver"),
    (tasks.connections_sweep, connections, "connections_due", "caches.connection_check"),
)


@pytest.mark.parametrize(("sweep", "module", "due", "task"), SWEEPS)
def test_a_sweep_sends_ids_and_stops_at_the_first_that_the_broker_refuses(
    sweep: Any, module: Any, due: str, task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [uuid4() for _ in range(3)]
    monkeypatch.setattr(module, due, lambda now: ids)
    sent: list[tuple[str, ...]] = []

    def publish(*call: str) -> bool:
        sent.append(call)
        return len(sent) < 2

    monkeypatch.setattr(tasks, "publish", publish)
    sweep()
    assert sent == [(task, str(ids[0])), (task, str(ids[1]))]


@pytest.mark.parametrize(
    ("task", "module", "verb", "argument"),
    [
        (tasks.pool_reconcile, loop, "pool_reconcile", "pool_id"),
        (tasks.webhook_deliver, webhooks, "webhook_deliver", "delivery_id"),
        (tasks.connection_check, connections, "connection_check", "connection_id"),
    ],
)
def test_a_task_hands_the_id_to_one_service(
    task: Any, module: Any, verb: str, argument: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []
    monkeypatch.setattr(module, verb, lambda **arguments: given.append(arguments))
    key = uuid4()
    task(str(key))
    assert given == [{argument: key}]


@pytest.mark.parametrize(
    ("task", "verb"),
    [(tasks.rechecks_sweep, "rechecks_start"), (tasks.purge, "rows_purge"), (tasks.lost_sweep, "lost_close")],
)
def test_beats_tasks_say_what_time_it_is(task: Any, verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    monkeypatch.setattr(housekeeping, verb, lambda now: given.append(now))
    task()
    assert abs(timezone.now() - given[0]) < timedelta(minutes=1)
