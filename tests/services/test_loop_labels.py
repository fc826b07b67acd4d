"""Ready-labels follow the entries whoever changes them, and leave a moment before the bytes do."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.utils import timezone

from caches.domain.labels import WEIGHTS_READY, ready_label
from caches.models import CacheEntry
from caches.services.entries import entry_evict
from caches.services.loop import rounds as loop
from caches.services.pins import PinSpec, pin_create, pin_remove
from controlplane.audit.models import AuditEvent
from controlplane.audit.services import Actor
from controlplane.clusters.documents import Action
from controlplane.clusters.models import Node
from tests.services.world import MIB, World, version_of

LAG = timedelta(seconds=10)


@pytest.fixture
def pinned(world: World, actor: Actor) -> Any:
    """A version that is Ready and labelled on both nodes."""
    version = version_of(300 * MIB)
    pin_create(actor=actor, spec=PinSpec(version_id=version.pk, pool_ids=(world.pool.pk,)))
    world.settle()
    world.observe()
    return version


@pytest.fixture
def slow_scheduler(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """A cluster that may place pods by a label for a while after it went; the rounds asked for later."""
    later: list[Any] = []
    monkeypatch.setattr(loop, "scheduling_lag", lambda cluster: LAG)
    monkeypatch.setattr(loop, "publish", lambda task, *ids, countdown=0.0: later.append((task, ids, countdown)))
    yield later


def labels(world: World, name: str = "n1") -> dict[str, str]:
    world.observe()
    return {key: value for key, value in world.node(name).labels.items() if key.startswith(WEIGHTS_READY)}


def relabel(world: World, label: str, value: str | None, name: str = "n1") -> None:
    """Somebody with kubectl."""
    world.gateway.set_node_labels(name, world.node(name).uid, {label: value})
    world.observe()


def set_long_ago(world: World) -> None:
    """The labels were set a minute before the cluster last spoke."""
    CacheEntry.objects.update(labeled_at=timezone.now() - timedelta(seconds=60))
    Node.objects.update(observed_at=timezone.now())


def audited(action: str) -> list[AuditEvent]:
    return list(AuditEvent.objects.filter(action=action))


def test_it_puts_back_a_label_that_somebody_removed_and_says_so(world: World, pinned: Any) -> None:
    set_long_ago(world)
    label = ready_label(pinned.artifact.digest)
    relabel(world, label, None)
    world.reconcile()
    assert labels(world) == {label: "true"}
    [event] = audited("node.label-restored")
    assert event.object_name == "n1" and event.after == {"labels": [label]}


def test_it_does_not_take_the_watchers_delay_for_somebodys_hand(world: World, pinned: Any) -> None:
    relabel(world, ready_label(pinned.artifact.digest), None)  # as if the watcher had not told of it yet
    world.reconcile()
    assert audited("node.label-restored") == []


def test_it_sweeps_a_label_for_bytes_that_nobody_has(world: World, pinned: Any) -> None:
    stale = ready_label("sha256:" + "0" * 64)
    relabel(world, stale, "true")
    world.reconcile()
    assert set(labels(world)) == {ready_label(pinned.artifact.digest)}
    [event] = audited("node.label-swept")
    assert event.object_name == "n1" and event.after == {"labels": [stale]}


def test_it_sweeps_a_label_that_was_set_by_hand_for_a_cold_copy(world: World, actor: Actor) -> None:
    version = version_of(300 * MIB)
    pin_create(actor=actor, spec=PinSpec(version_id=version.pk, pool_ids=(world.pool.pk,)))
    world.reconcile()  # wanted, not there yet
    relabel(world, ready_label(version.artifact.digest), "true")
    world.reconcile()
    assert labels(world) == {}
    assert len(audited("node.label-swept")) == 1


def test_it_leaves_the_labels_of_another_controller_alone(world: World, pinned: Any) -> None:
    theirs = f"{WEIGHTS_READY}{uuid4()}"
    relabel(world, theirs, "true")
    world.reconcile()
    assert theirs in labels(world)
    assert audited("node.label-swept") == []


def test_it_takes_the_label_of_a_damaged_copy_without_blaming_anybody(world: World, pinned: Any) -> None:
    entry = world.entry("n1", pinned)
    CacheEntry.objects.filter(pk=entry.pk).update(state="Repairing")
    world.reconcile()
    assert labels(world) == {}
    entry.refresh_from_db()
    assert entry.labeled_at is None
    assert audited("node.label-swept") == []


def test_it_waits_for_the_scheduler_between_label_and_listing(
    world: World, actor: Actor, pinned: Any, slow_scheduler: list[Any]
) -> None:
    unpin(world, actor, pinned)
    entry = world.entry("n1", pinned)
    entry_evict(actor=actor, entry_id=entry.pk)
    plan = world.reconcile()
    assert plan.evictions == ()
    assert world.desired("n1")[pinned.artifact.digest] is Action.ENSURE
    assert labels(world) == {}
    assert slow_scheduler[-1] == ("caches.pool_reconcile", (str(world.pool.pk),), 10.0)
    world.reconcile()  # too early: still there, and the label does not come back
    assert world.desired("n1")[pinned.artifact.digest] is Action.ENSURE
    assert labels(world) == {}
    later(world, entry)
    assert [e.node for e in world.reconcile().evictions] == ["n1"]
    assert world.desired("n1")[pinned.artifact.digest] is Action.EVICT


def test_a_pod_that_came_in_the_meantime_keeps_its_bytes_and_the_label_returns(
    world: World, actor: Actor, pinned: Any, slow_scheduler: list[Any]
) -> None:
    unpin(world, actor, pinned)
    entry = world.entry("n1", pinned)
    entry_evict(actor=actor, entry_id=entry.pk)
    world.reconcile()
    world.fleet.use("n1", pinned.artifact.digest)
    later(world, entry)
    assert world.reconcile().evictions == ()
    assert world.desired("n1")[pinned.artifact.digest] is Action.ENSURE
    assert set(labels(world)) == {ready_label(pinned.artifact.digest)}
    entry.refresh_from_db()
    assert entry.unlabeled_at is None  # the next eviction waits its own time


def test_a_label_that_came_back_starts_the_wait_again(
    world: World, actor: Actor, pinned: Any, slow_scheduler: list[Any]
) -> None:
    unpin(world, actor, pinned)
    entry = world.entry("n1", pinned)
    entry_evict(actor=actor, entry_id=entry.pk)
    world.reconcile()
    later(world, entry)
    relabel(world, ready_label(pinned.artifact.digest), "true")
    assert world.reconcile().evictions == ()
    assert world.desired("n1")[pinned.artifact.digest] is Action.ENSURE


def test_what_needs_the_room_waits_and_is_not_refused(make_world: Any, actor: Actor, slow_scheduler: list[Any]) -> None:
    world = make_world(nodes=1)
    old, new = version_of(500 * MIB), version_of(500 * MIB)
    pin, _ = pin_create(actor=actor, spec=PinSpec(version_id=old.pk, pool_ids=(world.pool.pk,)))
    world.settle()
    pin_remove(actor=actor, pin_id=pin.pk)
    pin_create(actor=actor, spec=PinSpec(version_id=new.pk, pool_ids=(world.pool.pk,)))
    plan = world.reconcile()
    assert (plan.refusals, plan.moves, plan.evictions) == ((), (), ())
    assert [(wait.digest, wait.reason) for wait in plan.waits] == [(new.artifact.digest, "Eviction")]
    assert world.desired("n1") == {old.artifact.digest: Action.ENSURE}
    later(world, world.entry("n1", old))
    world.reconcile()
    assert world.desired("n1") == {old.artifact.digest: Action.EVICT, new.artifact.digest: Action.ENSURE}


def unpin(world: World, actor: Actor, version: Any) -> None:
    for pin in version.pins.all():
        pin_remove(actor=actor, pin_id=pin.pk)
    world.reconcile()


def later(world: World, entry: CacheEntry) -> None:
    """The watcher has told that the label is gone, and the scheduler's time is up."""
    world.observe()
    entry.refresh_from_db()
    assert entry.unlabeled_at is not None
    CacheEntry.objects.filter(pk=entry.pk).update(unlabeled_at=entry.unlabeled_at - LAG)
