"""What is applied stays applied: hand-made changes are repaired and audited, a fight is reported and not looped."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from caches.models import NodeProjection, PoolLoop
from caches.services.pins import PinSpec, pin_create
from caches.services.projecting import REPAIR_PERIOD, REPAIRS
from controlplane.audit.models import AuditEvent
from controlplane.audit.services import Actor
from controlplane.clusters.documents import Action, NodeCacheSpec
from controlplane.clusters.gateway import ClusterGateway, Conflict
from controlplane.clusters.registry import override_gateway
from tests.services.world import MIB, World, version_of


class Contested:
    """The real gateway in a cluster where another manager owns what Hearth wants to write."""

    def __init__(self, real: ClusterGateway) -> None:
        self.real, self.calls = real, list[bool]()
        self.managers: tuple[str, ...] = ("other-controller",)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def apply_node_cache(self, spec: NodeCacheSpec, *, take_over: bool = False) -> int:
        self.calls.append(take_over)
        if not take_over:
            raise Conflict("conflict with other-controller", self.managers)
        return self.real.apply_node_cache(spec, take_over=True)


@pytest.fixture
def pinned(world: World, actor: Actor) -> Any:
    version = version_of(100 * MIB)
    pin_create(actor=actor, spec=PinSpec(version_id=version.pk, pool_ids=(world.pool.pk,)))
    world.settle()
    return version


@pytest.fixture
def contested(world: World, pinned: Any) -> Iterator[Contested]:
    gateway = Contested(world.gateway)
    override_gateway(world.cluster.pk, gateway)
    yield gateway
    override_gateway(world.cluster.pk, None)


def edit_by_hand(world: World, name: str = "n1") -> None:
    """Somebody empties the desired list with kubectl."""
    world.gateway.apply_node_cache(replace(world.spec(name), desired=()))
    world.observe()


def repairs() -> list[AuditEvent]:
    return list(AuditEvent.objects.filter(action="node-cache.repaired").order_by("at", "id"))


def projection(world: World, name: str = "n1") -> NodeProjection:
    return NodeProjection.objects.get(node=world.node(name))


def test_it_repairs_and_audits_a_spec_that_was_edited_by_hand(world: World, pinned: Any) -> None:
    edit_by_hand(world)
    assert projection(world).foreign
    assert PoolLoop.objects.filter(pool=world.pool, wanted_round__gt=world.loop().done_round).exists()
    world.reconcile()
    assert world.desired("n1") == {pinned.artifact.digest: Action.ENSURE}
    assert not projection(world).foreign
    [event] = repairs()
    assert (event.object_name, event.actor, event.after) == ("n1", "system", {"managers": [], "repairs": 1})


def test_it_touches_no_other_node_when_it_repairs_one(world: World, pinned: Any) -> None:
    before = projection(world, "n2").generation
    edit_by_hand(world)
    world.reconcile()
    assert projection(world, "n2").generation == before


def test_it_does_not_take_its_own_change_for_another_hand(world: World, actor: Actor, pinned: Any) -> None:
    pin_create(actor=actor, spec=PinSpec(version_id=version_of(50 * MIB).pk, pool_ids=(world.pool.pk,)))
    world.settle()
    assert repairs() == []


def test_it_knows_its_own_change_also_when_the_watcher_is_first(world: World, pinned: Any) -> None:
    """The worker was killed between the apply and its row: the watcher sees a newer generation with Hearth's spec."""
    NodeProjection.objects.filter(node=world.node("n1")).update(generation=0, spec_hash="")
    world.observe()
    assert not projection(world).foreign
    world.reconcile()
    assert repairs() == []


def test_an_older_document_that_arrives_late_is_nobodys_edit(world: World, actor: Actor, pinned: Any) -> None:
    NodeProjection.objects.filter(node=world.node("n1")).update(document_hash="of what is being applied now")
    world.observe()  # still the generation that was applied last
    assert not projection(world).foreign


def test_it_takes_fields_back_from_another_manager_and_names_it(world: World, contested: Contested) -> None:
    NodeProjection.objects.filter(node=world.node("n1")).update(spec_hash="")
    world.reconcile()
    assert contested.calls == [False, True]
    assert [event.after for event in repairs()] == [{"managers": ["other-controller"], "repairs": 1}]
    assert world.loop().error == ""


def test_it_names_who_edited_what_the_watcher_saw_first(world: World, contested: Contested) -> None:
    contested.managers = ("kubectl-patch",)
    edit_by_hand(world)
    assert projection(world).foreign
    world.reconcile()
    assert contested.calls == [False, True], "asked before it is taken, or nobody says whose it was"
    assert [event.after for event in repairs()] == [{"managers": ["kubectl-patch"], "repairs": 1}]
    assert not projection(world).foreign


def test_it_reports_a_fight_and_stops_fighting(world: World, contested: Contested) -> None:
    for _ in range(REPAIRS + 3):
        NodeProjection.objects.filter(node=world.node("n1")).update(spec_hash="")
        world.reconcile()
    assert len(repairs()) == REPAIRS
    assert contested.calls.count(True) == REPAIRS
    error = world.loop().error
    assert error.startswith("n1: another controller (other-controller) keeps changing its NodeCache")
    assert "repaired 3 times" in error and "Stop it" in error


def test_it_stops_fighting_over_edits_too(world: World, pinned: Any) -> None:
    for _ in range(REPAIRS + 2):
        edit_by_hand(world)
        world.reconcile()
    assert len(repairs()) == REPAIRS
    assert "keeps changing its NodeCache" in world.loop().error
    assert world.desired("n1") == {}  # as the other side left it


def test_it_tries_again_after_a_while(world: World, pinned: Any) -> None:
    for _ in range(REPAIRS + 1):
        edit_by_hand(world)
        world.reconcile()
    NodeProjection.objects.update(repaired_at=datetime.now(UTC) - REPAIR_PERIOD - timedelta(seconds=1))
    world.reconcile()
    assert world.desired("n1") != {}
    assert repairs()[-1].after == {"managers": [], "repairs": 1}
    assert world.loop().error == ""


def test_a_conflict_about_the_incarnation_is_no_fight(world: World, contested: Contested) -> None:
    contested.managers = ()
    NodeProjection.objects.filter(node=world.node("n1")).update(spec_hash="")
    world.reconcile()
    assert contested.calls == [False]
    assert repairs() == [] and world.loop().error.startswith("n1: conflict")
