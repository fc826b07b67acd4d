"""Two hands on one cluster: what people and other controllers change is repaired and audited, and never fought over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.utils import timezone

from caches.domain.labels import WEIGHTS_READY, ready_label
from caches.models import CacheEntry
from caches.services.loop.labels import SEEN_WITHIN
from caches.services.pins import PinSpec, pin_create
from caches.services.projecting import REPAIRS
from controlplane.audit.models import AuditEvent
from controlplane.audit.services import SYSTEM
from controlplane.clusters.documents import Action, EntryState
from controlplane.clusters.kubernetes import names, objects
from controlplane.clusters.kubernetes.gateway import KubernetesGateway
from tests.kube.world import KubeWorld, sent
from tests.services.world import MIB, version_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def world(make_world: Callable[..., KubeWorld]) -> KubeWorld:
    return make_world(nodes=3)


@pytest.fixture
def pinned(world: KubeWorld) -> Any:
    """A version that is warm on every node, and quiet."""
    version = version_of(100 * MIB)
    pin_create(actor=SYSTEM, spec=PinSpec(version_id=version.pk, pool_ids=(world.pool.pk,)))
    world.settle()
    return version


def told(action: str) -> list[tuple[str, Any]]:
    events = AuditEvent.objects.filter(action=action).order_by("at", "id")
    return [(event.object_name, event.after) for event in events]


def requests(world: KubeWorld) -> Callable[[], dict[str, int]]:
    assert isinstance(world.gateway, KubernetesGateway)
    return sent(world.gateway.client)


def test_a_quiet_fleet_costs_no_writes(world: KubeWorld, pinned: Any) -> None:
    assert CacheEntry.objects.filter(state=EntryState.READY).count() == 3
    assert all(ready_label(pinned.artifact.digest) in world.labels(name) for name in world.names)
    before, count = world.generations(), requests(world)
    world.observe()
    world.reconcile()
    assert world.generations() == before
    assert count().keys() == {"GET"}, "three listings, and nothing is written"


@pytest.mark.parametrize(
    ("change", "managers"),
    [
        ({"desired": []}, ["kubectl-edit"]),
        ({"limits": {"maxDownloads": 63}}, ["kubectl-edit"]),
        ({"connections": None}, []),  # what nobody holds any more names nobody
        ({"scrubIntervalSeconds": 1.5}, ["kubectl-edit"]),
    ],
    ids=["emptied", "a-limit", "removed", "a-number"],
)
def test_a_spec_that_was_edited_by_hand_is_repaired_once_and_audited(
    world: KubeWorld, pinned: Any, change: dict[str, Any], managers: list[str]
) -> None:
    wanted = {name: world.spec(name) for name in world.names}
    first, *others = world.names
    generations = world.generations()
    world.edit(first, **change)
    assert world.spec(first) != wanted[first]
    world.observe()
    world.reconcile()
    assert {name: world.spec(name) for name in world.names} == wanted
    assert told("node-cache.repaired") == [(first, {"managers": managers, "repairs": 1})]
    assert {name: world.generations()[name] for name in others} == {name: generations[name] for name in others}

    world.observe()
    world.reconcile()
    assert len(told("node-cache.repaired")) == 1, "its own repair is nobody's edit"
    assert world.loop().error == ""


def test_whoever_was_faster_than_the_watcher_is_named(world: KubeWorld, pinned: Any) -> None:
    first = world.names[0]
    world.edit(first, desired=[])
    pin_create(actor=SYSTEM, spec=PinSpec(version_id=version_of(50 * MIB).pk, pool_ids=(world.pool.pk,)))
    world.reconcile()
    assert len(world.desired(first)) == 2
    assert told("node-cache.repaired") == [(first, {"managers": ["kubectl-edit"], "repairs": 1})]


def fields_of_another_controller(world: KubeWorld, name: str) -> None:
    """With rights like Hearth's and a field manager of its own, forced."""
    document = objects.node_cache_document(replace(world.spec(name), desired=()))
    world.api.apply(f"{names.NODE_CACHES}/{name}", document, manager="other-controller", force=True)


def spec_of_another_hearth(world: KubeWorld, name: str) -> None:
    """With the same field manager: no apply of either ever conflicts."""
    KubernetesGateway(world.cluster.address).apply_node_cache(replace(world.spec(name), desired=()), take_over=True)


@pytest.mark.parametrize("fight", [fields_of_another_controller, spec_of_another_hearth])
def test_a_fight_is_reported_and_not_looped(
    world: KubeWorld, pinned: Any, fight: Callable[[KubeWorld, str], None]
) -> None:
    first, *others = world.names
    for _ in range(REPAIRS):
        fight(world, first)
        world.observe()
        world.reconcile()
        assert world.desired(first) == {pinned.artifact.digest: Action.ENSURE}
    fight(world, first)
    world.observe()
    count, generation = requests(world), world.generations()[first]
    for _ in range(5):
        world.reconcile()
    assert count() == {}, "not one request for a fight that is lost for now"
    assert world.generations()[first] == generation
    assert len(told("node-cache.repaired")) == REPAIRS
    assert f"{first}: another controller" in world.loop().error
    assert "Stop it" in world.loop().error

    # Nothing is lost to the others, and nothing is removed from the node that is fought over.
    pin_create(actor=SYSTEM, spec=PinSpec(version_id=version_of(50 * MIB).pk, pool_ids=(world.pool.pk,)))
    world.reconcile()
    assert [len(world.desired(name)) for name in others] == [2, 2]
    assert world.desired(first) == {}


def test_labels_that_other_hands_changed_are_put_right_and_audited(world: KubeWorld, pinned: Any) -> None:
    first, second, third = world.names
    label, stray = ready_label(pinned.artifact.digest), ready_label("sha256:" + "0" * 64)
    foreign = {f"{WEIGHTS_READY}{uuid4()}": "true", "team": "search"}
    world.label(first, {label: None})
    world.label(second, {stray: "true", **foreign})
    CacheEntry.objects.update(labeled_at=timezone.now())
    world.observe()
    world.reconcile()
    assert told("node.label-restored") == [], "just labelled: the watcher may simply not have told yet"

    CacheEntry.objects.update(labeled_at=timezone.now() - SEEN_WITHIN - timedelta(seconds=10))
    world.label(first, {label: None})
    world.observe()
    count = requests(world)
    world.reconcile()
    assert count() == {"PATCH": 1}
    assert world.labels(first)[label] == "true"
    assert stray not in world.labels(second)
    assert foreign.items() <= world.labels(second).items(), "labels of others are theirs"
    assert label in world.labels(third)
    assert told("node.label-restored") == [(first, {"labels": [label]})]
    assert told("node.label-swept") == [(second, {"labels": [stray]})]


def test_a_label_that_comes_before_its_bytes_is_swept(world: KubeWorld, pinned: Any) -> None:
    """A label that a person copied to a node whose copy failed would send pods to a cold node."""
    first, label = world.names[0], ready_label(pinned.artifact.digest)
    world.held[first].clear()
    world.report(first)
    world.observe()
    world.reconcile()
    assert label not in world.labels(first)
    world.label(first, {label: "true"})
    world.observe()
    world.reconcile()
    assert label not in world.labels(first)
    assert told("node.label-swept") == [(first, {"labels": [label]})]
