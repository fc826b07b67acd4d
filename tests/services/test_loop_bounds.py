"""No size of a pool and no slow cluster makes a round longer than a task may be: it stops, and the next one goes on."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from caches.domain.labels import ready_label
from caches.models import CacheEntry, NodeProjection, PoolLoop
from caches.services.entries import entry_evict
from caches.services.loop import fan_out
from caches.services.loop import rounds as loop
from caches.services.loop.round_budget import RoundBudget
from caches.services.loop.rounds import pools_due
from caches.services.pins import PinSpec, pin_create, pin_remove
from controlplane.audit.models import AuditEvent
from controlplane.audit.services import Actor
from controlplane.clusters.documents import Action
from tests.services.faulty import FaultyGateway, faulty
from tests.services.world import MIB, World, version_of

NODES, A_ROUND = 5, 2


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Rounds whose time is up at once, so that each does only what every round does; what they queued."""
    queued: list[Any] = []
    monkeypatch.setattr(RoundBudget, "open", classmethod(lambda cls: cls(float("-inf"))))
    monkeypatch.setattr(fan_out, "AT_LEAST", A_ROUND)
    monkeypatch.setattr("caches.services.projecting.CHUNK", A_ROUND)
    monkeypatch.setattr(loop, "publish", lambda task, *ids, countdown=0.0: queued.append(task))
    return queued


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    return make_world(nodes=NODES, max_downloads=100)


def pinned(world: World, actor: Actor) -> Any:
    version = version_of(100 * MIB)
    pin_create(actor=actor, spec=PinSpec(version_id=version.pk, pool_ids=(world.pool.pk,)))
    return version


def told(gateway: FaultyGateway) -> list[str]:
    return [spec.node_name for (spec,) in gateway.made("apply_node_cache")]


def is_dirty(world: World) -> bool:
    return world.loop().wanted_round > world.loop().done_round


def test_a_round_whose_time_is_up_stops_and_the_next_one_goes_on(world: World, actor: Actor, short: list[Any]) -> None:
    version = pinned(world, actor)
    asked_at = world.loop().wanted_at
    with faulty(world) as gateway:
        assert world.reconcile().moves, "the whole plan is answered, however little of it was told"
        assert told(gateway) == ["n1", "n2"]
        assert is_dirty(world) and world.pool.pk in pools_due(now=timezone.now()), "a lost message loses nothing"
        assert short == ["caches.pool_reconcile"], "the rest is queued at once"
        assert world.loop().wanted_at == asked_at, "what was asked for still waits for its answer"
        world.reconcile()
        assert told(gateway) == ["n1", "n2", "n3", "n4"]
        world.reconcile()
        assert sorted(told(gateway)) == sorted(world.links), "each is told once"
    assert not is_dirty(world) and len(short) == 2 and world.loop().lag_seconds is not None
    assert all(world.desired(name) == {version.artifact.digest: Action.ENSURE} for name in world.links)


def test_no_node_is_told_of_what_there_was_no_time_to_publish(world: World, actor: Actor, short: list[Any]) -> None:
    digests = {pinned(world, actor).artifact.digest for _ in range(2)}
    with faulty(world) as gateway:
        world.reconcile()
        assert len(gateway.made("apply_manifest")) == 1 and told(gateway) == [] and is_dirty(world)
        for _ in range(3):
            world.reconcile()
        assert {manifest.digest for manifest, _ in gateway.made("apply_manifest")} == digests
        assert sorted(told(gateway)) == sorted(world.links), "each is told once, of everything"
    assert not is_dirty(world)


def test_a_round_that_nobody_asked_for_is_gone_on_with_too(world: World, actor: Actor, short: list[Any]) -> None:
    pinned(world, actor)
    for _ in range(3):
        world.reconcile()
    NodeProjection.objects.update(spec_hash="")
    PoolLoop.objects.update(reconciled_at=timezone.now() - timedelta(hours=1))
    world.reconcile()
    assert is_dirty(world) and world.loop().wanted_at is not None


def test_who_waited_longest_is_told_first(world: World, actor: Actor, short: list[Any]) -> None:
    pinned(world, actor)
    for _ in range(3):
        world.reconcile()
    long_ago = timezone.now() - timedelta(hours=1)
    NodeProjection.objects.filter(node__name__in=("n4", "n5")).update(applied_at=long_ago)
    pinned(world, actor)
    with faulty(world) as gateway:
        world.reconcile()
        assert sorted(told(gateway)) == ["n4", "n5"]
        pinned(world, actor)  # before the others had their turn
        world.reconcile()
        assert not {"n4", "n5"} & set(told(gateway)[2:])


def test_labels_are_set_once_though_the_watcher_is_slow(world: World, actor: Actor, short: list[Any]) -> None:
    version = pinned(world, actor)
    for _ in range(3):
        world.reconcile()
    world.obey()
    world.observe()
    with faulty(world) as gateway:
        for _ in range(4):  # nothing is observed in between
            world.reconcile()
        assert sorted(name for name, *_ in gateway.made("set_node_labels")) == sorted(world.links)
    assert not is_dirty(world)
    world.observe()
    assert all(ready_label(version.artifact.digest) in world.node(name).labels for name in world.links)


@pytest.mark.parametrize("call", ["apply_node_cache", "set_node_labels"])
@pytest.mark.parametrize("after", [1, 2])
def test_a_worker_killed_in_a_short_round_costs_a_repeat(
    world: World, actor: Actor, short: list[Any], call: str, after: int
) -> None:
    pinned(world, actor)
    with faulty(world) as gateway:
        gateway.fail(call, KeyboardInterrupt(), times=1, after=after)  # type: ignore[arg-type]
        for _ in range(8):
            try:
                world.reconcile()
            except KeyboardInterrupt:
                assert world.pool.pk in pools_due(now=timezone.now())
            world.obey(*[name for name in world.links if world.known(name)])
            world.observe(news_only=True)
        assert max(map(told(gateway).count, world.links)) <= 2, "what was told before the kill may be told again"
    assert not is_dirty(world)
    assert CacheEntry.objects.filter(state="Ready").count() == CacheEntry.objects.count() == NODES
    generations = {link.desired().generation for link in world.links.values()}  # type: ignore[union-attr]
    assert generations == {2}, "the agents' first reports made them; Hearth wrote each once"
    assert not AuditEvent.objects.filter(action="node-cache.repaired").exists(), "Hearth is nobody else"


def test_only_confirmed_evictions_go_and_the_others_are_gone_on_with(
    world: World, actor: Actor, short: list[Any]
) -> None:
    version = version_of(100 * MIB)
    pin, _ = pin_create(actor=actor, spec=PinSpec(version_id=version.pk, pool_ids=(world.pool.pk,)))
    for _ in range(3):
        world.reconcile()
    world.obey()
    world.observe()
    for _ in range(3):
        world.reconcile()
    pin_remove(actor=actor, pin_id=pin.pk)
    for name in world.links:
        entry_evict(actor=actor, entry_id=world.entry(name, version).pk)
    with faulty(world) as gateway:
        world.reconcile()
        listed = {name for name, _ in gateway.made("consumers")}
        assert len(listed) == A_ROUND and is_dirty(world)
        going = {name for name in world.links if Action.EVICT in world.desired(name).values()}
        assert going <= listed, "nothing goes without a listing of its node"
    for _ in range(12):
        world.reconcile()
        world.obey()
        world.observe(news_only=True)
    assert not CacheEntry.objects.exclude(state="Absent").exists() and not is_dirty(world)


def test_shares_of_a_budget_end_before_it_and_put_off_into_the_same_account(settings: Any) -> None:
    budget = RoundBudget.open()
    share = budget.share(0.5)
    assert share.ends < budget.ends and not budget.spent and not share.spent
    share.put_off(3)
    budget.put_off(0)
    assert (budget.left_over, share.left_over) == (3, 3)
    spent = RoundBudget(float("-inf"))
    assert spent.spent and spent.share(0.5).spent
    settings.CELERY_TASK_SOFT_TIME_LIMIT = 0
    assert RoundBudget.open().spent
