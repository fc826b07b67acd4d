"""Absence never evicts: fresh databases, restored ones, emptied clusters and restarts at any line."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from caches.models import (
    Artifact,
    CacheEntry,
    ConsumerSeen,
    Model,
    ModelVersion,
    NodeProjection,
    Pin,
    PoolLoop,
    SourceConnection,
)
from caches.services.entries import entry_evict
from caches.services.loop import rounds as loop_module
from caches.services.loop.rounds import pool_reconcile, pools_due
from caches.services.pins import PinSpec, pin_create, pin_remove
from controlplane.audit.services import Actor
from controlplane.clusters.documents import Action, Orphan
from controlplane.clusters.gateway import Kind
from controlplane.clusters.models import Cluster, Node
from controlplane.operations.models import Operation
from tests import factories
from tests.services.faulty import faulty
from tests.services.world import MIB, World, version_of


def evicting(world: World) -> list[tuple[str, str]]:
    """Every line in the cluster that tells a node to remove something."""
    return [
        (name, line.digest) for name in world.links for line in world.spec(name).desired if line.action is Action.EVICT
    ]


def forget(*rows: Any) -> None:
    for model in rows:
        model.objects.all().delete()


EVERYTHING = (
    Operation, Pin, NodeProjection, PoolLoop, ConsumerSeen, CacheEntry, ModelVersion, Model, Artifact,
    SourceConnection, Node,
)  # fmt: skip


@pytest.fixture
def warm(world: World, actor: Actor) -> Any:
    """A pinned version that is Ready on both nodes."""
    version = version_of(300 * MIB)
    pin_create(actor=actor, spec=PinSpec(version_id=version.pk, pool_ids=(world.pool.pk,)))
    world.settle()
    return version


def test_a_fresh_database_on_a_running_fleet_evicts_nothing(world: World, warm: Any) -> None:
    held = {name: set(lines) for name, lines in world.held.items()}
    forget(*EVERYTHING)
    for _ in range(3):
        world.observe()
        plan = world.reconcile()
        assert plan.evictions == () and plan.refusals == ()
        assert evicting(world) == []
        world.obey()  # agents do what they are told: nothing goes
    assert {name: set(lines) for name, lines in world.held.items()} == held


def test_what_a_fresh_database_registers_again_is_warm_at_once(world: World, warm: Any, actor: Actor) -> None:
    digest, size = warm.artifact.digest, warm.artifact.size_bytes
    manifest = bytes(Artifact.objects.get().manifest)
    forget(*EVERYTHING)
    world.observe()
    world.reconcile()
    again = factories.version(artifact=factories.artifact(digest=digest, size_bytes=size, manifest=manifest))
    world.report("n1")
    world.report("n2")
    world.observe()
    _, operation = pin_create(actor=actor, spec=PinSpec(version_id=again.pk, pool_ids=(world.pool.pk,)))
    plan = world.reconcile()
    assert plan.moves == () and evicting(world) == []
    assert {entry.state for entry in CacheEntry.objects.all()} == {"Ready"}
    assert operation.targets.count() == 2


@pytest.mark.parametrize(
    "lost", [(CacheEntry,), (NodeProjection,), (PoolLoop,), (NodeProjection, CacheEntry, PoolLoop)]
)
def test_bookkeeping_that_is_lost_is_learnt_again(world: World, warm: Any, lost: tuple[Any, ...]) -> None:
    before = {name: world.spec(name).desired for name in world.links}
    forget(*lost)
    world.obey()
    world.observe()
    plan = world.reconcile()
    assert (plan.moves, plan.evictions) == ((), ())
    assert {name: world.spec(name).desired for name in world.links} == before
    assert {entry.state for entry in CacheEntry.objects.all()} == {"Ready"}
    assert NodeProjection.objects.count() == 2


def test_consumers_that_are_forgotten_free_nothing(world: World, warm: Any, actor: Actor) -> None:
    pin_remove(actor=actor, pin_id=Pin.objects.get().pk)
    world.fleet.use("n1", warm.artifact.digest)
    world.observe()
    forget(ConsumerSeen)  # not listed again yet
    entry_evict(actor=actor, entry_id=world.entry("n1", warm).pk)
    world.reconcile()
    world.reconcile()
    assert evicting(world) == []


@pytest.mark.parametrize("kind", [Kind.NODE_CACHE, Kind.CONSUMER])
def test_an_empty_listing_removes_nothing(world: World, warm: Any, kind: Kind) -> None:
    world.sink.relisted(str(world.cluster.pk), kind, (), timezone.now())
    world.reconcile()
    assert evicting(world) == []
    assert {entry.state for entry in CacheEntry.objects.all()} == {"Ready"}
    assert world.desired("n1") == {warm.artifact.digest: Action.ENSURE}


def test_a_cluster_that_was_not_heard_of_for_long_keeps_everything(world: World, warm: Any, actor: Actor) -> None:
    """Room is wanted by something stronger, and nobody knows who uses what."""
    strong = version_of(800 * MIB)
    pin_create(actor=actor, spec=PinSpec(version_id=strong.pk, pool_ids=(world.pool.pk,), priority=900))
    long_ago = timezone.now() - timedelta(hours=2)
    Cluster.objects.update(observed_at=long_ago)
    Node.objects.update(observed_at=long_ago, reported_at=long_ago)
    plan = world.reconcile()
    assert plan.evictions == () and plan.moves == () and evicting(world) == []


def test_a_request_survives_every_restart_until_the_files_are_gone(world: World, warm: Any, actor: Actor) -> None:
    pin_remove(actor=actor, pin_id=Pin.objects.get().pk)
    entry_evict(actor=actor, entry_id=world.entry("n1", warm).pk)
    for _ in range(4):
        forget(NodeProjection, PoolLoop)
        world.settle()
    assert world.entry("n1", warm).state == "Absent" and world.entry("n1", warm).evict_requested_at is None
    assert world.entry("n2", warm).state == "Ready"


@pytest.mark.parametrize("call", ["apply_manifest", "apply_node_cache", "set_node_labels"])
@pytest.mark.parametrize("after", [0, 1])
def test_a_worker_killed_at_any_call_leaves_the_pool_for_the_next_one(
    world: World, actor: Actor, call: str, after: int
) -> None:
    version = version_of(100 * MIB)
    pin_create(actor=actor, spec=PinSpec(version_id=version.pk, pool_ids=(world.pool.pk,)))
    with faulty(world) as gateway:
        gateway.fail(call, KeyboardInterrupt(), times=1, after=after)  # type: ignore[arg-type]
        for _ in range(4):
            try:
                world.reconcile()
            except KeyboardInterrupt:
                assert world.pool.pk in pools_due(now=timezone.now())
            world.obey()
            world.observe()
    world.settle()
    assert {entry.state for entry in CacheEntry.objects.all()} == {"Ready"} and evicting(world) == []
    loop = world.loop()
    assert loop.wanted_round == loop.done_round and loop.error == ""


def test_a_worker_killed_before_it_remembers_repeats_the_round(
    world: World, warm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*args: Any, **kwargs: Any) -> None:
        raise KeyboardInterrupt

    PoolLoop.objects.update(done_round=0)
    with monkeypatch.context() as patch:
        patch.setattr(loop_module, "_remember", killed)
        with pytest.raises(KeyboardInterrupt):
            pool_reconcile(pool_id=world.pool.pk)
    assert world.loop().done_round == 0
    told = world._told()
    assert pool_reconcile(pool_id=world.pool.pk) is not None  # also: the lock was let go
    assert world._told() == told and world.loop().done_round == world.loop().wanted_round


def test_a_node_that_comes_back_as_another_machine_gets_a_plan_of_its_own(
    make_world: Callable[..., World], actor: Actor
) -> None:
    world = make_world(nodes=1)
    version = version_of(100 * MIB)
    world.warm(version)  # wanted by nobody: only kept
    entry_evict(actor=actor, entry_id=world.entry("n1", version).pk)
    world.replace("n1")
    world.observe()
    plan = world.reconcile()
    assert plan.evictions == () and evicting(world) == []
    assert [entry.state for entry in CacheEntry.objects.all()] == ["Lost"]


def test_orphans_are_reported_and_never_told_to_go(world: World, warm: Any) -> None:
    orphans = (Orphan("sha256-" + "0" * 64, 50 * MIB, False), Orphan("sha256-" + "1" * 64, 10 * MIB, True))
    world.report("n1", orphans=orphans)
    world.observe()
    plan = world.reconcile()
    assert plan.evictions == () and evicting(world) == []
    assert len(world.node("n1").orphans) == 2
