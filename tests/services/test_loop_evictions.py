"""Evictions are confirmed: label first, then a fresh listing; where none can be had, nothing goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from caches.domain.labels import ready_label
from caches.models import ConsumerSeen
from caches.services.entries import entry_evict, entry_evict_preview
from caches.services.loop.rounds import pool_reconcile
from caches.services.pins import PinSpec, pin_create, pin_remove
from controlplane.audit.services import Actor
from controlplane.clusters.documents import Action, Consumer
from controlplane.clusters.gateway import Unreachable
from controlplane.errors import Clash
from tests.services.faulty import FaultyGateway, faulty
from tests.services.world import MIB, World, version_of


@pytest.fixture
def gateway(world: World) -> Iterator[FaultyGateway]:
    with faulty(world) as made:
        yield made


@pytest.fixture
def warm(world: World) -> Any:
    """A version that is Ready on both nodes and that no pin wants."""
    version = version_of(300 * MIB)
    world.warm(version)
    return version


def test_it_evicts_on_request_label_before_listing_before_spec(
    world: World, actor: Actor, warm: Any, gateway: FaultyGateway
) -> None:
    entry_evict(actor=actor, entry_id=world.entry("n1", warm).pk)
    plan = world.reconcile()
    assert [(e.node, e.reason) for e in plan.evictions] == [("n1", "Manual")]
    assert world.desired("n1")[warm.artifact.digest] is Action.EVICT
    names = [name for name, _ in gateway.calls]
    assert names.index("set_node_labels") < names.index("consumers") < names.index("apply_node_cache")
    labels: Mapping[str, None] = gateway.calls[names.index("set_node_labels")][1][2]
    assert labels == {ready_label(warm.artifact.digest): None}
    world.settle()
    assert world.entry("n1", warm).state == "Absent"
    assert world.entry("n2", warm).state == "Ready"


def test_it_does_not_evict_what_a_fresh_listing_shows_in_use(
    world: World, actor: Actor, warm: Any, gateway: FaultyGateway
) -> None:
    entry_evict(actor=actor, entry_id=world.entry("n1", warm).pk)
    # Nobody told the watcher yet: only the fresh listing knows.
    world.fleet.use("n1", warm.artifact.digest)
    plan = world.reconcile()
    assert plan.evictions == ()
    assert world.desired("n1")[warm.artifact.digest] is Action.ENSURE
    world.observe()
    world.reconcile()
    world.observe()
    assert ready_label(warm.artifact.digest) in world.node("n1").labels  # its label came back


def test_it_evicts_once_the_last_consumer_is_gone(world: World, actor: Actor, warm: Any) -> None:
    entry_evict(actor=actor, entry_id=world.entry("n1", warm).pk)
    world.fleet.use("n1", warm.artifact.digest)
    world.reconcile()
    world.fleet.unuse("n1", warm.artifact.digest)
    world.observe()
    assert [e.node for e in world.reconcile().evictions] == ["n1"]


@pytest.mark.parametrize("call", ["consumers", "set_node_labels"])
def test_it_evicts_nothing_where_the_answer_cannot_be_had(
    world: World, actor: Actor, warm: Any, gateway: FaultyGateway, call: str
) -> None:
    entry_evict(actor=actor, entry_id=world.entry("n1", warm).pk)
    gateway.fail(call, Unreachable("no answer"))
    pool_reconcile(pool_id=world.pool.pk)
    assert world.desired("n1")[warm.artifact.digest] is Action.ENSURE


def test_it_makes_room_only_with_confirmed_evictions(make_world: Callable[..., World], actor: Actor) -> None:
    world = make_world(nodes=1)
    old, new = version_of(500 * MIB), version_of(500 * MIB)
    pin, _ = pin_create(actor=actor, spec=PinSpec(version_id=old.pk, pool_ids=(world.pool.pk,)))
    world.settle()
    pin_remove(actor=actor, pin_id=pin.pk)
    pin_create(actor=actor, spec=PinSpec(version_id=new.pk, pool_ids=(world.pool.pk,)))
    world.fleet.use("n1", old.artifact.digest)
    plan = world.reconcile()
    assert plan.evictions == () and len(plan.refusals) == 1
    assert world.desired("n1") == {old.artifact.digest: Action.ENSURE}
    world.fleet.unuse("n1", old.artifact.digest)
    plan = world.reconcile()
    assert [e.digest for e in plan.evictions] == [old.artifact.digest]
    assert world.desired("n1") == {old.artifact.digest: Action.EVICT, new.artifact.digest: Action.ENSURE}
    world.settle()
    assert world.entry("n1", new).state == "Ready"


def test_a_preview_of_an_eviction_writes_nothing(world: World, warm: Any) -> None:
    entry = world.entry("n1", warm)
    plan = entry_evict_preview(entry_id=entry.pk)
    assert [e.node for e in plan.evictions] == ["n1"]
    entry.refresh_from_db()
    assert entry.evict_requested_at is None


def test_it_refuses_to_evict_what_is_pinned(world: World, actor: Actor) -> None:
    version = version_of(10 * MIB)
    pin_create(actor=actor, spec=PinSpec(version_id=version.pk, pool_ids=(world.pool.pk,)))
    world.settle()
    with pytest.raises(Clash) as refused:
        entry_evict(actor=actor, entry_id=world.entry("n1", version).pk)
    assert refused.value.code == "entry:user:protected"
    assert "Pinned" in refused.value.detail


def test_it_refuses_to_evict_what_the_watcher_saw_in_use(world: World, actor: Actor, warm: Any) -> None:
    world.fleet.use("n1", warm.artifact.digest)
    world.observe()
    assert ConsumerSeen.objects.get(node=world.node("n1")).digests == [warm.artifact.digest]
    with pytest.raises(Clash, match="InUse"):
        entry_evict(actor=actor, entry_id=world.entry("n1", warm).pk)


def test_it_forgets_consumers_that_are_gone(world: World, warm: Any) -> None:
    world.fleet.use("n1", warm.artifact.digest)
    world.fleet.use("n2", warm.artifact.digest)
    world.observe()
    world.fleet.unuse("n1", warm.artifact.digest)
    world.observe()
    assert [seen.node.name for seen in ConsumerSeen.objects.all()] == ["n2"]
    assert isinstance(world.gateway.consumers("n2", world.node("n2").uid)[0], Consumer)
