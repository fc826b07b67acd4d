"""Pins: validation, admission, change, suspension, removal."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import datetime, time, timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.utils import timezone

from caches.domain.pool_view import DailyWindow, Placement, PlacementType
from caches.models import CacheEntry, GateType, Pin
from caches.services.admission import CapacityClash
from caches.services.pins import (
    PinSpec,
    pin_create,
    pin_preview,
    pin_remove,
    pin_resume,
    pin_suspend,
    pin_update,
)
from controlplane.audit.models import AuditEvent
from controlplane.audit.services import Actor
from controlplane.clusters.documents import ArtifactKind
from controlplane.errors import Clash, Invalid, Missing, Stale
from controlplane.operations.models import Operation
from tests import factories
from tests.services.world import MIB, World, version_of


def spec_for(world: World, mib: int = 100, **fields: Any) -> PinSpec:
    return PinSpec(version_id=version_of(mib * MIB).pk, pool_ids=(world.pool.pk,), **fields)


def test_it_creates_a_pin_with_an_operation_over_the_nodes_of_now(world: World, actor: Actor) -> None:
    spec = spec_for(world, priority=700, retention_seconds=60)
    pin, operation = pin_create(actor=actor, spec=spec)
    stored = Pin.objects.get(pk=pin.pk)
    assert (stored.priority, stored.retention_seconds, stored.operation_id) == (700, 60, operation.pk)
    assert {target.name.split("/")[1] for target in operation.targets.all()} == {"n1", "n2"}
    assert operation.bytes_total == 200 * MIB
    event = AuditEvent.objects.get(action="pin.create")
    assert (event.actor, event.request_id, event.operation_id) == ("olga", "request-1", operation.pk)
    assert event.after["priority"] == 700 and event.before is None  # type: ignore[index]
    assert world.loop().wanted_round > world.loop().done_round


def test_a_preview_shows_the_plan_and_writes_nothing(world: World) -> None:
    (plan,) = pin_preview(spec=spec_for(world))
    assert [move.node for move in plan.moves] == ["n1", "n2"]
    assert plan.total_bytes == 200 * MIB
    assert not Pin.objects.exists() and not Operation.objects.exists()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"priority": 1001}, "priority"),
        ({"pool_ids": ()}, "pools"),
        ({"pool_ids": (uuid4(),)}, "pools"),
        ({"version_id": uuid4()}, "version"),
        ({"artifacts": (ArtifactKind.IMAGE, ArtifactKind.IMAGE)}, "artifacts"),
        ({"artifacts": ()}, "artifacts"),
        ({"retention_seconds": -1}, "retention"),
        ({"gate_type": GateType.PERCENT, "gate_value": 101}, "gate"),
        ({"gate_type": GateType.COUNT, "gate_value": 0}, "gate"),
        ({"placement": Placement(PlacementType.PERCENT, 0)}, "placement"),
        ({"window": DailyWindow(time(22), time(6), "Mars/Olympus")}, "window.time_zone"),
        ({"window": DailyWindow(time(22), time(22), "UTC")}, "window.end"),
        ({"needed_at": datetime(2030, 1, 1)}, "needed_at"),
        ({"node_selector": {"": "x"}}, "node_selector"),
    ],
)
def test_it_names_the_wrong_field(world: World, actor: Actor, change: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid) as refused:
        pin_create(actor=actor, spec=dataclasses.replace(spec_for(world), **change))
    assert field in {error.field for error in refused.value.errors}
    assert not Pin.objects.exists()


def test_it_refuses_a_version_that_is_not_available(world: World, actor: Actor) -> None:
    version = factories.version(artifact=None, state="Resolving")
    with pytest.raises(Clash) as refused:
        pin_create(actor=actor, spec=PinSpec(version_id=version.pk, pool_ids=(world.pool.pk,)))
    assert refused.value.code == "pin:user:version-not-available"


def test_it_refuses_a_second_live_pin_of_a_version(world: World, actor: Actor) -> None:
    spec = spec_for(world)
    pin_create(actor=actor, spec=spec)
    with pytest.raises(Clash) as refused:
        pin_create(actor=actor, spec=spec)
    assert refused.value.code == "pin:user:exists"
    assert Operation.objects.count() == 1


def test_it_refuses_with_numbers_what_fits_on_no_disk(make_world: Callable[..., World], actor: Actor) -> None:
    world = make_world(capacity_bytes=250 * MIB)
    with pytest.raises(CapacityClash) as refused:
        pin_create(actor=actor, spec=spec_for(world, 300))
    refusal = refused.value.plans[0].refusals[0]
    assert refusal.need_bytes == 300 * MIB
    assert refusal.free_bytes == int(250 * MIB * 0.85)
    assert refused.value.code == "pin:user:insufficient-capacity"
    assert "needs 300 MiB, 212.5 MiB are free" in refused.value.detail and refused.value.next_step
    assert not Pin.objects.exists()


def test_it_admits_one_of_two_that_only_fit_alone(make_world: Callable[..., World], actor: Actor) -> None:
    world = make_world(nodes=1)
    pin_create(actor=actor, spec=spec_for(world, 500))
    with pytest.raises(CapacityClash) as refused:
        pin_create(actor=actor, spec=spec_for(world, 500))
    assert refused.value.plans[0].refusals[0].reserved_bytes == 500 * MIB


@pytest.mark.parametrize(
    ("gate_type", "value", "admitted"),
    [("All", 100, False), ("Count", 1, True), ("Count", 2, False), ("Percent", 50, True), ("Timeout", 60, True)],
)
def test_the_gate_decides_how_much_room_is_enough(
    make_world: Callable[..., World], actor: Actor, gate_type: str, value: int, admitted: bool
) -> None:
    world = make_world(nodes=1)
    world.add("small", capacity_bytes=100 * MIB)
    world.observe()
    spec = spec_for(world, 300, gate_type=GateType(gate_type), gate_value=value)
    if admitted:
        _, operation = pin_create(actor=actor, spec=spec)
        assert operation.targets.count() == 2
    else:
        with pytest.raises(CapacityClash):
            pin_create(actor=actor, spec=spec)


def test_it_changes_fields_and_audits_before_and_after(world: World, actor: Actor) -> None:
    pin, _ = pin_create(actor=actor, spec=spec_for(world))
    changed = pin_update(
        actor=actor, pin_id=pin.pk, changes={"priority": 900, "window": DailyWindow(time(22), time(6), "UTC")}
    )
    assert (changed.priority, changed.window_start) == (900, time(22))
    assert changed.updated_at > pin.updated_at
    event = AuditEvent.objects.get(action="pin.update")
    assert (event.before["priority"], event.after["priority"]) == (500, 900)  # type: ignore[index]
    plain = pin_update(actor=actor, pin_id=pin.pk, changes={"window": None})
    assert plain.window_start is None


def test_it_refuses_a_change_of_a_stale_pin(world: World, actor: Actor) -> None:
    pin, _ = pin_create(actor=actor, spec=spec_for(world))
    read_at = Pin.objects.get(pk=pin.pk).updated_at
    pin_update(actor=actor, pin_id=pin.pk, changes={"priority": 1}, if_updated_at=read_at)
    with pytest.raises(Stale):
        pin_update(actor=actor, pin_id=pin.pk, changes={"priority": 2}, if_updated_at=read_at)
    assert Pin.objects.get(pk=pin.pk).priority == 1


def test_an_empty_change_leaves_no_trace(world: World, actor: Actor) -> None:
    pin, _ = pin_create(actor=actor, spec=spec_for(world))
    before = Pin.objects.get(pk=pin.pk).updated_at
    assert pin_update(actor=actor, pin_id=pin.pk, changes={"priority": 500}).updated_at == before
    assert not AuditEvent.objects.filter(action="pin.update").exists()


def test_it_refuses_to_add_a_pool_that_has_no_room(world: World, actor: Actor) -> None:
    pin, _ = pin_create(actor=actor, spec=spec_for(world, 300))
    tight = factories.pool(of=world.cluster)
    factories.node(of=tight, capacity_bytes=100 * MIB)
    with pytest.raises(CapacityClash):
        pin_update(actor=actor, pin_id=pin.pk, changes={"pool_ids": (world.pool.pk, tight.pk)})
    assert list(Pin.objects.get(pk=pin.pk).pools.all()) == [world.pool]


def test_suspending_stops_what_is_under_way_and_resuming_starts_again(world: World, actor: Actor) -> None:
    pin, first = pin_create(actor=actor, spec=spec_for(world))
    digest = pin.version.artifact.digest  # type: ignore[union-attr]
    world.reconcile()
    assert digest in world.desired("n1")
    assert pin_suspend(actor=actor, pin_id=pin.pk).suspended
    pin_suspend(actor=actor, pin_id=pin.pk)
    assert AuditEvent.objects.filter(action="pin.suspend").count() == 1
    world.reconcile()
    assert digest not in world.desired("n1")
    Operation.objects.filter(pk=first.pk).update(state="Failed")
    resumed = pin_resume(actor=actor, pin_id=pin.pk)
    assert not resumed.suspended and resumed.operation_id not in (None, first.pk)
    world.reconcile()
    assert digest in world.desired("n1")


def test_removing_a_pin_cancels_its_work_and_holds_what_is_warm(world: World, actor: Actor) -> None:
    pin, operation = pin_create(actor=actor, spec=spec_for(world, retention_seconds=3600))
    world.settle(1)
    removal = pin_remove(actor=actor, pin_id=pin.pk)
    operation.refresh_from_db()
    assert operation.state == "Canceling"
    assert removal.kind == "PinRemove" and removal.targets.count() == 2
    held = CacheEntry.objects.filter(artifact=factories.version_of(pin).artifact)
    assert {entry.hold_reason for entry in held} == {"Retention"}
    assert all(entry.hold_until > timezone.now() + timedelta(minutes=59) for entry in held if entry.hold_until)
    with pytest.raises(Missing):
        pin_remove(actor=actor, pin_id=pin.pk)


def test_a_version_can_be_pinned_again_after_its_pin_was_removed(world: World, actor: Actor) -> None:
    spec = spec_for(world)
    pin, _ = pin_create(actor=actor, spec=spec)
    pin_remove(actor=actor, pin_id=pin.pk)
    again, _ = pin_create(actor=actor, spec=spec)
    assert again.pk != pin.pk
