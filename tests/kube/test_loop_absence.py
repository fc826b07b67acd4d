"""Absence never evicts on a real API server, whatever is lost; a pool that goes takes its own and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from caches.domain.labels import ready_label
from caches.models import CacheEntry, ModelVersion
from caches.services.adoption import cluster_adopt
from caches.services.pins import PinSpec, pin_create, pin_remove
from caches.services.pool_deletion import delete_step, pool_delete
from controlplane.audit.services import SYSTEM
from controlplane.clusters.documents import Action
from controlplane.clusters.gateway import NotFound
from controlplane.clusters.kubernetes import names
from controlplane.clusters.models import NodePool
from controlplane.operations.models import Operation
from tests import factories
from tests.kube.world import KubeWorld
from tests.services.lost import lose_everything
from tests.services.world import MIB, version_of
from tests.waiting import until

pytestmark = pytest.mark.django_db


@pytest.fixture
def world(make_world: Callable[..., KubeWorld]) -> KubeWorld:
    return make_world(nodes=3)


@pytest.fixture
def pinned(world: KubeWorld) -> Any:
    lab = factories.connection(name="lab", type="S3", allowed=["models"])
    version = version_of(100 * MIB, connection=lab, model="llama", version="v1", uri="s3://models/llama")
    pin_create(actor=SYSTEM, spec=PinSpec(version_id=version.pk, pool_ids=(world.pool.pk,)))
    world.settle()
    return version


def lines(world: KubeWorld) -> dict[str, dict[str, Action]]:
    return {name: world.desired(name) for name in world.names}


def exists(world: KubeWorld, path: str) -> bool:
    try:
        world.api.get(path)
    except NotFound:
        return False
    return True


def test_a_fresh_database_changes_nothing_and_adopts_everything(world: KubeWorld, pinned: Any) -> None:
    digest = pinned.artifact.digest
    before, generations = lines(world), world.generations()
    lose_everything()
    for _ in range(2):
        world.observe()
        world.reconcile()
        world.obey()
    assert lines(world) == before == {name: {digest: Action.ENSURE} for name in world.names}
    assert world.generations() == generations
    assert all(ready_label(digest) in world.labels(name) for name in world.names)
    assert "manage.py adopt" in world.loop().error

    found = cluster_adopt(actor=SYSTEM, cluster_id=world.cluster.pk)
    assert (found.versions, found.connections, found.copies) == (["llama v1"], ["lab"], 3)
    assert (found.not_adopted, found.orphans) == ([], [])
    world.observe()
    plan = world.reconcile()
    assert (plan.moves, plan.evictions) == ((), ())
    assert {entry.state for entry in CacheEntry.objects.all()} == {"Ready"}
    assert all(ready_label(digest) in world.labels(name) for name in world.names)
    version = ModelVersion.objects.get()
    pin_create(actor=SYSTEM, spec=PinSpec(version_id=version.pk, pool_ids=(world.pool.pk,)))
    assert world.reconcile().moves == ()
    assert world.loop().error == ""


def test_a_node_cache_that_somebody_deleted_is_written_again(world: KubeWorld, pinned: Any) -> None:
    first = world.names[0]
    wanted = world.spec(first)
    world.api.delete(f"{names.NODE_CACHES}/{first}")
    world.observe()
    assert CacheEntry.objects.filter(node__name=first, state="Ready").count() == 1, "it is not there is no word on it"
    world.reconcile()
    assert world.spec(first) == wanted
    world.report(first)
    world.observe()
    world.reconcile()
    assert ready_label(pinned.artifact.digest) in world.labels(first)


def test_all_of_them_deleted_at_once_evicts_nothing(world: KubeWorld, pinned: Any) -> None:
    world.api.delete(names.NODE_CACHES)
    world.observe()
    plan = world.reconcile()
    assert plan.evictions == ()
    assert lines(world) == {name: {pinned.artifact.digest: Action.ENSURE} for name in world.names}
    assert {entry.state for entry in CacheEntry.objects.all()} == {"Ready"}


def ended(world: KubeWorld, operation: Operation) -> bool:
    """One step; no kubelet says that the pods of its nodes have ended, so that is said here."""
    for pod in world.api.get(names.AGENT_PODS)["items"]:
        if "deletionTimestamp" in pod["metadata"]:
            world.api.delete(f"{names.AGENT_PODS}/{pod['metadata']['name']}", grace_seconds=0)
    delete_step(operation.pk)
    operation.refresh_from_db()
    return operation.state == "Succeeded"


def test_a_pool_that_is_deleted_takes_its_own_and_nothing_else(world: KubeWorld, pinned: Any) -> None:
    """Also from a node that was down meanwhile: it is waited for, and emptied when it is back."""
    *up, down = world.names
    other = factories.pool(of=world.cluster, name="other")
    daemon = f"{names.DAEMON_SETS}/hearth-agent-gpu"
    theirs = {"metadata": {"name": "theirs"}, "apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "b"}}
    maps = f"/api/v1/namespaces/{names.NODES_NAMESPACE}/configmaps"
    world.api.apply(f"{maps}/theirs", theirs, manager="somebody")
    world.label(up[0], {"team": "search"})
    assert exists(world, daemon)
    pin_remove(actor=SYSTEM, pin_id=pinned.pins.get().pk)
    operation = pool_delete(actor=SYSTEM, pool_id=world.pool.pk)

    for _ in range(4):
        world.observe()
        world.reconcile()
        world.obey(*up)
    delete_step(operation.pk)
    assert [world.held[name] for name in up] == [{}, {}]
    assert world.held[down] != {} and world.desired(down) == {pinned.artifact.digest: Action.EVICT}
    assert exists(world, daemon) and NodePool.objects.filter(name="gpu").exists(), "one node has not said it is empty"

    world.obey(down)
    world.observe()
    until(lambda: ended(world, operation), "the agents have ended, and then the deletion")
    assert not exists(world, daemon)
    assert world.generations() == {}
    assert not any(ready_label(pinned.artifact.digest) in world.labels(name) for name in world.names)
    assert list(NodePool.objects.filter(cluster=world.cluster)) == [other]
    assert exists(world, f"{maps}/theirs") and world.labels(up[0])["team"] == "search"
    assert [len(world.api.get(names.NODES)["items"]), len(list(world.gateway.manifests()))] == [3, 1]
    world.api.delete(f"{maps}/theirs")
