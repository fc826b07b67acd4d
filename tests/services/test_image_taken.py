"""Images that somebody removes on a node while they are held there: what runs does not notice, the next pod would."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from caches.domain.image_states import TAKEN
from caches.models import CacheEntry
from caches.services.images.observing import PROVEN_EVERY, SETTLED
from controlplane.clusters.gateway import Unreachable
from tests.services.image_cluster import ImageWorld, image_world, label, served, warm

pytestmark = pytest.mark.django_db


@pytest.fixture
def world(tmp_path: Path, settings: Any) -> Iterator[ImageWorld]:
    with image_world(tmp_path / "fleet", settings) as made:
        yield made


def test_what_somebody_removed_under_its_holder_is_pulled_again(world: ImageWorld) -> None:
    _, image, _ = served(world)
    warm(world, image)
    reference = next(iter(world.images.holders))[1]
    digest = reference.rpartition("@")[2]
    other = frozenset({"sha256:" + "9" * 64})
    name = next(iter(world.links))
    uid = world.node(name).uid
    world.images.listed = {world.node(one).uid: frozenset({digest}) for one in world.links}
    world.images.listed[uid] = other
    world.look()
    assert world.images.asked == [], "it was proven a moment ago"

    CacheEntry.objects.update(verified_at=timezone.now() - PROVEN_EVERY)
    world.look()
    assert set(world.images.asked) == set(world.links) and world.images.renewed == [], "its list may be old"
    world.images.asked.clear()
    world.look()
    assert world.images.asked == [], "not at every look"

    long_ago = timezone.now() - PROVEN_EVERY - SETTLED
    CacheEntry.objects.update(verified_at=long_ago, ready_at=long_ago)
    for listed in (None, frozenset[str]()):
        world.images.listed[uid] = listed
        world.look()
        assert world.images.renewed == [], "a list that is cut off or empty says nothing"
        CacheEntry.objects.update(verified_at=long_ago)
    world.images.listed[uid] = other
    assert world.look() == 1
    assert world.images.renewed == [(world.pool.name, reference, name)]
    entry = world.entry_of(name, image)
    assert (entry.state, entry.message) == ("Queued", TAKEN)
    world.say(name, image, False)
    world.round()
    assert label(image) not in world.node(name).labels


def test_a_holder_that_could_not_be_renewed_is_looked_at_again(
    world: ImageWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, image, _ = served(world)
    warm(world, image)
    long_ago = timezone.now() - PROVEN_EVERY - SETTLED
    CacheEntry.objects.update(verified_at=long_ago, ready_at=long_ago)
    world.images.listed = {world.node(name).uid: frozenset({"sha256:" + "9" * 64}) for name in world.links}

    def silent(*_: str) -> None:
        raise Unreachable("no answer")

    with monkeypatch.context() as patched:
        patched.setattr(world.images, "renew_image_holder", silent)
        assert world.look() == 0 and set(world.states(image).values()) == {"Ready"}
    assert world.look() == len(world.links) and len(world.images.renewed) == len(world.links)
