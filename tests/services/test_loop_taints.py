"""A node that joined with the startup taint gets work once it is warm, and its end is noticed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from caches.services.loop.taints import COLD_TAINT
from caches.services.pins import PinSpec, pin_create
from controlplane.audit.models import AuditEvent
from controlplane.audit.services import Actor
from controlplane.clusters import node_rows
from controlplane.clusters.gateway import Kind, ObservedNode
from tests.services.world import MIB, World, version_of


def taint(world: World, name: str, value: str = COLD_TAINT) -> None:
    world.gateway.set_node_taint(name, world.links[name].node_uid, value, True)
    world.observe()


def taints(world: World, name: str = "n1") -> list[str]:
    world.observe()
    return list(world.node(name).taints)


@pytest.fixture
def tainted(make_world: Callable[..., World]) -> World:
    world = make_world(nodes=2, startup_taint=True)
    taint(world, "n1")
    return world


def test_it_takes_the_taint_only_when_what_is_pinned_is_there(tainted: World, actor: Actor) -> None:
    version = version_of(100 * MIB)
    pin_create(actor=actor, spec=PinSpec(version_id=version.pk, pool_ids=(tainted.pool.pk,)))
    tainted.reconcile()
    assert taints(tainted) == [COLD_TAINT]
    tainted.settle()
    assert taints(tainted) == []
    [event] = AuditEvent.objects.filter(action="node.warmed")
    assert (event.object_name, event.before, event.actor) == ("n1", {"taints": [COLD_TAINT]}, "system")


def test_it_takes_it_at_once_where_nothing_is_pinned(tainted: World) -> None:
    tainted.reconcile()
    assert taints(tainted) == []


def test_it_says_so_once(tainted: World) -> None:
    tainted.reconcile()
    tainted.reconcile()  # the watcher has not told of it yet
    tainted.observe()
    tainted.reconcile()
    assert AuditEvent.objects.filter(action="node.warmed").count() == 1


@pytest.mark.parametrize("value", [f"{COLD_TAINT}:NoSchedule", f"{COLD_TAINT}=true:NoExecute"])
def test_it_knows_the_taint_by_its_key(make_world: Callable[..., World], value: str) -> None:
    world = make_world(nodes=1, startup_taint=True)
    taint(world, "n1", value)
    world.reconcile()
    assert taints(world) == []


def test_it_leaves_other_taints_alone(tainted: World) -> None:
    taint(tainted, "n1", "nvidia.com/gpu:NoSchedule")
    tainted.reconcile()
    assert taints(tainted) == ["nvidia.com/gpu:NoSchedule"]


def test_a_pool_that_did_not_ask_keeps_its_taints(make_world: Callable[..., World]) -> None:
    world = make_world(nodes=1)
    taint(world, "n1")
    world.reconcile()
    assert taints(world) == [COLD_TAINT]


def test_the_startup_taint_is_a_setting_of_the_pool(world: World, actor: Actor) -> None:
    from controlplane.clusters.services import pool_update

    pool_update(actor=actor, pool_id=world.pool.pk, changes={"startup_taint": True})
    world.pool.refresh_from_db()
    assert world.pool.startup_taint is True


def announce(world: World, name: str, at: datetime | None) -> None:
    """The cluster tells of the node's end, or takes it back."""
    [node] = [
        item for item in world.gateway.list(Kind.NODE).items if isinstance(item, ObservedNode) and item.name == name
    ]
    items = [
        item for item in world.gateway.list(Kind.NODE).items if isinstance(item, ObservedNode) and item.name != name
    ]
    told = [*items, replace(node, terminating_at=at)]
    node_rows.nodes_relisted(cluster_id=world.cluster.pk, items=told, at=datetime.now(UTC))


def test_an_announced_end_stops_what_is_wanted_there(world: World, actor: Actor) -> None:
    version: Any = version_of(100 * MIB)
    pin_create(actor=actor, spec=PinSpec(version_id=version.pk, pool_ids=(world.pool.pk,)))
    announce(world, "n1", datetime.now(UTC))
    plan = world.reconcile()
    assert [move.node for move in plan.moves] == ["n2"]
    assert world.desired("n1") == {} and set(world.desired("n2")) == {version.artifact.digest}
    announce(world, "n1", None)
    assert [move.node for move in world.reconcile().moves] == ["n1", "n2"]
