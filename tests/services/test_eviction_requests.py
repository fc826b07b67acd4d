"""A pin overtakes an eviction that still waits: the request is withdrawn and never fires later."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.utils import timezone

from caches.domain.pool_view import Placement, PlacementType
from caches.models import CacheEntry, Pin
from caches.services.entries import entry_evict
from caches.services.eviction_requests import WITHDRAWN
from caches.services.pins import PinSpec, pin_create, pin_remove, pin_update
from controlplane.audit.models import AuditEvent
from controlplane.audit.services import Actor
from controlplane.operations.models import Operation
from controlplane.operations.services import operation_cancel
from controlplane.operations.steps import operation_step
from tests import factories
from tests.services.world import MIB, World, version_of


def loose(world: World, actor: Actor) -> PinSpec:
    """A version that is Ready on every node and pinned no more."""
    spec = PinSpec(version_id=version_of(100 * MIB).pk, pool_ids=(world.pool.pk,), retention_seconds=0)
    pin, _ = pin_create(actor=actor, spec=spec)
    world.settle()
    pin_remove(actor=actor, pin_id=pin.pk)
    return spec


def entry(node: str) -> CacheEntry:
    return CacheEntry.objects.get(node__name=node)


def failed_as_withdrawn(operation: Operation) -> bool:
    operation.refresh_from_db()
    target = operation.targets.get()
    return (operation.state, operation.message, target.state, target.detail) == (
        "Failed",
        WITHDRAWN,
        "Failed",
        WITHDRAWN,
    )


def test_a_new_pin_withdraws_the_eviction_at_once_and_it_never_fires(world: World, actor: Actor) -> None:
    spec = loose(world, actor)
    operation = entry_evict(actor=actor, entry_id=entry("n1").pk)
    operation_step(operation_id=operation.pk)
    pin, _ = pin_create(actor=actor, spec=spec)
    assert failed_as_withdrawn(operation)
    assert entry("n1").evict_requested_at is None
    event = AuditEvent.objects.get(action="entry.evict-withdrawn")
    assert (event.actor, event.object_id, event.operation_id) == (actor.name, str(entry("n1").pk), operation.pk)
    assert AuditEvent.objects.filter(action="operation.failed", operation_id=operation.pk).count() == 1
    pin_remove(actor=actor, pin_id=pin.pk)
    world.settle()
    assert {row.state for row in CacheEntry.objects.all()} == {"Ready"}


def test_a_pin_on_other_nodes_withdraws_nothing(world: World, actor: Actor) -> None:
    spec = loose(world, actor)
    operation = entry_evict(actor=actor, entry_id=entry("n1").pk)
    elsewhere = factories.pool(of=world.cluster)
    pin, _ = pin_create(actor=actor, spec=PinSpec(version_id=spec.version_id, pool_ids=(elsewhere.pk,)))
    operation.refresh_from_db()
    assert operation.state == "Pending" and entry("n1").evict_requested_at is not None
    pin_update(actor=actor, pin_id=pin.pk, changes={"pool_ids": (elsewhere.pk, world.pool.pk)})
    assert failed_as_withdrawn(operation)


def test_a_pin_that_needs_one_copy_leaves_the_eviction_of_the_other_alone(world: World, actor: Actor) -> None:
    spec = loose(world, actor)
    operations = {node: entry_evict(actor=actor, entry_id=entry(node).pk) for node in ("n1", "n2")}
    one = Placement(PlacementType.COUNT, 1)
    pin_create(actor=actor, spec=PinSpec(spec.version_id, (world.pool.pk,), placement=one))
    withdrawn = [node for node, operation in operations.items() if failed_as_withdrawn(operation)]
    assert len(withdrawn) == 1
    world.settle()
    assert {node: entry(node).state for node in operations} == {
        node: "Ready" if node in withdrawn else "Absent" for node in operations
    }


@pytest.mark.parametrize("suspended", [False, True])
def test_the_loop_withdraws_what_a_race_left_behind(world: World, actor: Actor, suspended: bool) -> None:
    spec = loose(world, actor)
    operation = entry_evict(actor=actor, entry_id=entry("n1").pk)
    pin, _ = pin_create(actor=actor, spec=spec)
    # As if the eviction had been asked for between the pin's plan and its commit.
    Operation.objects.filter(pk=operation.pk).update(state="Running")
    operation.targets.update(state="Running", detail="")
    CacheEntry.objects.filter(node__name="n1").update(evict_requested_at=timezone.now())
    Pin.objects.filter(pk=pin.pk).update(suspended=suspended)
    world.reconcile()
    assert failed_as_withdrawn(operation)
    assert entry("n1").evict_requested_at is None and entry("n1").state == "Ready"


def test_an_eviction_that_is_being_cancelled_ends_as_cancelled(make_world: Callable[..., World], actor: Actor) -> None:
    world = make_world(nodes=1)
    spec = loose(world, actor)
    operation = entry_evict(actor=actor, entry_id=entry("n1").pk)
    operation_cancel(actor=actor, operation_id=operation.pk)
    CacheEntry.objects.update(evict_requested_at=timezone.now())
    pin_create(actor=actor, spec=spec)
    operation_step(operation_id=operation.pk)
    operation.refresh_from_db()
    assert operation.state == "Canceled" and entry("n1").evict_requested_at is None
