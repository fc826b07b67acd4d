"""Pins over time: what a change may do, what a removal leaves, lost races and other people's edits."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.utils import timezone

from caches.domain.pool_view import DailyWindow, Placement, PlacementType
from caches.models import CacheEntry, GateType, Pin, PoolLoop
from caches.services import pins
from caches.services.admission import CapacityClash
from caches.services.pin_specs import spec_check
from caches.services.pins import PinSpec, pin_create, pin_preview, pin_remove, pin_resume, pin_suspend, pin_update
from controlplane.audit.models import AuditEvent
from controlplane.audit.services import Actor
from controlplane.clusters.documents import EntryState
from controlplane.clusters.models import NodePool
from controlplane.errors import Clash, Invalid, Missing, Stale
from controlplane.operations.models import Operation
from controlplane.operations.services import operation_succeed
from controlplane.operations.steps import operation_step
from tests import factories
from tests.factories import MIB

pytestmark = pytest.mark.django_db


@pytest.fixture
def pool() -> NodePool:
    """Two nodes of 1,000 MiB, one of them in zone b."""
    made = factories.pool(of=factories.cluster(name="east"), name="gpu")
    for name, zone in (("n1", "a"), ("n2", "b")):
        factories.node(of=made, name=name, labels={**made.selector, "zone": zone})
    return made


def pinned(pool: NodePool, actor: Actor, mib: int = 100, **fields: Any) -> tuple[Pin, Operation]:
    version = fields.pop("of", None) or factories.version(artifact=factories.artifact(size_bytes=mib * MIB))
    return pin_create(actor=actor, spec=PinSpec(version_id=version.pk, pool_ids=(pool.pk,), **fields))


def warm(pin: Pin, pool: NodePool, state: EntryState = EntryState.READY, **fields: Any) -> dict[str, CacheEntry]:
    artifact = factories.version_of(pin).artifact
    return {n.name: factories.entry(on=n, of=artifact, state=state, **fields) for n in pool.nodes.all()}


def rounds(pool: NodePool) -> int:
    return PoolLoop.objects.get(pool=pool).wanted_round


@pytest.mark.parametrize("verb", [pin_remove, pin_suspend, pin_resume, lambda **given: pin_update(changes={}, **given)])
@pytest.mark.parametrize("which", ["unknown", "removed"])
def test_nobody_changes_a_pin_that_is_not_there(pool: NodePool, actor: Actor, verb: Any, which: str) -> None:
    pin, _ = pinned(pool, actor)
    pin_remove(actor=actor, pin_id=pin.pk)
    events = AuditEvent.objects.count()
    with pytest.raises(Missing) as refused:
        verb(actor=actor, pin_id=uuid4() if which == "unknown" else pin.pk)
    assert refused.value.code == "pin:user:not-found" and AuditEvent.objects.count() == events


def test_a_pin_keeps_its_version(pool: NodePool, actor: Actor) -> None:
    pin, _ = pinned(pool, actor)
    pin_update(actor=actor, pin_id=pin.pk, changes={"version_id": pin.version_id})
    with pytest.raises(Clash) as refused:
        pin_update(actor=actor, pin_id=pin.pk, changes={"version_id": factories.version().pk})
    assert refused.value.code == "pin:user:version-fixed"


def test_a_refused_change_leaves_everything_as_it_was(pool: NodePool, actor: Actor) -> None:
    pin, _ = pinned(pool, actor, priority=300)
    before, asked = Pin.objects.values().get(), rounds(pool)
    with pytest.raises(Invalid):
        pin_update(actor=actor, pin_id=pin.pk, changes={"priority": 900, "retention_seconds": -1})
    assert Pin.objects.values().get() == before and rounds(pool) == asked
    assert not AuditEvent.objects.filter(action="pin.update").exists()


def test_the_same_said_otherwise_is_no_change(pool: NodePool, actor: Actor) -> None:
    other = factories.pool(of=pool.cluster)
    version = factories.version()
    pin, _ = pin_create(actor=actor, spec=PinSpec(version_id=version.pk, pool_ids=(other.pk, pool.pk)))
    asked = rounds(pool)
    for ids in ((pool.pk, other.pk), (other.pk, pool.pk), (pool.pk, other.pk, pool.pk)):
        pin_update(actor=actor, pin_id=pin.pk, changes={"pool_ids": ids, "artifacts": list(pin.artifacts)})
    assert not AuditEvent.objects.filter(action="pin.update").exists() and rounds(pool) == asked


def test_pools_that_come_and_go_are_both_looked_at_again(pool: NodePool, actor: Actor) -> None:
    other = factories.pool(of=pool.cluster)
    pin, _ = pinned(pool, actor)
    asked = rounds(pool)
    pin_update(actor=actor, pin_id=pin.pk, changes={"pool_ids": (other.pk,)})
    assert list(pin.pools.all()) == [other]
    assert rounds(pool) == asked + 1 and rounds(other) > 0
    event = AuditEvent.objects.get(action="pin.update")
    assert ((event.before or {})["pools"], (event.after or {})["pools"]) == (["east.gpu"], [other.full_name])


def test_an_edit_of_the_past_is_refused_for_every_verb_that_asks(pool: NodePool, actor: Actor) -> None:
    pin, _ = pinned(pool, actor)
    read_at = Pin.objects.get().updated_at
    pin_suspend(actor=actor, pin_id=pin.pk)
    for verb in (pin_remove, lambda **given: pin_update(changes={"priority": 1}, **given)):
        with pytest.raises(Stale) as refused:
            verb(actor=actor, pin_id=pin.pk, if_updated_at=read_at)
        assert refused.value.code == "pin:user:changed-meanwhile" and refused.value.next_step
    assert Pin.objects.get().removed_at is None
    pin_remove(actor=actor, pin_id=pin.pk, if_updated_at=Pin.objects.get().updated_at)


def test_a_wider_gate_is_admitted_like_a_new_pin_and_a_weaker_one_always(pool: NodePool, actor: Actor) -> None:
    pool.nodes.filter(name="n2").update(capacity_bytes=100 * MIB)
    pin, _ = pinned(pool, actor, 300, gate_type=GateType.COUNT, gate_value=1)
    with pytest.raises(CapacityClash):
        pin_update(actor=actor, pin_id=pin.pk, changes={"gate_type": GateType.ALL})
    assert Pin.objects.get().gate_type == "Count"
    pool.nodes.update(capacity_bytes=100 * MIB)  # both disks shrank: the old gate cannot open either
    pin_update(actor=actor, pin_id=pin.pk, changes={"gate_value": 2})
    pin_update(actor=actor, pin_id=pin.pk, changes={"priority": 900})
    assert (Pin.objects.get().gate_value, Pin.objects.get().priority) == (2, 900)


def test_a_wider_placement_needs_room_too(pool: NodePool, actor: Actor) -> None:
    pool.nodes.filter(name="n2").update(capacity_bytes=100 * MIB)
    pin, _ = pinned(pool, actor, 300, placement=Placement(PlacementType.COUNT, 1))
    with pytest.raises(CapacityClash) as refused:
        pin_update(actor=actor, pin_id=pin.pk, changes={"placement": Placement()})
    assert [r.node for r in refused.value.plans[0].refusals] == ["n2"]
    with pytest.raises(CapacityClash):
        pin_update(actor=actor, pin_id=pin.pk, changes={"node_selector": {"zone": "b"}})
    pin_update(actor=actor, pin_id=pin.pk, changes={"node_selector": {"zone": "a"}})


def test_who_unpinned_to_make_room_is_told_until_when_the_hold_keeps_it(pool: NodePool, actor: Actor) -> None:
    NodePool.objects.update(evict_grace_seconds=0)
    old, _ = pinned(pool, actor, 500, retention_seconds=7200)
    warm(old, pool)
    pin_remove(actor=actor, pin_id=old.pk)
    CacheEntry.objects.filter(node__name="n1").update(hold_until=datetime(2098, 1, 1, tzinfo=UTC))
    CacheEntry.objects.filter(node__name="n2").update(hold_until=datetime(2099, 1, 1, 0, 0, 1, tzinfo=UTC))
    with pytest.raises(CapacityClash) as refused:
        pinned(pool, actor, 500)
    assert refused.value.next_step.startswith("Wait until 2099-01-01 00:00:01 UTC: enough may go on n2 then. Or: Free ")
    assert "Until 2099-01-01 00:00:01 UTC the eviction grace or a hold keeps" in refused.value.detail
    pool.nodes.filter(name="n2").update(capacity_bytes=100 * MIB)  # waiting does not help there
    with pytest.raises(CapacityClash) as refused:
        pinned(pool, actor, 500)
    assert "Wait" not in refused.value.next_step and "Until" not in refused.value.detail


def test_a_preview_of_a_change_counts_the_pin_once(pool: NodePool, actor: Actor) -> None:
    pin, _ = pinned(pool, actor, 500)
    spec = PinSpec(version_id=pin.version_id, pool_ids=(pool.pk,), priority=900)
    (plan,) = pin_preview(spec=spec, pin_id=pin.pk)
    assert [move.node for move in plan.moves] == ["n1", "n2"] and plan.refusals == ()
    assert {move.priority for move in plan.moves} == {900}
    assert Pin.objects.get().priority == 500


def test_a_preview_shows_who_would_be_pushed_out(pool: NodePool, actor: Actor) -> None:
    pool.evict_grace_seconds = 0
    pool.save()
    weak, _ = pinned(pool, actor, 500, priority=100)
    warm(weak, pool)
    strong = factories.version(artifact=factories.artifact(size_bytes=500 * MIB))
    for priority, gone in ((900, ["n1", "n2"]), (100, [])):
        (plan,) = pin_preview(spec=PinSpec(version_id=strong.pk, pool_ids=(pool.pk,), priority=priority))
        assert [eviction.node for eviction in plan.evictions] == gone
        assert {eviction.reason for eviction in plan.evictions} <= {"LowerPriority"}
        loser = factories.version_of(weak) if gone else strong
        assert {(r.node, r.artifact) for r in plan.refusals} == {(n, loser.full_name) for n in ("n1", "n2")}


def test_a_closed_window_admits_and_waits(pool: NodePool, actor: Actor) -> None:
    now = timezone.now()
    start, end = ((now + timedelta(hours=h)).time().replace(microsecond=0) for h in (2, 3))
    spec = PinSpec(factories.version().pk, (pool.pk,), window=DailyWindow(start, end, "UTC"))
    (plan,) = pin_preview(spec=spec)
    assert plan.moves == () and {wait.reason for wait in plan.waits} == {"Window"}
    assert all(wait.until is not None and wait.until > now for wait in plan.waits)
    _, operation = pin_create(actor=actor, spec=spec)
    assert operation.targets.count() == 2  # it follows the nodes that wait, too


def test_an_open_window_that_wraps_midnight_lets_bytes_move(pool: NodePool) -> None:
    hour = timezone.now().hour
    window = DailyWindow(time((hour - 1) % 24), time((hour + 2) % 24), "UTC")
    (plan,) = pin_preview(spec=PinSpec(factories.version().pk, (pool.pk,), window=window))
    assert len(plan.moves) == 2


def test_a_known_launch_goes_before_an_older_pin_of_the_same_priority(pool: NodePool, actor: Actor) -> None:
    pinned(pool, actor)
    soon = timezone.now() + timedelta(minutes=10)
    version = factories.version()
    (plan,) = pin_preview(spec=PinSpec(version.pk, (pool.pk,), needed_at=soon))
    wanted = version.artifact
    first = [min((m for m in plan.moves if m.node == node), key=lambda m: m.order) for node in ("n1", "n2")]
    assert {move.digest for move in first} == {wanted.digest if wanted else ""}


def test_a_removal_holds_only_what_the_pin_was_for(pool: NodePool, actor: Actor) -> None:
    pin, _ = pinned(pool, actor, node_selector={"zone": "a"}, retention_seconds=3600)
    entries = warm(pin, pool)  # n2 has it from an earlier pin
    removal = pin_remove(actor=actor, pin_id=pin.pk)
    for entry in entries.values():
        entry.refresh_from_db()
    assert {name: entry.hold_reason for name, entry in entries.items()} == {"n1": "Retention", "n2": ""}
    assert [target.name for target in removal.targets.all()] == ["east.gpu/n1"]


@pytest.mark.parametrize(("hours", "kept"), [(24, 24), (1, 2), (None, None)])
def test_a_retention_never_shortens_another_hold(
    pool: NodePool, actor: Actor, hours: int | None, kept: int | None
) -> None:
    pin, _ = pinned(pool, actor, retention_seconds=7200)
    now = timezone.now()
    until = now + timedelta(hours=hours) if hours else None
    entry = warm(pin, pool, hold_reason="Rollback", hold_until=until)["n1"]
    pin_remove(actor=actor, pin_id=pin.pk)
    entry.refresh_from_db()
    if kept is None:
        assert (entry.hold_reason, entry.hold_until) == ("Rollback", None)
    else:
        assert entry.hold_until is not None
        assert abs(entry.hold_until - now - timedelta(hours=kept)) < timedelta(minutes=1)
        assert entry.hold_reason == ("Rollback" if kept == 24 else "Retention")


@pytest.mark.parametrize("state", list(EntryState))
def test_what_a_removal_follows(pool: NodePool, actor: Actor, state: EntryState) -> None:
    pin, _ = pinned(pool, actor)
    warm(pin, pool, state, desired="")
    removal = pin_remove(actor=actor, pin_id=pin.pk)
    operation_step(operation_id=removal.pk)
    removal.refresh_from_db()
    if state in (EntryState.ABSENT, EntryState.LOST):
        assert removal.targets.count() == 0 and removal.state == "Succeeded"
    elif state in (EntryState.QUEUED, EntryState.DOWNLOADING, EntryState.VERIFYING):
        assert {t.detail for t in removal.targets.all()} == {"The transfer is being stopped."}
        assert removal.state == "Running"
    else:
        assert {t.detail for t in removal.targets.all()} == {"Kept until room is needed."}
        assert removal.state == "Succeeded"


def test_a_removal_does_not_wait_for_another_pin_of_the_same_bytes(pool: NodePool, actor: Actor) -> None:
    pin, _ = pinned(pool, actor)
    twin = factories.version(artifact=factories.version_of(pin).artifact)
    pinned(pool, actor, of=twin)
    warm(pin, pool, EntryState.DOWNLOADING)
    removal = pin_remove(actor=actor, pin_id=pin.pk)
    operation_step(operation_id=removal.pk)
    removal.refresh_from_db()
    assert removal.state == "Succeeded"
    assert {t.detail for t in removal.targets.all()} == {"Another pin still wants it."}


def test_resuming_follows_what_works_already_and_starts_anew_after_it_ended(pool: NodePool, actor: Actor) -> None:
    pin, first = pinned(pool, actor)
    pin_suspend(actor=actor, pin_id=pin.pk)
    assert pin_resume(actor=actor, pin_id=pin.pk).operation_id == first.pk
    assert pin_resume(actor=actor, pin_id=pin.pk).operation_id == first.pk  # not suspended: nothing to do
    assert AuditEvent.objects.filter(action="pin.resume").count() == 1
    operation_succeed(operation_id=first.pk)
    pin_suspend(actor=actor, pin_id=pin.pk)
    second = pin_resume(actor=actor, pin_id=pin.pk).operation_id
    assert second not in (None, first.pk)
    assert AuditEvent.objects.filter(action="pin.resume", operation_id=second).count() == 1


def test_two_creations_at_once_make_one_pin(pool: NodePool, actor: Actor, monkeypatch: pytest.MonkeyPatch) -> None:
    version = factories.version()
    spec = PinSpec(version.pk, (pool.pk,))
    real = spec_check

    def while_another_is_made(given: PinSpec) -> Any:
        answer = real(given)
        monkeypatch.setattr(pins, "spec_check", real)
        pin_create(actor=actor, spec=spec)
        return answer

    monkeypatch.setattr(pins, "spec_check", while_another_is_made)
    with pytest.raises(Clash) as refused:
        pin_create(actor=actor, spec=spec)
    assert refused.value.code == "pin:user:exists"
    assert Pin.objects.count() == Operation.objects.count() == 1


def test_a_younger_pin_never_looks_older_than_what_was_admitted_before_it(pool: NodePool, actor: Actor) -> None:
    first, _ = pinned(pool, actor)
    Pin.objects.filter(pk=first.pk).update(
        created_at=timezone.now() + timedelta(minutes=5)
    )  # a host whose clock is fast
    second, _ = pinned(pool, actor)
    created = dict(Pin.objects.values_list("pk", "created_at"))
    assert created[second.pk] > created[first.pk] and second.created_at == created[second.pk]
