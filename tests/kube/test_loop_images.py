"""Images through the loop on a real API server: a pin, a holder, its pods, the entry, the label, and back."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from django.utils import timezone

from caches.domain.labels import ready_label
from caches.models import CacheEntry, ImageHold, Pin
from caches.selectors.image_demand import held_reference
from caches.services.images.observing import pool_images_observe
from controlplane.clusters.documents import ArtifactKind
from controlplane.clusters.kubernetes import names
from tests import factories
from tests.contracts.kube import furnish
from tests.kube.world import KubeWorld
from tests.services.world import MIB, version_of
from tests.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.django_db(transaction=True)]


def pods(world: KubeWorld) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = world.api.get(names.IMAGE_PODS)["items"]
    return [pod for pod in items if pod["spec"].get("nodeName") and not pod["metadata"].get("deletionTimestamp")]


def test_a_pin_has_every_node_hold_the_image_and_its_end_takes_everything_back(
    make_world: Callable[..., KubeWorld],
) -> None:
    world = make_world(nodes=2)
    for name in world.names:
        furnish(world.api, name)
    image = factories.image()
    version = version_of(10 * MIB, image=image)
    pin = factories.pin(of=version, pools=(world.pool,), artifacts=[ArtifactKind.WEIGHTS, ArtifactKind.IMAGE])
    assert image.artifact is not None
    label, reference = ready_label(image.artifact.digest, ArtifactKind.IMAGE), held_reference(image)

    def labelled() -> set[str]:
        items = world.api.get(names.NODES)["items"]
        return {item["metadata"]["name"] for item in items if label in item["metadata"]["labels"]}

    world.settle()
    until(lambda: len(pods(world)) == 2, "the controller has made a pod for each node")
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    running = {"name": "holder", "image": reference, "imageID": reference, "ready": True, "restartCount": 0}
    for pod in pods(world):
        status = {"phase": "Running", "containerStatuses": [{**running, "state": {"running": {"startedAt": now}}}]}
        path = f"{names.IMAGE_PODS}/{pod['metadata']['name']}/status"
        world.api.merge(path, {"status": status}, manager="kubelet")
    assert pool_images_observe(pool_id=world.pool.pk) == 2
    world.reconcile()

    states = CacheEntry.objects.filter(artifact=image.artifact).values_list("state", flat=True)
    assert list(states) == ["Ready", "Ready"]
    assert labelled() == set(world.names)

    Pin.objects.filter(pk=pin.pk).update(removed_at=timezone.now())
    world.observe()

    def nothing_held() -> bool:
        world.reconcile()
        return not ImageHold.objects.exists()

    until(nothing_held, "nothing is held any more")
    assert world.api.get(names.IMAGE_DAEMON_SETS)["items"] == []
    assert labelled() == set()
    world.api.delete(names.IMAGE_PODS, grace_seconds=0)  # as their kubelets would
    until(lambda: not pods(world), "its pods are gone")
    pool_images_observe(pool_id=world.pool.pk)
    assert list(states.all()) == ["Absent", "Absent"], "no node lists it"
