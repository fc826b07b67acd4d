"""A cluster that asks for patience gets it: no round before the time it named, on any of its pools and on no other."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from caches.models import PoolLoop
from caches.services.entries import entry_evict
from caches.services.loop.patience import LONGEST
from caches.services.loop.rounds import pool_reconcile, pools_due, pools_mark_dirty
from caches.services.pins import PinSpec, pin_create
from controlplane.audit.services import Actor
from controlplane.clusters.documents import Action
from controlplane.clusters.gateway import Throttled, Unreachable
from tests import factories
from tests.services.faulty import FaultyGateway, faulty
from tests.services.world import MIB, World, version_of


@pytest.fixture
def gateway(world: World) -> Iterator[FaultyGateway]:
    with faulty(world) as made:
        yield made


@pytest.fixture
def pinned(world: World, actor: Actor) -> Any:
    version = version_of(100 * MIB)
    pin_create(actor=actor, spec=PinSpec(version_id=version.pk, pool_ids=(world.pool.pk,)))
    return version


def throttled(world: World, gateway: FaultyGateway, seconds: float) -> timedelta:
    """One round that is told to wait; how long it is waited for."""
    gateway.fail("apply_manifest", Throttled("slow down", seconds), times=1)
    before = timezone.now()
    assert pool_reconcile(pool_id=world.pool.pk) is None
    loop = world.loop()
    assert loop.not_before is not None and loop.wanted_round > loop.done_round
    return loop.not_before - before


def test_nothing_is_asked_before_the_time_that_the_cluster_named(
    world: World, pinned: Any, gateway: FaultyGateway
) -> None:
    assert throttled(world, gateway, 60.0) >= timedelta(seconds=60)
    asked = len(gateway.calls)
    assert pool_reconcile(pool_id=world.pool.pk) is None
    pools_mark_dirty(pool_ids=[world.pool.pk])  # whatever happens meanwhile
    assert pool_reconcile(pool_id=world.pool.pk) is None
    assert len(gateway.calls) == asked
    named = world.loop().not_before
    assert named is not None
    assert pools_due(now=named - timedelta(seconds=1)) == []
    assert pools_due(now=named) == [world.pool.pk]


def test_the_round_goes_through_afterwards(world: World, pinned: Any, gateway: FaultyGateway) -> None:
    throttled(world, gateway, 60.0)
    PoolLoop.objects.update(not_before=timezone.now())
    assert pool_reconcile(pool_id=world.pool.pk) is not None
    assert world.desired("n1") == {pinned.artifact.digest: Action.ENSURE}
    assert world.loop().error == ""


@pytest.mark.parametrize(("seconds", "waited"), [(0.0, 0.0), (1.5, 1.5), (1e9, LONGEST.total_seconds())])
def test_it_waits_no_longer_than_sense(
    world: World, pinned: Any, gateway: FaultyGateway, seconds: float, waited: float
) -> None:
    assert timedelta(seconds=waited) <= throttled(world, gateway, seconds) <= timedelta(seconds=waited + 60)


def test_all_pools_of_the_cluster_wait_and_no_other(world: World, pinned: Any, gateway: FaultyGateway) -> None:
    beside, elsewhere = factories.pool(of=world.cluster, name="beside"), factories.pool()
    pools_mark_dirty(pool_ids=[beside.pk, elsewhere.pk])
    throttled(world, gateway, 60.0)
    asked = len(gateway.calls)
    assert pool_reconcile(pool_id=beside.pk) is None and len(gateway.calls) == asked
    assert pools_due(now=timezone.now()) == [elsewhere.pk]


def test_a_later_word_that_is_shorter_shortens_nothing(world: World, pinned: Any, gateway: FaultyGateway) -> None:
    pools_mark_dirty(pool_ids=[world.pool.pk])
    named = timezone.now() + timedelta(seconds=200)
    # Said to another pool's round while this one was already on its way.
    gateway.before("apply_manifest", lambda: PoolLoop.objects.update(not_before=named))
    gateway.fail("apply_node_cache", Throttled("slow down", 1.0))
    assert pool_reconcile(pool_id=world.pool.pk) is None
    assert world.loop().not_before == named


def test_a_cluster_that_does_not_answer_asked_for_nothing(world: World, pinned: Any, gateway: FaultyGateway) -> None:
    gateway.fail("apply_manifest", Unreachable("no answer"), times=1)
    assert pool_reconcile(pool_id=world.pool.pk) is None
    assert world.loop().not_before is None
    assert pool_reconcile(pool_id=world.pool.pk) is not None


@pytest.mark.parametrize("call", ["set_node_labels", "consumers"])
def test_no_further_node_is_asked_about_its_use(world: World, actor: Actor, gateway: FaultyGateway, call: str) -> None:
    version = version_of(100 * MIB)
    world.warm(version)
    for name in ("n1", "n2"):
        entry_evict(actor=actor, entry_id=world.entry(name, version).pk)
    gateway.fail(call, Throttled("slow down", 60.0))
    gateway.calls.clear()
    assert pool_reconcile(pool_id=world.pool.pk) is None
    assert len(gateway.made(call)) == 1
    assert "Throttled" in world.loop().error and world.loop().not_before is not None
    assert world.desired("n1")[version.artifact.digest] is Action.ENSURE
