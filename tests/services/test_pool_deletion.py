"""A deleted pool leaves nothing behind: files, labels, documents, its row; also on a node that was down meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from django.utils import timezone

from caches.domain.labels import is_ready_label
from caches.models import CacheEntry, NodeProjection, PoolLoop
from caches.services import pool_deletion
from caches.services.pins import PinSpec, pin_create, pin_remove, pin_update
from caches.services.pool_deletion import pool_delete, pool_delete_preview
from controlplane.audit.models import AuditEvent
from controlplane.audit.services import Actor
from controlplane.clusters.documents import POOL_LABEL, Action, NodeCacheSpec, Orphan
from controlplane.clusters.gateway import Kind, ObservedNode, Unreachable
from controlplane.clusters.local.gateway import LocalGateway
from controlplane.clusters.local.nodes import node_set_ready
from controlplane.clusters.models import Cluster, ClusterType, Node, NodePool
from controlplane.clusters.services import node_assign_pools
from controlplane.errors import Clash, Missing
from controlplane.operations.models import Operation
from controlplane.operations.services import operation_cancel, operation_retry
from controlplane.operations.steps import operation_step
from tests import factories
from tests.services.faulty import faulty
from tests.services.world import MIB, World, version_of


@pytest.fixture
def warm(world: World, actor: Actor) -> Any:
    """A version that is Ready on both nodes; nothing is pinned any more."""
    version = version_of(100 * MIB)
    pin, _ = pin_create(actor=actor, spec=PinSpec(version_id=version.pk, pool_ids=(world.pool.pk,)))
    world.settle()
    pin_remove(actor=actor, pin_id=pin.pk)
    world.settle()
    return version


def follow(operation: Operation, world: World, rounds: int = 4) -> Operation:
    """The loop, the agents, the watcher and the worker, each in turn."""
    for _ in range(rounds):
        if NodePool.objects.filter(pk=world.pool.pk).exists():
            world.pool.refresh_from_db()
            world.reconcile()
            world.obey()
            world.observe()
        operation_step(operation_id=operation.pk)
    operation.refresh_from_db()
    return operation


def targets(operation: Operation) -> dict[str, str]:
    return {target.name.split("/")[-1]: target.state for target in operation.targets.all()}


def test_it_has_not_ended_before_its_agents_have(
    world: World, actor: Actor, warm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then they write: a NodeCache that was deleted too early would be there again, for ever."""
    running = [True]
    monkeypatch.setattr(LocalGateway, "delete_agent", lambda gateway, pool: None)
    monkeypatch.setattr(LocalGateway, "has_agents", lambda gateway, pool: running[0])
    operation = follow(pool_delete(actor=actor, pool_id=world.pool.pk), world)
    assert operation.state == "Running" and operation.message == "Its agents are being ended."
    assert not NodePool.objects.filter(pk=world.pool.pk).exists(), "no round brings an agent back"
    node = world.node("n1")
    world.gateway.apply_node_cache(
        NodeCacheSpec(node.name, node.uid, "gpu")
    )  # as one does that has not heard of its end yet
    running[0] = False
    assert follow(operation, world).state == "Succeeded"
    assert not [item for item in world.gateway.list(Kind.NODE_CACHE).items if getattr(item, "node_uid", "") == node.uid]


def test_a_node_that_another_pool_has_by_then_keeps_its_nodecache(
    world: World, actor: Actor, warm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = [True]
    monkeypatch.setattr(LocalGateway, "delete_agent", lambda gateway, pool: None)
    monkeypatch.setattr(LocalGateway, "has_agents", lambda gateway, pool: running[0])
    operation = follow(pool_delete(actor=actor, pool_id=world.pool.pk), world)
    factories.pool(of=world.cluster, name="next", selector={"hearth.dev/pool": "gpu"})
    node_assign_pools(cluster_id=world.cluster.pk)
    node = world.node("n1")
    world.gateway.apply_node_cache(NodeCacheSpec(node.name, node.uid, "gpu"))
    running[0] = False
    assert follow(operation, world).state == "Succeeded"
    assert [item for item in world.gateway.list(Kind.NODE_CACHE).items if getattr(item, "node_uid", "") == node.uid]


def test_it_empties_the_nodes_and_then_goes(world: World, actor: Actor, warm: Any) -> None:
    operation = follow(pool_delete(actor=actor, pool_id=world.pool.pk), world)
    assert operation.state == "Succeeded"
    assert targets(operation) == {"n1": "Succeeded", "n2": "Succeeded"}
    assert not NodePool.objects.filter(pk=world.pool.pk).exists()
    assert set(CacheEntry.objects.values_list("state", flat=True)) == {"Absent"}
    assert world.gateway.list(Kind.NODE_CACHE).items == ()
    assert not NodeProjection.objects.exists()
    assert not any(is_ready_label(label) for node in Node.objects.all() for label in node.labels)
    actions = list(AuditEvent.objects.filter(object_id=str(world.pool.pk)).values_list("action", flat=True))
    assert sorted(actions) == ["operation.succeeded", "pool.delete", "pool.deleted"]


def test_its_mark_on_the_nodes_goes_too(world: World, actor: Actor) -> None:
    world.gateway.set_node_labels("n1", world.links["n1"].node_uid, {POOL_LABEL: "gpu"})
    world.observe()
    assert follow(pool_delete(actor=actor, pool_id=world.pool.pk), world).state == "Succeeded"
    nodes = [item for item in world.gateway.list(Kind.NODE).items if isinstance(item, ObservedNode)]
    assert [POOL_LABEL in node.labels for node in nodes] == [False, False]


def test_it_is_refused_while_pins_want_something_there(world: World, actor: Actor) -> None:
    version = version_of(100 * MIB)
    pin_create(actor=actor, spec=PinSpec(version_id=version.pk, pool_ids=(world.pool.pk,)))
    calls: list[Callable[..., object]] = [partial(pool_delete, actor=actor), pool_delete_preview]
    for call in calls:
        with pytest.raises(Clash, match=version.full_name) as refused:
            call(pool_id=world.pool.pk)
        assert refused.value.code == "pool:user:pinned"
    world.pool.refresh_from_db()
    assert world.pool.deleting_at is None


def test_the_preview_says_what_goes_and_writes_nothing(world: World, actor: Actor, warm: Any) -> None:
    plan = pool_delete_preview(pool_id=world.pool.pk)
    assert [(e.node, e.bytes) for e in plan.evictions] == [("n1", 100 * MIB), ("n2", 100 * MIB)]
    world.pool.refresh_from_db()
    assert world.pool.deleting_at is None
    assert set(CacheEntry.objects.values_list("evict_requested_at", flat=True)) == {None}


def test_what_is_in_use_stays_until_nobody_uses_it(world: World, actor: Actor, warm: Any) -> None:
    world.fleet.use("n1", warm.artifact.digest)
    operation = follow(pool_delete(actor=actor, pool_id=world.pool.pk), world)
    assert operation.state == "Running"
    assert targets(operation) == {"n1": "Running", "n2": "Succeeded"}
    assert world.desired("n1") == {warm.artifact.digest: Action.ENSURE}
    world.fleet.unuse("n1", warm.artifact.digest)
    assert follow(operation, world).state == "Succeeded"


def test_it_waits_for_a_node_that_is_down_and_empties_it_when_it_is_back(world: World, actor: Actor, warm: Any) -> None:
    set_ready(world, "n2", False)
    operation = pool_delete(actor=actor, pool_id=world.pool.pk)
    for _ in range(3):
        world.pool.refresh_from_db()
        world.reconcile()
        world.obey("n1")
        world.observe()
        operation_step(operation_id=operation.pk)
    operation.refresh_from_db()
    assert operation.state == "Running" and targets(operation) == {"n1": "Succeeded", "n2": "Running"}
    set_ready(world, "n2", True)
    assert follow(operation, world).state == "Succeeded"
    assert set(CacheEntry.objects.values_list("state", flat=True)) == {"Absent"}


def set_ready(world: World, name: str, ready: bool) -> None:
    with world.fleet.store.write() as session:
        node_set_ready(session, name, world.links[name].node_uid, ready)
    world.observe()


def test_a_node_that_is_gone_for_good_is_not_waited_for(world: World, actor: Actor, warm: Any) -> None:
    operation = pool_delete(actor=actor, pool_id=world.pool.pk)
    world.fleet.remove("n2")
    del world.links["n2"]
    assert follow(operation, world).state == "Succeeded"
    assert targets(operation) == {"n1": "Succeeded", "n2": "Skipped"}


def test_a_pool_that_was_never_let_in_waits_for_nobody(
    world: World, actor: Actor, warm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its node belonged to another pool before, and what it holds is that one's."""
    Cluster.objects.update(type=ClusterType.KUBERNETES)
    monkeypatch.setattr(pool_deletion, "gateway_for", lambda cluster: world.gateway)
    operation = pool_delete(actor=actor, pool_id=world.pool.pk)
    PoolLoop.objects.update(agent_applied_at=timezone.now())
    operation_step(operation_id=operation.pk)
    assert set(targets(operation).values()) == {"Running"}, "one that was let in is waited for"
    PoolLoop.objects.update(agent_applied_at=None)
    operation_step(operation_id=operation.pk)
    operation.refresh_from_db()
    assert operation.state == "Succeeded" and not NodePool.objects.filter(pk=world.pool.pk).exists()
    assert set(CacheEntry.objects.values_list("state", flat=True)) == {"Ready"}, "no copy was lost"
    assert Node.objects.filter(lost_at=None).count() == 2


def test_trees_that_nobody_knows_go_too_and_foreign_folders_stay(world: World, actor: Actor) -> None:
    tree, part = "sha256-" + "a" * 64, "sha256-" + "b" * 64
    left = (Orphan(tree, 10 * MIB, False), Orphan(part, 5 * MIB, True), Orphan("photos", MIB, False))
    world.report("n1", orphans=left)
    world.observe()
    operation = pool_delete(actor=actor, pool_id=world.pool.pk)
    world.pool.refresh_from_db()
    world.reconcile()
    evicted = {tree.replace("-", ":"): Action.EVICT, part.replace("-", ":"): Action.EVICT}
    assert world.desired("n1") == evicted
    operation_step(operation_id=operation.pk)
    operation.refresh_from_db()
    assert operation.state == "Running"
    world.report("n1", orphans=left[2:])
    world.report("n2")
    world.observe()
    operation_step(operation_id=operation.pk)
    operation.refresh_from_db()
    assert operation.state == "Succeeded"


def test_it_believes_no_report_from_before(world: World, actor: Actor) -> None:
    """Both nodes said that they were empty before they were asked: that says nothing about now."""
    operation = pool_delete(actor=actor, pool_id=world.pool.pk)
    operation_step(operation_id=operation.pk)
    operation.refresh_from_db()
    assert operation.state == "Running"
    assert {target.detail for target in operation.targets.all()} == {"Waiting for the node to report."}


def test_no_pin_can_name_it_any_more(world: World, actor: Actor, warm: Any) -> None:
    pool_delete(actor=actor, pool_id=world.pool.pk)
    with pytest.raises(Clash) as refused:
        pin_create(actor=actor, spec=PinSpec(version_id=warm.pk, pool_ids=(world.pool.pk,)))
    assert refused.value.code == "pin:user:pool-deleting"
    other = factories.pool(of=world.cluster, name="other", selector={"hearth.dev/pool": "other"})
    pin, _ = pin_create(actor=actor, spec=PinSpec(version_id=warm.pk, pool_ids=(other.pk,)))
    with pytest.raises(Clash):
        pin_update(actor=actor, pin_id=pin.pk, changes={"pool_ids": (other.pk, world.pool.pk)})


def test_asking_again_answers_with_the_same_operation(world: World, actor: Actor, warm: Any) -> None:
    first = pool_delete(actor=actor, pool_id=world.pool.pk)
    assert pool_delete(actor=actor, pool_id=world.pool.pk).pk == first.pk
    assert AuditEvent.objects.filter(action="pool.delete").count() == 1


def test_a_cancel_keeps_the_pool_and_what_is_left(world: World, actor: Actor, warm: Any) -> None:
    operation = pool_delete(actor=actor, pool_id=world.pool.pk)
    operation_cancel(actor=actor, operation_id=operation.pk)
    operation_step(operation_id=operation.pk)
    operation.refresh_from_db()
    world.pool.refresh_from_db()
    assert operation.state == "Canceled" and world.pool.deleting_at is None
    world.settle()
    assert set(CacheEntry.objects.values_list("state", flat=True)) == {"Ready"}
    pin_create(actor=actor, spec=PinSpec(version_id=warm.pk, pool_ids=(world.pool.pk,)))


def test_a_cancelled_deletion_can_be_taken_up_again(world: World, actor: Actor, warm: Any) -> None:
    operation = pool_delete(actor=actor, pool_id=world.pool.pk)
    operation_cancel(actor=actor, operation_id=operation.pk)
    operation_step(operation_id=operation.pk)
    again = operation_retry(actor=actor, operation_id=operation.pk)
    assert follow(again, world).state == "Succeeded"


def test_a_cluster_that_does_not_answer_at_the_end_is_asked_again(world: World, actor: Actor, warm: Any) -> None:
    with faulty(world) as gateway:
        gateway.fail("delete_node_cache", Unreachable("no answer"))
        operation = follow(pool_delete(actor=actor, pool_id=world.pool.pk), world)
        assert operation.state == "Running"
        assert NodePool.objects.filter(pk=world.pool.pk).exists()
        gateway.heal()
        assert follow(operation, world).state == "Succeeded"


def test_there_is_nothing_to_delete_twice(world: World, actor: Actor) -> None:
    with pytest.raises(Missing):
        pool_delete(actor=actor, pool_id=factories.pool(of=world.cluster, name="x").cluster_id)
