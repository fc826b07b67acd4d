"""Images through the loop: from a pin to holders, from holders to entries and labels, and back to nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from caches.domain.image_states import NOT_KNOWN, STILL_THERE
from caches.domain.labels import IMAGE_READY
from caches.domain.plans import Plan
from caches.models import CacheEntry, EntryChange, Image, ImageHold, Pin
from caches.selectors.pool_view import pool_view
from caches.services.images.catalogue import image_revoke
from caches.services.images.observing import LISTED_EVERY, pools_to_observe
from controlplane.audit.services import SYSTEM
from controlplane.clusters.documents import ArtifactKind, EntryState, Reason
from tests import factories
from tests.services.image_cluster import ImageWorld, image_world, label, served, warm
from tests.services.world import MIB, ready, version_of

pytestmark = pytest.mark.django_db
Make = Callable[..., ImageWorld]


@pytest.fixture
def make(tmp_path: Path, settings: Any) -> Iterator[Make]:
    opened: list[Any] = []

    def made(**options: Any) -> ImageWorld:
        opened.append(image_world(tmp_path / "fleet", settings, **options))
        world: ImageWorld = opened[-1].__enter__()
        return world

    yield made
    for one in opened:
        one.__exit__(None, None, None)


def test_it_holds_an_image_beside_the_weights_and_tells_no_agent_of_it(make: Make) -> None:
    world = make()
    version, image, _ = served(world)

    world.reconcile()

    assert world.held_on(image) == {"n1", "n2"}
    (holder,) = world.images.holders.values()
    assert holder.reference == f"registry.example/{image.repository}@{image.artifact.digest}"  # type: ignore[union-attr]
    assert holder.node_selector == {"cache.hearth.dev/pool": "gpu"} or "gpu" in holder.node_selector.values()
    assert image.artifact is not None and version.artifact is not None
    assert set(world.desired("n1")) == {version.artifact.digest}, "what brings images is no agent"


def test_it_follows_the_holders_from_pulling_to_ready_and_labels_the_node(make: Make) -> None:
    world = make()
    _, image, _ = served(world)
    world.reconcile()

    world.look()
    assert world.states(image) == {"n1": "Downloading", "n2": "Downloading"}
    world.say("n1", image, True)
    world.round()

    entry = world.entry_of("n1", image)
    assert (entry.state, entry.bytes_done, entry.bytes_total) == ("Ready", 100 * MIB, 100 * MIB)
    assert entry.ready_at is not None
    assert label(image) in world.node("n1").labels and label(image).startswith(IMAGE_READY)
    assert label(image) not in world.node("n2").labels
    changes = EntryChange.objects.filter(entry=entry).order_by("at").values_list("new_state", flat=True)
    assert list(changes) == ["Downloading", "Ready"]


def test_it_writes_and_sends_nothing_without_news(make: Make) -> None:
    world = make()
    _, image, _ = served(world)
    warm(world, image)
    applied, before = world.images.applied, CacheEntry.objects.values_list("updated_at").order_by("pk")
    stamps = list(before)

    assert world.look() == 0
    world.reconcile()

    assert world.images.applied == applied
    assert list(before.all()) == stamps


def test_an_agent_that_knows_nothing_of_images_makes_none_absent(make: Make) -> None:
    world = make()
    _, image, _ = served(world)
    warm(world, image)

    for name in world.links:
        world.report(name)
    world.observe()

    assert world.states(image) == {"n1": "Ready", "n2": "Ready"}


def test_it_admits_nodes_in_batches(make: Make) -> None:
    world = make(nodes=5, max_downloads=2)
    _, image, pin = served(world)
    Pin.objects.filter(pk=pin.pk).update(artifacts=[ArtifactKind.IMAGE])  # no weights that take turns too

    world.reconcile()
    first = world.held_on(image)
    assert len(first) == 2
    world.look()
    world.reconcile()
    assert world.held_on(image) == first, "no more before these have it"

    for name in first:
        world.say(name, image, True)
    world.round()
    assert len(world.held_on(image)) == 4 and world.held_on(image) > first


def test_it_shares_a_holder_and_removes_it_with_the_last_reference(make: Make) -> None:
    world = make()
    _, image, first = served(world)
    _, _, second = served(world, image)
    warm(world, image)
    assert len(world.images.holders) == 1

    Pin.objects.filter(pk=first.pk).update(removed_at=timezone.now())
    world.reconcile()
    assert world.held_on(image) == {"n1", "n2"}

    Pin.objects.filter(pk=second.pk).update(removed_at=timezone.now())
    world.reconcile()
    world.reconcile()
    assert world.images.holders == {} and not ImageHold.objects.exists()
    world.observe(news_only=True)
    assert label(image) not in world.node("n1").labels


def let_go(world: ImageWorld, image: Image, pin: Pin) -> None:
    Pin.objects.filter(pk=pin.pk).update(removed_at=timezone.now())
    world.reconcile()
    assert world.held_on(image) == set()


def test_it_says_honestly_what_a_node_still_has(make: Make) -> None:
    world = make()
    _, image, pin = served(world)
    warm(world, image)
    assert image.artifact is not None
    uid = world.node("n1").uid
    world.images.listed = {uid: frozenset({image.artifact.digest})}
    let_go(world, image, pin)

    world.look()
    assert world.states(image) == {"n1": "Evicting", "n2": "Absent"}
    assert world.entry_of("n1", image).message == STILL_THERE
    asked = list(world.images.asked)
    world.look()
    assert world.images.asked == asked, "a node is not asked all the time"

    world.images.listed = {}  # its kubelet has collected it
    CacheEntry.objects.update(observed_at=timezone.now() - LISTED_EVERY)
    world.look()
    assert world.states(image) == {"n1": "Absent", "n2": "Absent"}
    assert pools_to_observe() == []


def test_it_does_not_take_a_full_list_for_proof(make: Make) -> None:
    world = make(nodes=1)
    _, image, pin = served(world)
    warm(world, image)
    world.images.listed = {world.node("n1").uid: None}
    let_go(world, image, pin)

    world.look()

    assert (world.entry_of("n1", image).state, world.entry_of("n1", image).message) == ("Absent", NOT_KNOWN)


def test_what_nothing_holds_any_more_costs_no_round_and_comes_back_by_a_pin(make: Make) -> None:
    world = make(nodes=1)
    version, image, pin = served(world)
    warm(world, image)
    assert image.artifact is not None
    world.images.listed = {world.node("n1").uid: frozenset({image.artifact.digest})}
    let_go(world, image, pin)
    world.look()

    plan: Plan = world.reconcile()
    assert plan.evictions == ()

    factories.pin(of=version, pools=(world.pool,), artifacts=pin.artifacts)
    world.reconcile()
    assert world.held_on(image) == {"n1"}
    world.round()
    assert world.states(image) == {"n1": "Ready"}


@pytest.mark.parametrize(
    ("reason", "retries"),
    [(Reason.ACCESS_DENIED, False), (Reason.SOURCE_UNAVAILABLE, True), (Reason.INVALID_REQUEST, False)],
)
def test_it_gives_failures_their_reason_and_heals_by_itself(make: Make, reason: Reason, retries: bool) -> None:
    world = make(nodes=1)
    _, image, _ = served(world)
    world.reconcile()
    world.say("n1", image, False, reason, message="It said no.")

    world.look()
    world.look()

    entry = world.entry_of("n1", image)
    assert (entry.state, entry.reason, entry.message, entry.attempts) == ("Failed", reason, "It said no.", 1)
    assert (entry.retry_at is not None) is retries
    world.reconcile()
    assert world.held_on(image) == {"n1"}, "its kubelet goes on trying"
    world.say("n1", image, True)
    world.round()
    assert (world.entry_of("n1", image).state, world.entry_of("n1", image).attempts) == ("Ready", 0)


def test_an_image_that_cannot_be_held_is_reported_and_never_ready(make: Make) -> None:
    world = make(nodes=1)
    _, image, _ = served(world)
    world.reconcile()
    world.say("n1", image, False, Reason.INVALID_REQUEST, message="The image cannot be held: …", holdable=False)

    world.round()

    assert (world.entry_of("n1", image).state, label(image) in world.node("n1").labels) == ("Failed", False)
    assert "cannot be held" in world.entry_of("n1", image).message


def test_a_holder_that_goes_takes_the_label_with_it(make: Make) -> None:
    world = make(nodes=1)
    _, image, _ = served(world)
    warm(world, image)
    world.say("n1", image, None, message="The holder's pod is older than its node.")

    world.round()

    assert world.entry_of("n1", image).state == "Queued"
    assert label(image) not in world.node("n1").labels


def test_it_changes_nothing_while_the_cluster_is_silent(make: Make) -> None:
    world = make()
    _, image, _ = served(world)
    warm(world, image)
    world.images.silent = True

    assert world.look() == 0

    assert world.states(image) == {"n1": "Ready", "n2": "Ready"}


@pytest.mark.parametrize("shared", [False, True])
def test_unpacked_bytes_count_where_the_disk_is_shared(make: Make, settings: Any, shared: bool) -> None:
    settings.IMAGES_SHARE_DISK = shared
    world = make(nodes=1, capacity_bytes=100 * MIB)  # 85 under the watermark
    big = factories.image(
        artifact=factories.artifact(kind=ArtifactKind.IMAGE, size_bytes=80 * MIB), compressed_bytes=30 * MIB
    )
    _, image, _ = served(world, big, priority=400)

    plan = world.reconcile()

    assert image.artifact is not None
    refused = [one for one in plan.refusals if one.digest == image.artifact.digest]
    moved = [one.bytes for one in plan.moves if one.digest == image.artifact.digest]
    assert (len(refused), moved) == ((1, []) if shared else (0, [30 * MIB]))
    if shared:
        assert refused[0].need_bytes == 80 * MIB
        assert world.held_on(image) == set()


def test_an_image_that_is_there_is_counted_once(make: Make, settings: Any) -> None:
    settings.IMAGES_SHARE_DISK = True
    world = make(nodes=1)
    _, image, _ = served(world)
    warm(world, image)
    node = world.node("n1")
    # Its agent has looked since: the image is among what is not Hearth's on the disk.
    later = timezone.now() + timedelta(seconds=1)
    type(node).objects.filter(pk=node.pk).update(other_bytes=120 * MIB, reported_at=later)

    (view,) = pool_view(world.pool, now=later).nodes
    entry = next(one for one in view.entries if one.digest == image.artifact.digest)  # type: ignore[union-attr]

    assert (view.other_bytes, entry.size_bytes, entry.bytes_on_disk) == (20 * MIB, 100 * MIB, 100 * MIB)


def test_no_image_goes_to_make_room(make: Make, settings: Any) -> None:
    settings.IMAGES_SHARE_DISK = True
    world = make(nodes=1, capacity_bytes=200 * MIB)
    _, image, _ = served(world, priority=100)
    warm(world, image)
    factories.pin(of=version_of(120 * MIB), pools=(world.pool,), priority=900)

    plan = world.reconcile()

    assert image.artifact is not None
    assert [one for one in plan.evictions if one.digest == image.artifact.digest] == []
    assert plan.refusals, "its node alone decides when its bytes are free"


def test_a_withdrawn_image_leaves_every_node_and_a_revoked_one_stays(make: Make) -> None:
    world = make()
    _, image, _ = served(world)
    warm(world, image)

    image_revoke(actor=SYSTEM, image_id=image.pk, reason="CVE")
    world.reconcile()
    assert world.held_on(image) == {"n1", "n2"}

    image_revoke(actor=SYSTEM, image_id=image.pk, reason="CVE", withdraw=True)
    world.reconcile()
    assert world.held_on(image) == set()


def test_the_local_fleet_never_says_that_it_has_an_image(make_world: Any) -> None:
    world = make_world()
    image = factories.image()
    version = version_of(MIB, image=image)
    factories.pin(of=version, pools=(world.pool,), artifacts=[ArtifactKind.WEIGHTS, ArtifactKind.IMAGE])

    world.reconcile()

    assert not CacheEntry.objects.filter(artifact=image.artifact).exists()
    assert pools_to_observe() == [] and not ImageHold.objects.exists()


def test_weights_are_evicted_beside_an_image_that_stays(make: Make) -> None:
    world = make(nodes=1)
    version, image, _ = served(world)
    warm(world, image)
    assert version.artifact is not None and image.artifact is not None
    loose = version_of(5 * MIB)
    assert loose.artifact is not None
    world.report("n1", ready(loose.artifact.digest, 5 * MIB))
    world.observe()
    CacheEntry.objects.filter(artifact=loose.artifact).update(evict_requested_at=timezone.now())

    plan = world.reconcile()

    assert [one.digest for one in plan.evictions] == [loose.artifact.digest]
    assert world.held_on(image) == {"n1"}
    assert world.entry_of("n1", image).state == EntryState.READY
