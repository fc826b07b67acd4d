"""A fleet whose nodes hold images: the local one, with holders and kubelets played by the test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from caches.domain.labels import ready_label
from caches.models import CacheEntry, Image, ModelVersion, Pin
from caches.services.images.observing import pool_images_observe
from controlplane.clusters.documents import ArtifactKind, Reason
from controlplane.clusters.gateway import ClusterGateway, ImageHolder, ImagePresence, PoolAgent, Unreachable
from controlplane.clusters.models import ClusterType
from controlplane.clusters.registry import override_gateway
from tests import factories
from tests.services.world import MIB, World, version_of


class ImageGateway:
    """The local gateway, and beside it holders as an API server keeps them. ``said`` is what pods say, by place."""

    def __init__(self, real: ClusterGateway) -> None:
        self.real = real
        self.holders: dict[tuple[str, str], ImageHolder] = {}
        self.said: dict[tuple[str, str], ImagePresence] = {}  # node uid, reference
        self.listed: dict[str, frozenset[str] | None] = {}  # by node uid
        self.uids: dict[str, str] = {}
        self.applied = 0
        self.asked: list[str] = []
        self.renewed: list[tuple[str, str, str]] = []
        self.pull_secrets: dict[str, tuple[str, str, str]] = {}  # registry, user, password by name
        self.silent = False

    def apply_agent(self, agent: PoolAgent) -> None:
        """Agents are played by the world."""

    def apply_image_holder(self, holder: ImageHolder) -> None:
        self._answer()
        self.applied += 1
        self.holders[holder.pool, holder.reference] = holder

    def delete_image_holder(self, pool: str, reference: str) -> None:
        self._answer()
        self.holders.pop((pool, reference), None)

    def renew_image_holder(self, pool: str, reference: str, node_name: str) -> None:
        self._answer()
        self.renewed.append((pool, reference, node_name))

    def image_presence(self, pool: str) -> tuple[ImagePresence, ...]:
        self._answer()
        there = {
            (self.uids[name], holder.reference): ImagePresence(name, self.uids[name], holder.reference, False)
            for (of, _), holder in self.holders.items()
            for name in holder.nodes
            if of == pool
        }
        return tuple(self.said.get(place, line) for place, line in there.items())

    def apply_pull_secret(self, name: str, registry: str, username: str, password: str) -> None:
        self._answer()
        self.pull_secrets[name] = (registry, username, password)

    def delete_pull_secret(self, name: str) -> None:
        self._answer()
        self.pull_secrets.pop(name, None)

    def images_listed(self, node_name: str, node_uid: str) -> frozenset[str] | None:
        self._answer()
        self.asked.append(node_name)
        return self.listed.get(node_uid, frozenset())

    def _answer(self) -> None:
        if self.silent:
            raise Unreachable("no answer")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


class ImageWorld(World):
    """A World that counts as a Kubernetes cluster, with one pinned version that an image of 100 MiB serves."""

    images: ImageGateway

    def entry_of(self, name: str, image: Image) -> CacheEntry:
        return CacheEntry.objects.get(node=self.node(name), artifact=image.artifact)

    def states(self, image: Image) -> dict[str, str]:
        rows = CacheEntry.objects.filter(artifact=image.artifact, node__lost_at=None).select_related("node")
        return {row.node.name: row.state for row in rows}

    def held_on(self, image: Image) -> set[str]:
        """Names of the nodes that the holder is on."""
        found = [holder for (_, reference), holder in self.images.holders.items() if _digest(image) in reference]
        return set(found[0].nodes) if found else set()

    def say(self, name: str, image: Image, ready: bool | None, reason: Reason | str = "", **more: Any) -> None:
        uid, reference = self.node(name).uid, f"{image.registry}/{image.repository}@{_digest(image)}"
        self.images.said[uid, reference] = ImagePresence(name, uid, reference, ready, str(reason), **more)

    def look(self) -> int:
        """What the beat's sweep does."""
        return pool_images_observe(pool_id=self.pool.pk)

    def round(self) -> None:
        """Look, plan, and hear of the labels."""
        self.look()
        self.reconcile()
        self.observe(news_only=True)


def _digest(image: Image) -> str:
    assert image.artifact is not None
    return image.artifact.digest


@contextmanager
def image_world(folder: Path, settings: Any, **options: Any) -> Iterator[ImageWorld]:
    settings.AGENT_IMAGE, settings.SCHEDULING_LAG_SECONDS = "registry.example/hearth@sha256:" + "0" * 64, 0.0
    world = ImageWorld(folder, **options)
    world.cluster.type = ClusterType.KUBERNETES
    world.cluster.save()
    world.images = ImageGateway(world.gateway)
    world.images.uids = {name: link.node_uid for name, link in world.links.items()}
    override_gateway(world.cluster.pk, world.images)
    try:
        yield world
    finally:
        override_gateway(world.cluster.pk, None)


def served(world: ImageWorld, image: Image | None = None, **pin: Any) -> tuple[ModelVersion, Image, Pin]:
    """A version of 10 MiB, the image that serves it, and a pin that wants both on the world's pool."""
    image = image or factories.image()
    version = version_of(10 * MIB, image=image)
    artifacts = [ArtifactKind.WEIGHTS, ArtifactKind.IMAGE]
    return version, image, factories.pin(of=version, pools=(world.pool,), artifacts=artifacts, **pin)


def warm(world: ImageWorld, image: Image) -> None:
    """Held and Ready on every node, with its label."""
    for _ in range(2):
        world.reconcile()
        for name in world.links:
            world.say(name, image, True)
        world.round()
        world.obey()
        world.observe()
    assert set(world.states(image).values()) == {"Ready"}


def label(image: Image) -> str:
    assert image.artifact is not None
    return ready_label(image.artifact.digest, ArtifactKind.IMAGE)
