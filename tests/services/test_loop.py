"""The loop against a real local gateway: what is planned arrives in NodeCaches, labels follow what is Ready."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.conf import LazySettings
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from caches.domain.labels import ready_label
from caches.models import CacheEntry, NodeProjection
from caches.selectors.pool_view import pool_view
from caches.services.loop.rounds import pool_reconcile, pools_due, pools_mark_dirty
from caches.services.pins import PinSpec, pin_create
from caches.sources.secrets import write_secret
from controlplane.audit.models import AuditEvent
from controlplane.audit.services import Actor
from controlplane.clusters.documents import Action, EntryState, EntryStatus
from controlplane.clusters.gateway import Kind, Unreachable
from controlplane.clusters.local.database import FILE_NAME
from controlplane.clusters.registry import override_gateway
from tests import factories
from tests.services.world import MIB, World, version_of


def pinned(world: World, actor: Actor, mib: int = 100, **fields: Any) -> Any:
    version = version_of(mib * MIB, **fields)
    pin_create(actor=actor, spec=PinSpec(version_id=version.pk, pool_ids=(world.pool.pk,)))
    return version


def test_it_projects_a_pin_to_every_node_and_labels_what_is_ready(world: World, actor: Actor) -> None:
    version = pinned(world, actor)
    plan = world.reconcile()
    assert [move.node for move in plan.moves] == ["n1", "n2"]
    digest = version.artifact.digest
    assert world.desired("n1") == {digest: Action.ENSURE}
    assert world.links["n1"].manifest(digest).size_bytes == 100 * MIB
    assert ready_label(version.artifact.digest) not in world.node("n1").labels
    world.settle(1)
    world.observe()
    assert world.node("n1").labels[ready_label(version.artifact.digest)] == "true"
    assert world.entry("n1", version).state == "Ready"


def test_it_applies_nothing_when_nothing_changed(world: World, actor: Actor) -> None:
    pinned(world, actor)
    world.settle()
    before = {link.desired().generation for link in world.links.values()}  # type: ignore[union-attr]
    world.observe()
    plan = world.reconcile()
    assert plan.moves == () and plan.evictions == ()
    assert {link.desired().generation for link in world.links.values()} == before  # type: ignore[union-attr]


def test_it_takes_the_label_away_as_soon_as_an_entry_is_not_ready(world: World, actor: Actor) -> None:
    version = pinned(world, actor)
    world.settle()
    label = ready_label(version.artifact.digest)
    digest = version.artifact.digest
    world.report("n1", EntryStatus(digest, EntryState.REPAIRING, damaged=("model.bin",), bytes_total=100 * MIB))
    world.observe()
    world.reconcile()
    world.observe()
    assert label not in world.node("n1").labels
    assert label in world.node("n2").labels


def test_it_stays_dirty_and_says_why_when_the_cluster_does_not_answer(world: World, actor: Actor) -> None:
    pinned(world, actor)
    (world.folder / FILE_NAME).rename(world.folder / "away")
    assert pool_reconcile(pool_id=world.pool.pk) is None
    loop = world.loop()
    assert loop.wanted_round > loop.done_round
    assert "Unreachable" in loop.error
    (world.folder / "away").rename(world.folder / FILE_NAME)
    world.reconcile()
    loop = world.loop()
    assert loop.wanted_round == loop.done_round and loop.error == "" and loop.lag_seconds is not None
    assert world.pool.pk not in pools_due(now=timezone.now())


def test_it_applies_again_what_the_cluster_has_lost(world: World, actor: Actor) -> None:
    version = pinned(world, actor)
    world.settle()
    with world.fleet.store.write() as session:
        session.delete(Kind.NODE_CACHE, "n1")
    world.observe()
    assert not NodeProjection.objects.filter(node=world.node("n1")).exists()
    world.reconcile()
    assert version.artifact.digest in world.desired("n1")


def test_it_never_reads_absence_of_a_nodecache_as_eviction(world: World, actor: Actor) -> None:
    version = pinned(world, actor)
    world.settle()
    with world.fleet.store.write() as session:
        session.delete(Kind.NODE_CACHE, "n1")
    world.observe()
    assert world.entry("n1", version).state == "Ready"


def test_it_warms_a_replaced_node_and_closes_the_old_entries(world: World, actor: Actor) -> None:
    version = pinned(world, actor)
    world.settle()
    old = world.entry("n1", version)
    world.replace("n1")
    world.observe()
    old.refresh_from_db()
    assert old.state == "Lost" and old.changes.first().new_state == "Lost"  # type: ignore[union-attr]
    plan = world.reconcile()
    assert [(move.node, move.node_uid) for move in plan.moves] == [("n1", world.node("n1").uid)]
    assert world.desired("n1") == {version.artifact.digest: Action.ENSURE}


def test_it_ignores_the_status_of_a_replaced_incarnation(world: World, actor: Actor) -> None:
    version = pinned(world, actor)
    world.settle()
    stale = world.gateway.list(Kind.NODE_CACHE).items
    world.replace("n1")
    world.observe()
    world.sink.relisted(str(world.cluster.pk), Kind.NODE_CACHE, stale, timezone.now())
    assert not CacheEntry.objects.filter(node=world.node("n1"), state="Ready").exists()
    assert world.entry("n2", version).state == "Ready"


def test_it_audits_a_refusal_once_for_each_change(
    make_world: Callable[..., World], actor: Actor, django_capture_on_commit_callbacks: Any
) -> None:
    world = make_world(nodes=1)
    version = version_of(400 * MIB)
    pin_create(actor=actor, spec=PinSpec(version_id=version.pk, pool_ids=(world.pool.pk,)))
    world.fleet.fill("n1", 700 * MIB)
    world.report("n1")
    world.observe()
    for _ in range(3):
        plan = world.reconcile()
    assert [r.reason for r in plan.refusals] == ["InsufficientCapacity"]
    events = AuditEvent.objects.filter(action="pin.refused")
    assert events.count() == 1
    world.fleet.fill("n1", 0)
    world.report("n1")
    world.observe()
    assert world.reconcile().refusals == ()
    world.fleet.fill("n1", 700 * MIB)
    world.report("n1")
    world.observe()
    world.reconcile()
    assert events.count() == 2


def test_it_publishes_secrets_and_follows_their_rotation(
    world: World, actor: Actor, settings: LazySettings, tmp_path: Any
) -> None:
    settings.SECRETS_DIR = tmp_path / "secrets"
    write_secret("store", {"access_key_id": "one"}, settings.SECRETS_DIR)
    store = factories.connection(secret_name="store")
    pinned(world, actor, connection=store)
    world.reconcile()
    assert world.links["n1"].secret("store") == {"access_key_id": "one"}
    write_secret("store", {"access_key_id": "two"}, settings.SECRETS_DIR)
    world.reconcile()
    assert world.links["n1"].secret("store") == {"access_key_id": "two"}


def test_it_says_which_secret_is_missing_and_goes_on(
    world: World, actor: Actor, settings: LazySettings, tmp_path: Any
) -> None:
    settings.SECRETS_DIR = tmp_path / "none"
    version = pinned(world, actor, connection=factories.connection(secret_name="absent"))
    world.reconcile()
    assert "absent" in world.loop().error
    assert version.artifact.digest in world.desired("n1")


def test_it_keeps_a_connections_limit_over_all_pools(world: World, actor: Actor) -> None:
    store = factories.connection(max_downloads=3)
    first, second = version_of(10 * MIB, connection=store), version_of(10 * MIB, connection=store)
    other = factories.pool(of=world.cluster)
    busy = [factories.node(of=other) for _ in range(2)]
    for node in busy:
        factories.entry(on=node, of=first.artifact, state=EntryState.DOWNLOADING)
    for version in (first, second):
        pin_create(actor=actor, spec=PinSpec(version_id=version.pk, pool_ids=(world.pool.pk,)))
    plan = world.reconcile()
    assert len(plan.moves) == 1
    assert {wait.reason for wait in plan.waits} == {"Pacing"}


def test_it_shares_a_stores_rate_among_the_nodes_that_read_from_it(world: World, actor: Actor) -> None:
    store = factories.connection(bytes_per_second=6_000_000)
    version = pinned(world, actor, connection=store)
    unlimited = pinned(world, actor)
    elsewhere = factories.node(of=factories.pool(of=world.cluster))
    factories.entry(on=elsewhere, of=version.artifact, state=EntryState.DOWNLOADING)
    factories.entry(on=factories.node(of=elsewhere.pool), of=version.artifact)  # Ready: it reads no more
    world.reconcile()
    rates = {line.name: line.bytes_per_second for line in world.spec("n1").connections}
    assert rates == {store.name: 2_000_000, unlimited.connection.name: None}


@pytest.mark.parametrize("paused", ["pool", "cluster"])
def test_it_tells_the_agents_of_a_pause(world: World, actor: Actor, paused: str) -> None:
    target = world.pool if paused == "pool" else world.cluster
    type(target)._default_manager.filter(pk=target.pk).update(paused=True)
    pinned(world, actor)
    plan = world.reconcile()
    assert plan.moves == () and {wait.reason for wait in plan.waits} == {"Paused"}
    assert world.spec("n1").limits.paused


def test_it_gathers_a_pool_in_a_constant_number_of_queries(world: World) -> None:
    def queries() -> int:
        pool = type(world.pool).objects.select_related("cluster").get(pk=world.pool.pk)
        with CaptureQueriesContext(
            connection,
        ) as captured:
            pool_view(pool, now=timezone.now())
        return len(captured)

    version = factories.version()
    factories.pin(of=version, pools=(world.pool,))
    factories.entry(on=world.node("n1"), of=version.artifact)
    few = queries()
    for _ in range(5):
        more = factories.version()
        factories.pin(of=more, pools=(world.pool,))
        for node in [factories.node(of=world.pool) for _ in range(2)]:
            factories.entry(on=node, of=more.artifact)
    assert queries() == few <= 7


def test_it_reconciles_in_queries_that_do_not_grow_with_settled_entries(world: World, actor: Actor) -> None:
    def queries() -> int:
        with CaptureQueriesContext(connection) as captured:
            world.reconcile()
        return len(captured)

    pinned(world, actor, 10)
    world.settle()
    few = queries()
    for _ in range(3):
        pinned(world, actor, 10)
    world.settle()
    assert queries() == few


def test_a_pool_that_nobody_marked_is_due_after_a_while_and_a_new_one_at_once(world: World) -> None:
    world.reconcile()
    now = timezone.now()
    assert world.pool.pk not in pools_due(now=now)
    assert world.pool.pk in pools_due(now=now + timedelta(seconds=31))
    fresh = factories.pool(of=world.cluster)
    assert fresh.pk in pools_due(now=now)


def test_marking_keeps_the_time_of_the_oldest_request(world: World) -> None:
    world.reconcile()
    pools_mark_dirty(pool_ids=[world.pool.pk])
    first = world.loop()
    pools_mark_dirty(pool_ids=[world.pool.pk])
    second = world.loop()
    assert second.wanted_round == first.wanted_round + 1
    assert second.wanted_at == first.wanted_at is not None


def test_a_gateway_that_throttles_leaves_the_pool_dirty(world: World, actor: Actor) -> None:
    pinned(world, actor)

    class Busy:
        def __getattr__(self, name: str) -> Any:
            def refuse(*args: object, **kwargs: object) -> None:
                raise Unreachable(f"{name}: no answer")

            return refuse

    override_gateway(world.cluster.pk, Busy())
    try:
        assert pool_reconcile(pool_id=world.pool.pk) is None
    finally:
        override_gateway(world.cluster.pk, None)
    assert world.loop().wanted_round > world.loop().done_round
