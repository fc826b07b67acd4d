"""Mirroring what agents report: states, changes, transfers, witnesses; late and repeated statuses change nothing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from caches.models import CacheEntry, EntryChange, Transfer, Webhook, WebhookDelivery
from caches.selectors.transfers import throughput_by_connection
from caches.services.entries import entry_retry, entry_scrub, statuses_mirror
from caches.services.pins import PinSpec, pin_create
from controlplane.audit.services import Actor
from controlplane.clusters.documents import EntryState, EntryStatus, Orphan
from controlplane.clusters.gateway import Kind, ObservedNodeCache
from controlplane.errors import Clash
from tests.services.world import MIB, World, failed, ready, version_of


@pytest.fixture
def version(world: World, actor: Actor) -> Any:
    """A pinned version, projected to both nodes; no agent has acted yet."""
    version = version_of(100 * MIB)
    pin_create(actor=actor, spec=PinSpec(version_id=version.pk, pool_ids=(world.pool.pk,)))
    world.reconcile()
    return version


def mirror(world: World) -> int:
    caches = [item for item in world.gateway.list(Kind.NODE_CACHE).items if isinstance(item, ObservedNodeCache)]
    return statuses_mirror(cluster_id=world.cluster.pk, caches=caches)


def test_it_mirrors_a_download_and_keeps_every_change(world: World, version: Any) -> None:
    digest, start = version.artifact.digest, datetime.now(UTC)
    entry = world.entry("n1", version)
    assert (entry.state, entry.desired) == ("Absent", "Ensure")
    world.report(
        "n1",
        EntryStatus(
            digest,
            EntryState.DOWNLOADING,
            bytes_done=40 * MIB,
            bytes_total=100 * MIB,
            bytes_moved=40 * MIB,
            rate_bytes_per_second=5e6,
            eta_seconds=12.0,
            started_at=start,
        ),
    )
    world.observe()
    entry.refresh_from_db()
    assert (entry.state, entry.bytes_done, entry.eta_seconds) == ("Downloading", 40 * MIB, 12.0)
    assert entry.observed_generation == 2
    world.report("n1", ready(digest, 100 * MIB, started_at=start, ready_at=start + timedelta(seconds=20)))
    world.observe()
    states = list(EntryChange.objects.filter(entry=entry).order_by("at").values_list("old_state", "new_state"))
    assert states == [("Absent", "Downloading"), ("Downloading", "Ready")]
    transfer = Transfer.objects.get(entry=entry)
    assert (transfer.bytes_moved, transfer.seconds) == (100 * MIB, 20.0)
    assert transfer.connection == version.connection
    measured = throughput_by_connection(now=start + timedelta(minutes=1))[version.connection.name]
    assert (measured.bytes_per_second, measured.samples) == (100 * MIB / 20, 1)


def test_a_repeated_status_changes_nothing(world: World, version: Any) -> None:
    world.report("n1", ready(version.artifact.digest, 100 * MIB, ready_at=datetime.now(UTC) + timedelta(seconds=1)))
    world.observe()
    before = world.entry("n1", version)
    with CaptureQueriesContext(connection) as queries:
        assert mirror(world) == 2
    assert not [q for q in queries.captured_queries if q["sql"].startswith(("UPDATE", "INSERT"))]
    after = world.entry("n1", version)
    assert after.updated_at == before.updated_at
    assert EntryChange.objects.filter(entry=after).count() == Transfer.objects.filter(entry=after).count() == 1


def test_a_late_status_is_ignored(world: World, version: Any) -> None:
    digest = version.artifact.digest
    old = datetime.now(UTC) - timedelta(minutes=1)
    world.report("n1", ready(digest, 100 * MIB))
    world.observe()
    world.report("n1", failed(digest, "Internal"), reported_at=old)
    world.observe()
    assert world.entry("n1", version).state == "Ready"


def test_a_status_for_another_uid_is_ignored(world: World, version: Any) -> None:
    world.report("n1", ready(version.artifact.digest, 100 * MIB))
    (cache,) = [c for c in world.gateway.list(Kind.NODE_CACHE).items if getattr(c, "node_name", "") == "n1"]
    assert isinstance(cache, ObservedNodeCache)
    forged = ObservedNodeCache("n2", world.node("n2").uid, cache.generation, cache.spec, cache.status)
    assert statuses_mirror(cluster_id=world.cluster.pk, caches=[forged]) == 0


def test_an_entry_that_the_agent_no_longer_has_becomes_absent(world: World, version: Any) -> None:
    world.settle()
    world.held["n1"].clear()
    world.report("n1")
    world.observe()
    entry = world.entry("n1", version)
    assert (entry.state, entry.bytes_done, entry.ready_at) == ("Absent", 0, None)
    assert [move.node for move in world.reconcile().moves] == ["n1"]


def test_an_agent_that_has_just_started_says_nothing_about_entries(world: World, version: Any) -> None:
    world.settle()
    world.held["n1"].clear()
    world.report("n1", observed_generation=0)
    world.observe()
    assert world.entry("n1", version).state == "Ready"


def test_an_artifact_that_nobody_knows_is_left_alone(world: World) -> None:
    world.report("n1", ready("sha256:" + "0" * 64, MIB))
    world.observe()
    assert not CacheEntry.objects.exists()


def test_a_partial_orphan_is_told_to_the_planner(world: World, version: Any) -> None:
    folder = version.artifact.digest.replace(":", "-")
    world.report("n1", orphans=(Orphan(folder, 60 * MIB, True), Orphan("sha256-other", 7 * MIB, False)))
    world.observe()
    plan = world.reconcile()
    assert {move.node: move.bytes for move in plan.moves} == {"n1": 40 * MIB, "n2": 100 * MIB}


def test_a_failure_is_announced_once(world: World, version: Any) -> None:
    Webhook.objects.create(name="pager", url="http://127.0.0.1:9/", secret_name="pager")
    start = datetime.now(UTC)
    status = failed(version.artifact.digest, "AccessDenied", started_at=start)
    for _ in range(2):
        world.report("n1", status)
        world.observe()
        mirror(world)
    delivery = WebhookDelivery.objects.get()
    assert delivery.event == "entry.failed"
    assert (delivery.payload["reason"], delivery.payload["node"]) == ("AccessDenied", "n1")


def test_the_first_witness_is_kept_and_another_one_is_never_ready(world: World, version: Any) -> None:
    digest = version.artifact.digest
    world.report("n1", ready(digest, 100 * MIB, witness="aaa"))
    world.observe()
    version.artifact.refresh_from_db()
    assert version.artifact.witness == "aaa"
    world.report("n2", ready(digest, 100 * MIB, witness="bbb"))
    world.observe()
    entry = world.entry("n2", version)
    assert (entry.state, entry.reason, entry.verify_round) == ("Failed", "IntegrityMismatch", 1)
    mirror(world)
    assert world.entry("n2", version).verify_round == 1
    world.reconcile()
    line = world.line("n2", version)
    assert (line.witness, line.verify_round) == ("aaa", 1)


def test_a_repair_is_not_measured_as_a_download(world: World, version: Any) -> None:
    digest = version.artifact.digest
    world.report("n1", ready(digest, 100 * MIB, ready_at=datetime.now(UTC) + timedelta(seconds=3)))
    world.observe()
    world.report("n1", EntryStatus(digest, EntryState.REPAIRING, bytes_moved=110 * MIB))
    world.observe()
    world.report("n1", ready(digest, 100 * MIB, bytes_moved=120 * MIB))
    world.observe()
    entry = world.entry("n1", version)
    assert (entry.bytes_moved, entry.bytes_recorded) == (120 * MIB, 120 * MIB)
    assert Transfer.objects.filter(entry=entry).count() == 1


def test_it_mirrors_a_fleet_in_a_constant_number_of_queries(world: World, version: Any) -> None:
    def queries() -> int:
        for name in world.links:
            world.report(name, ready(version.artifact.digest, 100 * MIB))
        with CaptureQueriesContext(connection) as captured:
            mirror(world)
        return len(captured)

    few = queries()
    for number in range(4):
        world.add(f"more-{number}")
    world.observe()
    world.reconcile()
    assert queries() <= few


def test_a_retry_raises_the_round_that_the_agent_sees(world: World, version: Any, actor: Actor) -> None:
    world.report("n1", failed(version.artifact.digest, "AccessDenied"))
    world.observe()
    entry = entry_retry(actor=actor, entry_id=world.entry("n1", version).pk)
    assert entry.retry_round == 1
    world.reconcile()
    assert world.line("n1", version).retry_round == 1


def test_only_a_failed_entry_can_be_retried(world: World, version: Any, actor: Actor) -> None:
    world.settle()
    with pytest.raises(Clash, match="Only a Failed entry"):
        entry_retry(actor=actor, entry_id=world.entry("n1", version).pk)


def test_a_scrub_raises_the_round_that_the_agent_sees(world: World, version: Any, actor: Actor) -> None:
    with pytest.raises(Clash, match="Only an entry that is Ready"):
        entry_scrub(actor=actor, entry_id=world.entry("n1", version).pk)
    world.settle()
    operation = entry_scrub(actor=actor, entry_id=world.entry("n1", version).pk)
    assert operation.params["round"] == 1
    world.reconcile()
    assert world.line("n1", version).verify_round == 1
