"""Credentials of Registry connections where holders run: copied, following rotation, gone with their last user."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import time_machine
from django.utils import timezone

from caches.models import Image, PoolLoop, PullSecret, SourceConnection
from caches.services.images.secrets import SENT_AGAIN, pull_secrets_apply
from caches.services.pins import pin_remove
from caches.sources.secrets import delete_secret, write_secret
from controlplane.audit.services import SYSTEM
from controlplane.clusters.documents import SourceType
from controlplane.clusters.gateway import Unreachable
from tests import factories
from tests.services.image_cluster import ImageWorld, image_world, served

pytestmark = pytest.mark.django_db
NAME = "hearth-pull-private"


@pytest.fixture
def world(tmp_path: Path, settings: Any) -> Iterator[ImageWorld]:
    settings.SECRETS_DIR = tmp_path / "secrets"
    write_secret("pull", {"username": "reader", "password": "one"})
    with image_world(tmp_path / "fleet", settings) as made:
        yield made


def private(name: str = "private", **fields: Any) -> SourceConnection:
    fields = {"endpoint": "https://registry.example:5000", "secret_name": "pull", "allowed": ["*"], **fields}
    return factories.connection(name=name, type=SourceType.REGISTRY, **fields)


def test_they_are_copied_follow_their_rotation_and_go_with_the_last_user(world: ImageWorld) -> None:
    connection = private()
    image = factories.image(connection=connection, pull_secret="by-hand")
    _, _, pin = served(world, image)
    world.reconcile()
    [holder] = world.images.holders.values()
    assert holder.pull_secrets == ("by-hand", NAME)
    assert world.images.pull_secrets == {NAME: ("registry.example:5000", "reader", "one")}

    world.images.pull_secrets.clear()
    world.reconcile()
    assert world.images.pull_secrets == {}, "what is there is not sent again"
    write_secret("pull", {"username": "reader", "password": "two"})
    applied = world.images.applied
    world.reconcile()
    assert world.images.pull_secrets[NAME][2] == "two" and world.images.applied == applied, "no pod is made for it"

    _, other, last = served(world, factories.image(connection=connection))
    world.reconcile()
    pin_remove(actor=SYSTEM, pin_id=pin.pk)
    evict(world, image)
    assert set(world.images.pull_secrets) == {NAME}, "another image needs it"
    pin_remove(actor=SYSTEM, pin_id=last.pk)
    evict(world, other)
    assert world.images.pull_secrets == {} and not PullSecret.objects.exists()


def test_nodes_are_given_them_again_where_somebody_took_them_away(world: ImageWorld) -> None:
    image = factories.image(connection=private())
    apply = partial(pull_secrets_apply, cluster=world.cluster, images=[image], gateway=world.images)
    apply()
    world.images.pull_secrets.clear()
    with time_machine.travel(timezone.now() + SENT_AGAIN):
        assert apply() == [] and set(world.images.pull_secrets) == {NAME}
        world.images.pull_secrets.clear()
        apply()
        assert world.images.pull_secrets == {}, "but not with every round"


def test_another_registry_at_the_same_connection_is_sent_at_once(world: ImageWorld) -> None:
    """The same words for another host are other credentials."""
    connection = private()
    image = factories.image(connection=connection)
    pull_secrets_apply(cluster=world.cluster, images=[image], gateway=world.images)
    SourceConnection.objects.update(endpoint="https://moved.example")
    connection.refresh_from_db()
    pull_secrets_apply(cluster=world.cluster, images=[image], gateway=world.images)
    assert world.images.pull_secrets[NAME] == ("moved.example", "reader", "one")


@pytest.mark.parametrize(
    ("endpoint", "registry"),
    [
        ("https://registry-1.docker.io", "https://index.docker.io/v1/"),
        ("https://index.docker.io", "https://index.docker.io/v1/"),
        ("https://Registry.Example:5000", "registry.example:5000"),  # as at_registry writes references
        ("https://docker.io.example", "docker.io.example"),
    ],
)
def test_they_are_named_as_nodes_look_for_them(endpoint: str, registry: str, world: ImageWorld) -> None:
    image = factories.image(connection=private(endpoint=endpoint))
    assert pull_secrets_apply(cluster=world.cluster, images=[image], gateway=world.images) == []
    assert world.images.pull_secrets[NAME] == (registry, "reader", "one")


def evict(world: ImageWorld, image: Image) -> None:
    """Nobody wants it: it waits for no need of room here."""
    assert image.artifact is not None
    image.artifact.entries.update(evict_requested_at="2026-01-01T00:00:00Z")
    for _ in range(3):
        world.reconcile()


@pytest.mark.parametrize(
    ("content", "said"), [(None, "secret pull"), ({"token": "t"}, "Connection private has no username and password")]
)
def test_what_nodes_cannot_pull_with_is_said(world: ImageWorld, content: dict[str, str] | None, said: str) -> None:
    delete_secret("pull")
    if content is not None:
        write_secret("pull", content)
    served(world, factories.image(connection=private()))
    world.reconcile()
    assert said in PoolLoop.objects.get().error
    assert world.images.pull_secrets == {} and len(world.images.holders) == 1


def test_a_cluster_that_does_not_answer_gets_them_later(world: ImageWorld) -> None:
    image = factories.image(connection=private())
    world.images.silent = True
    with pytest.raises(Unreachable):
        pull_secrets_apply(cluster=world.cluster, images=[image], gateway=world.images)
    assert PullSecret.objects.get().content_mac == ""
    world.images.silent = False
    pull_secrets_apply(cluster=world.cluster, images=[image], gateway=world.images)
    assert set(world.images.pull_secrets) == {NAME} and "one" not in PullSecret.objects.get().content_mac
