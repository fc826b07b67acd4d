"""What a cluster is told of every artifact: files, where they are, credentials; once, and again when it matters."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from caches.domain.states import NO_MANIFEST
from caches.models import Artifact, CacheEntry, PublishedManifest, SourceConnection
from caches.services.pins import PinSpec, pin_create
from caches.services.publishing import AGAIN_AFTER, AT_ONCE, MISSED_AFTER, artifacts_publish, published_forget
from controlplane.audit.services import Actor
from controlplane.clusters.documents import EntryState
from controlplane.clusters.gateway import NotFound, Unreachable
from controlplane.clusters.models import Node
from tests import factories
from tests.services.faulty import FaultyGateway, faulty
from tests.services.world import MIB, World, version_of


@pytest.fixture
def gateway(world: World) -> Iterator[FaultyGateway]:
    with faulty(world) as made:
        yield made


def publish(world: World, gateway: FaultyGateway, **fields: Any) -> list[str]:
    fields.setdefault("now", timezone.now())
    return artifacts_publish(cluster=world.cluster, gateway=gateway, **fields)[0]


def published(gateway: FaultyGateway) -> list[str]:
    return [manifest.digest for manifest, _ in gateway.made("apply_manifest")]


def test_a_version_that_nobody_pinned_can_be_fetched_by_any_node(world: World, gateway: FaultyGateway) -> None:
    version = version_of(100 * MIB, uri="s3://models/llama")
    assert publish(world, gateway) == []
    link = world.links["n1"]
    assert link.manifest(version.artifact.digest).size_bytes == 100 * MIB
    origin = link.origin(version.artifact.digest)
    assert (origin.uri, origin.size_bytes) == ("s3://models/llama", 100 * MIB)
    assert origin.connection.name == version.connection.name


def test_it_publishes_once(world: World, gateway: FaultyGateway) -> None:
    version_of(100 * MIB)
    publish(world, gateway)
    publish(world, gateway)
    assert len(published(gateway)) == 1


def test_it_looks_after_a_manifest_now_and_then(world: World, gateway: FaultyGateway) -> None:
    """Somebody may have removed it from the cluster."""
    version = version_of(100 * MIB)
    publish(world, gateway)
    world.gateway.delete_manifest(version.artifact.digest)
    publish(world, gateway, now=timezone.now() + AGAIN_AFTER + timedelta(seconds=1))
    assert world.links["n1"].manifest(version.artifact.digest).size_bytes == 100 * MIB


def test_what_a_node_does_not_find_is_published_again_at_once(world: World, gateway: FaultyGateway) -> None:
    """Somebody removed it by hand; five minutes would be five minutes of a cold node."""
    version = version_of(100 * MIB)
    start = timezone.now()
    publish(world, gateway, now=start)
    node = Node.objects.get(name="n1")
    entry = factories.entry(on=node, of=version.artifact, state=EntryState.FAILED, message=NO_MANIFEST)
    publish(world, gateway, now=start + MISSED_AFTER / 2)
    assert len(published(gateway)) == 1, "that was its view of before"
    publish(world, gateway, now=start + MISSED_AFTER)
    assert len(published(gateway)) == 2
    CacheEntry.objects.filter(pk=entry.pk).update(message="The disk is full.")
    publish(world, gateway, now=start + 3 * MISSED_AFTER)
    assert len(published(gateway)) == 2


def test_another_cluster_at_the_same_address_is_told_everything_at_once(world: World, gateway: FaultyGateway) -> None:
    version = version_of(100 * MIB)
    publish(world, gateway)
    world.gateway.delete_manifest(version.artifact.digest)
    published_forget(world.cluster)
    publish(world, gateway)
    assert world.links["n1"].manifest(version.artifact.digest).size_bytes == 100 * MIB


def test_a_store_that_moved_is_told_at_once(world: World, gateway: FaultyGateway) -> None:
    version = version_of(100 * MIB)
    publish(world, gateway)
    SourceConnection.objects.filter(pk=version.connection_id).update(endpoint="https://new.example")
    publish(world, gateway)
    assert world.links["n1"].origin(version.artifact.digest).connection.endpoint == "https://new.example"


def test_a_rotated_secret_is_given_again(world: World, gateway: FaultyGateway, settings: Any, tmp_path: Path) -> None:
    settings.SECRETS_DIR = tmp_path
    version_of(100 * MIB, connection=factories.connection(secret_name="store"))

    def rotate(value: str) -> None:
        path = tmp_path / "store.json"
        path.touch(0o600)
        path.write_text(json.dumps({"access_key_id": "a", "secret_access_key": value}))

    rotate("one")
    publish(world, gateway)
    publish(world, gateway)
    rotate("two")
    publish(world, gateway)
    assert [data["secret_access_key"] for _, data in gateway.made("apply_secret")] == ["one", "two"]
    assert world.links["n1"].secret("store")["secret_access_key"] == "two"


def test_a_secret_that_is_missing_is_said_and_stops_nobody(
    world: World, gateway: FaultyGateway, settings: Any, tmp_path: Path
) -> None:
    settings.SECRETS_DIR = tmp_path
    version = version_of(100 * MIB, connection=factories.connection(secret_name="lost"))
    [problem] = publish(world, gateway)
    assert problem.startswith("secret lost:")
    assert published(gateway) == [version.artifact.digest]


def test_what_a_node_is_told_of_never_waits_for_the_rest(world: World, gateway: FaultyGateway) -> None:
    versions = [version_of(MIB) for _ in range(AT_ONCE + 3)]
    last = max(version.artifact.digest for version in versions)
    publish(world, gateway, first=[last])
    assert published(gateway)[0] == last and len(published(gateway)) == AT_ONCE + 1
    publish(world, gateway)
    assert len(set(published(gateway))) == len(versions)


def test_what_broke_half_way_goes_on_with_the_rest(world: World, gateway: FaultyGateway) -> None:
    for _ in range(3):
        version_of(MIB)
    gateway.fail("apply_manifest", Unreachable("no answer"), after=1, times=1)
    with pytest.raises(Unreachable):
        publish(world, gateway)
    assert PublishedManifest.objects.count() == 1
    publish(world, gateway)
    assert PublishedManifest.objects.count() == 3
    assert len(published(gateway)) == 4


def test_an_artifact_whose_versions_are_gone_is_given_without_an_origin(world: World, gateway: FaultyGateway) -> None:
    version = version_of(100 * MIB)
    digest = version.artifact.digest
    version.delete()
    assert Artifact.objects.filter(digest=digest).exists()
    publish(world, gateway, first=[digest])
    with pytest.raises(NotFound):
        world.links["n1"].origin(digest)


def test_a_round_of_the_loop_publishes_before_it_applies(world: World, actor: Actor, gateway: FaultyGateway) -> None:
    version_of(5 * MIB)
    version = version_of(100 * MIB)
    pin_create(actor=actor, spec=PinSpec(version_id=version.pk, pool_ids=(world.pool.pk,)))
    world.reconcile()
    names = [name for name, _ in gateway.calls]
    assert names.count("apply_manifest") == 2
    assert max(at for at, name in enumerate(names) if name == "apply_manifest") < names.index("apply_node_cache")


def test_each_cluster_is_told(world: World, gateway: FaultyGateway, tmp_path: Path) -> None:
    version = version_of(MIB)
    publish(world, gateway)
    other = World(tmp_path / "other", nodes=1)
    assert artifacts_publish(cluster=other.cluster, gateway=other.gateway, now=timezone.now()) == ([], frozenset())
    assert other.links["n1"].manifest(version.artifact.digest).size_bytes == MIB
