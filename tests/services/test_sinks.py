"""Increments as the watcher delivers them: only what matters to a plan marks a pool."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from caches.models import CacheEntry, ConsumerSeen, NodeProjection
from caches.services.pins import PinSpec, pin_create
from controlplane.audit.models import AuditEvent
from controlplane.audit.services import Actor
from controlplane.clusters import node_rows
from controlplane.clusters.documents import Action, EntryState, EntryStatus
from controlplane.clusters.gateway import EventType, Kind, ObservedNodeCache, WatchEvent
from controlplane.clusters.models import NodePool
from tests.services.world import MIB, World, version_of


class Watch:
    """Delivers what changed since it was made, rows first, as the watcher does."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.tokens = {kind: world.gateway.list(kind).token for kind in (Kind.NODE, Kind.NODE_CACHE, Kind.CONSUMER)}

    def deliver(self) -> int:
        """How many pools were marked by it."""
        before = self.world.loop().wanted_round
        at = datetime.now(UTC)
        for kind, token in self.tokens.items():
            events: list[WatchEvent] = []
            for event in self.world.gateway.watch(kind, token, 0.05):
                self.tokens[kind] = event.token
                events.append(event)
            events = [event for event in events if event.type is not EventType.BOOKMARK]
            if not events:
                continue
            node_rows.nodes_changed(cluster_id=self.world.cluster.pk, events=events, at=at)
            caches = [
                event.object
                for event in events
                if isinstance(event.object, ObservedNodeCache) and event.type is not EventType.DELETED
            ]
            node_rows.node_statuses(cluster_id=self.world.cluster.pk, items=caches, at=datetime.now(UTC))
            self.world.sink.changed(str(self.world.cluster.pk), tuple(events), at)
        return self.world.loop().wanted_round - before


@pytest.fixture
def version(world: World, actor: Actor) -> Any:
    version = version_of(100 * MIB)
    pin_create(actor=actor, spec=PinSpec(version_id=version.pk, pool_ids=(world.pool.pk,)))
    world.settle()
    return version


@pytest.fixture
def watch(world: World, version: Any) -> Watch:
    watch = Watch(world)
    watch.deliver()
    return watch


def test_a_status_without_news_marks_nothing(world: World, watch: Watch) -> None:
    world.report("n1")
    assert watch.deliver() == 0


def test_progress_is_stored_and_marks_nothing(world: World, watch: Watch, version: Any) -> None:
    digest = version.artifact.digest
    loading = EntryStatus(digest, EntryState.REPAIRING, bytes_done=10, bytes_total=100 * MIB)
    world.report("n1", loading)
    assert watch.deliver() > 0  # Ready → Repairing
    world.report("n1", EntryStatus(digest, EntryState.REPAIRING, bytes_done=20, bytes_total=100 * MIB))
    assert watch.deliver() == 0
    assert world.entry("n1", version).bytes_done == 20


def test_a_disk_that_fills_up_marks_its_pool(world: World, watch: Watch) -> None:
    world.fleet.fill("n1", 200 * MIB)
    world.report("n1")
    assert watch.deliver() > 0
    world.fleet.fill("n1", 200 * MIB + 1)
    world.report("n1")
    assert watch.deliver() == 0


def test_a_node_that_was_silent_is_planned_for_when_it_reports_again(world: World, watch: Watch) -> None:
    """Nothing was planned for it meanwhile, and the next round by itself may be half a minute away."""
    limit = timedelta(seconds=world.pool.freshness_seconds)
    for silence, marked in ((limit - timedelta(seconds=1), False), (limit + timedelta(seconds=1), True)):
        now = datetime.now(UTC)
        world.report("n1", reported_at=now - silence)
        assert watch.deliver() == 0
        world.report("n1", reported_at=now)
        assert (watch.deliver() > 0) is marked
    world.report("n1")
    assert watch.deliver() == 0


def test_a_cordoned_node_marks_its_pool(world: World, watch: Watch) -> None:
    world.fleet.cordon("n1")
    assert watch.deliver() > 0


def test_a_new_node_is_planned_for(world: World, watch: Watch, version: Any) -> None:
    world.add("n3")
    assert watch.deliver() > 0
    assert [move.node for move in world.reconcile().moves] == ["n3"]
    assert world.desired("n3") == {version.artifact.digest: Action.ENSURE}


def test_a_removed_node_closes_its_entries(world: World, watch: Watch, version: Any) -> None:
    entry = world.entry("n1", version)
    world.fleet.remove("n1")
    assert watch.deliver() > 0
    entry.refresh_from_db()
    assert entry.state == "Lost"
    assert CacheEntry.objects.exclude(state="Lost").count() == 1


def test_a_deleted_nodecache_is_applied_again(world: World, watch: Watch) -> None:
    with world.fleet.store.write() as session:
        session.delete(Kind.NODE_CACHE, "n1")
    assert watch.deliver() > 0
    assert not NodeProjection.objects.filter(node=world.node("n1")).exists()
    world.reconcile()
    assert world.desired("n1")
    assert not AuditEvent.objects.filter(action="node-cache.restored").exists(), "it may not have been told of yet"


def test_a_nodecache_that_somebody_deleted_is_audited(world: World, watch: Watch) -> None:
    long_ago = timezone.now() - timedelta(minutes=1)
    NodeProjection.objects.update(applied_at=long_ago)
    NodePool.objects.update(deleting_at=None)
    with world.fleet.store.write() as session:
        session.delete(Kind.NODE_CACHE, "n1")
    watch.deliver()
    [event] = AuditEvent.objects.filter(action="node-cache.restored")
    assert (event.object_name, event.actor) == ("n1", "system")
    NodePool.objects.update(deleting_at=timezone.now())
    with world.fleet.store.write() as session:
        session.delete(Kind.NODE_CACHE, "n2")
    watch.deliver()
    assert AuditEvent.objects.filter(action="node-cache.restored").count() == 1, "what goes with its pool is our doing"


def test_consumers_come_and_go(world: World, watch: Watch, version: Any) -> None:
    digest = version.artifact.digest
    world.fleet.use("n1", digest)
    assert watch.deliver() > 0
    assert ConsumerSeen.objects.get().digests == [digest]
    world.fleet.unuse("n1", digest)
    assert watch.deliver() > 0
    assert not ConsumerSeen.objects.exists()
