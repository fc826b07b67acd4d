"""A cluster that fails in the middle of a round: nothing is forgotten, nothing is told twice, nothing goes unasked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from caches.domain.labels import ready_label
from caches.models import CacheEntry, NodeProjection
from caches.services.entries import entry_evict
from caches.services.loop.pool_rounds import pools_mark_dirty
from caches.services.loop.rounds import pool_reconcile, pools_due
from caches.services.pins import PinSpec, pin_create
from controlplane.audit.services import Actor
from controlplane.clusters.documents import Action
from controlplane.clusters.gateway import Conflict, GatewayError, NotFound, Throttled, Unreachable
from tests import factories
from tests.services.faulty import ERRORS, FaultyGateway, faulty
from tests.services.world import MIB, World, ready, version_of

WHOLE_ROUND = [error for error in ERRORS if not isinstance(error, Conflict | NotFound)]


@pytest.fixture
def gateway(world: World) -> Iterator[FaultyGateway]:
    with faulty(world) as made:
        yield made


def pinned(world: World, actor: Actor, mib: int = 100, **fields: Any) -> Any:
    version = version_of(mib * MIB, **fields)
    pin_create(actor=actor, spec=PinSpec(version_id=version.pk, pool_ids=(world.pool.pk,)))
    return version


def named(error: Exception) -> str:
    return type(error).__name__


def dirty(world: World) -> bool:
    loop = world.loop()
    return loop.wanted_round > loop.done_round


@pytest.mark.parametrize("error", WHOLE_ROUND, ids=named)
@pytest.mark.parametrize("call", ["apply_manifest", "apply_node_cache"])
def test_an_answer_that_is_missing_leaves_the_pool_dirty_and_says_why(
    world: World, actor: Actor, gateway: FaultyGateway, call: str, error: GatewayError
) -> None:
    version = pinned(world, actor)
    gateway.fail(call, error)
    assert pool_reconcile(pool_id=world.pool.pk) is None
    assert dirty(world) and world.loop().error == f"{named(error)}: {error}"
    assert not NodeProjection.objects.exclude(spec_hash="").exists() and world.loop().plan is None
    gateway.heal()
    world.reconcile()
    assert not dirty(world) and world.loop().error == ""
    assert world.desired("n2") == {version.artifact.digest: Action.ENSURE}


def test_a_round_that_broke_between_two_nodes_goes_on_with_the_second(
    world: World, actor: Actor, gateway: FaultyGateway
) -> None:
    version = pinned(world, actor)
    gateway.fail("apply_node_cache", Throttled("slow down", 5.0), after=1)
    assert pool_reconcile(pool_id=world.pool.pk) is None
    assert world.desired("n1") == {version.artifact.digest: Action.ENSURE}
    assert [p.node.name for p in NodeProjection.objects.exclude(spec_hash="")] == ["n1"]
    gateway.heal()
    gateway.calls.clear()
    world.reconcile()
    assert [spec.node_name for (spec,) in gateway.made("apply_node_cache")] == ["n2"]


def test_no_node_hears_of_an_artifact_before_its_manifest_is_there(
    world: World, actor: Actor, gateway: FaultyGateway
) -> None:
    pinned(world, actor)
    gateway.fail("apply_manifest", Unreachable("no answer"), times=1)
    assert pool_reconcile(pool_id=world.pool.pk) is None
    assert gateway.made("apply_node_cache") == []
    world.reconcile()
    names = [name for name, _ in gateway.calls]
    assert names.index("apply_manifest", 1) < names.index("apply_node_cache")


@pytest.mark.parametrize("error", [Conflict("taken"), NotFound("n1 is uid-2 now")], ids=named)
def test_a_node_that_was_replaced_meanwhile_holds_nobody_up(
    world: World, actor: Actor, gateway: FaultyGateway, error: GatewayError
) -> None:
    version = pinned(world, actor)
    gateway.fail("apply_node_cache", error, times=1)
    world.reconcile()
    assert world.desired("n2") == {version.artifact.digest: Action.ENSURE}
    assert world.loop().error == f"n1: {error}" and not dirty(world)
    assert [p.node.name for p in NodeProjection.objects.exclude(spec_hash="")] == ["n2"]
    world.reconcile()  # the next look, if the node is still there after all
    assert world.desired("n1") == {version.artifact.digest: Action.ENSURE} and world.loop().error == ""


def test_a_node_is_replaced_between_the_plan_and_its_application(
    world: World, actor: Actor, gateway: FaultyGateway
) -> None:
    version = pinned(world, actor)
    gateway.before("apply_node_cache", lambda: world.replace("n1"))
    world.reconcile()
    assert world.links["n1"].desired() is None or world.desired("n1") == {}
    world.observe()
    world.reconcile()
    assert world.desired("n1") == {version.artifact.digest: Action.ENSURE}
    assert CacheEntry.objects.filter(node__name="n1", state="Lost").count() == 1


@pytest.mark.parametrize("error", [Conflict("taken"), NotFound("gone")], ids=named)
def test_a_label_that_cannot_be_set_is_set_in_the_next_round(
    world: World, gateway: FaultyGateway, error: GatewayError
) -> None:
    version = version_of(100 * MIB)
    for name in ("n1", "n2"):
        world.report(name, ready(version.artifact.digest, 100 * MIB))
    world.observe()
    gateway.fail("set_node_labels", error, times=1)
    world.reconcile()
    assert world.loop().error == f"n1: {error}"
    world.reconcile()
    world.observe()
    label = ready_label(version.artifact.digest)
    assert [label in world.node(name).labels for name in ("n1", "n2")] == [True, True]
    assert world.loop().error == ""


@pytest.mark.parametrize("error", [Throttled("slow down", 5.0), Unreachable("no answer")], ids=named)
def test_labels_that_cannot_be_set_leave_the_pool_dirty(
    world: World, gateway: FaultyGateway, error: GatewayError
) -> None:
    version = version_of(100 * MIB)
    world.report("n1", ready(version.artifact.digest, 100 * MIB))
    world.observe()
    gateway.fail("set_node_labels", error, times=1)
    assert pool_reconcile(pool_id=world.pool.pk) is None
    loop = world.loop()
    assert dirty(world) and world.pool.pk in pools_due(now=loop.not_before or loop.updated_at)
    world.reconcile()
    world.observe()
    assert ready_label(version.artifact.digest) in world.node("n1").labels


def test_only_the_labels_that_are_hearths_own_are_touched(world: World, gateway: FaultyGateway) -> None:
    version = version_of(100 * MIB)
    world.report("n1", ready(version.artifact.digest, 100 * MIB))
    node = world.node("n1")
    stale = ready_label(factories.artifact().digest)
    world.gateway.set_node_labels("n1", node.uid, {stale: "true", "hearth.dev/hardware": "x", "team": "ml"})
    world.observe()
    world.reconcile()
    world.observe()
    labels = world.node("n1").labels
    assert stale not in labels and ready_label(version.artifact.digest) in labels
    assert (labels["team"], labels["hearth.dev/hardware"], labels["hearth.dev/pool"]) == ("ml", "x", "gpu")


def test_a_plan_applied_twice_tells_the_cluster_nothing_new(world: World, actor: Actor, gateway: FaultyGateway) -> None:
    pinned(world, actor)
    world.settle()
    gateway.calls.clear()
    before = world._told()
    for _ in range(2):
        pools_mark_dirty(pool_ids=[world.pool.pk])
        world.reconcile()
    assert world._told() == before and gateway.calls == []


def test_a_worker_killed_after_the_cluster_was_told_repeats_it_without_harm(
    world: World, actor: Actor, gateway: FaultyGateway
) -> None:
    pinned(world, actor)
    world.reconcile()
    generation = world.links["n1"].desired().generation  # type: ignore[union-attr]
    NodeProjection.objects.all().delete()  # what was remembered after the kill: nothing
    pools_mark_dirty(pool_ids=[world.pool.pk])
    world.reconcile()
    assert world.links["n1"].desired().generation == generation  # type: ignore[union-attr]
    assert NodeProjection.objects.get(node=world.node("n1")).generation == generation


def test_a_request_made_during_a_round_is_answered_by_another_one(
    world: World, actor: Actor, gateway: FaultyGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = pinned(world, actor)
    gateway.before("apply_node_cache", lambda: pinned(world, actor))
    sent: list[tuple[str, ...]] = []
    monkeypatch.setattr("caches.services.loop.rounds.publish", lambda *call, **_: sent.append(call))
    world.reconcile()
    assert dirty(world) and world.loop().wanted_at is not None
    assert ("caches.pool_reconcile", str(world.pool.pk)) in sent
    assert set(world.desired("n1")) == {first.artifact.digest}
    world.reconcile()
    assert len(world.desired("n1")) == 2 and not dirty(world) and world.loop().wanted_at is None


def test_one_pool_that_does_not_answer_is_no_trouble_for_another(
    world: World, actor: Actor, make_world: Callable[..., World], tmp_path: Any
) -> None:
    other = World(tmp_path / "other", nodes=1)
    version = version_of(10 * MIB)
    pin_create(actor=actor, spec=PinSpec(version_id=version.pk, pool_ids=(world.pool.pk, other.pool.pk)))
    with faulty(world) as gateway:
        gateway.fail("apply_node_cache", Unreachable("no answer"))
        assert pool_reconcile(pool_id=world.pool.pk) is None
        other.reconcile()
    assert other.desired("n1") == {version.artifact.digest: Action.ENSURE}
    assert dirty(world) and not dirty(other)


def test_an_eviction_whose_application_fails_is_confirmed_again_and_may_not_come_true(
    world: World, actor: Actor, gateway: FaultyGateway
) -> None:
    version = version_of(100 * MIB)
    world.warm(version)
    entry_evict(actor=actor, entry_id=world.entry("n1", version).pk)
    gateway.fail("apply_node_cache", Throttled("slow down", 1.0))
    assert pool_reconcile(pool_id=world.pool.pk) is None
    assert world.desired("n1")[version.artifact.digest] is Action.ENSURE
    gateway.heal()
    world.fleet.use("n1", version.artifact.digest)  # an engine came while the cluster was busy
    assert world.reconcile().evictions == ()
    assert world.desired("n1")[version.artifact.digest] is Action.ENSURE


def test_a_pool_that_is_gone_and_a_pool_at_work_are_left_alone(world: World) -> None:
    pool = factories.pool(of=world.cluster)
    key = pool.pk
    pool.delete()
    assert pool_reconcile(pool_id=key) is None
