"""Pins that want an image: what is asked of it, and what a version's image is."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.conf import LazySettings
from django.utils import timezone

from caches.models import Image, Pin, PoolLoop
from caches.services.admission import CapacityClash
from caches.services.images.of_version import version_image_set
from caches.services.pin_specs import PinSpec, spec_check
from caches.services.pins import pin_create, pin_preview, pin_remove, pin_update
from controlplane.audit.models import AuditEvent
from controlplane.audit.services import Actor
from controlplane.clusters.documents import ArtifactKind, EntryState
from controlplane.clusters.models import ClusterType, Node, NodePool
from controlplane.errors import Clash, Invalid, Missing
from controlplane.operations.steps import operation_step
from tests import factories
from tests.factories import MIB

AN_HOUR = timedelta(hours=1)
BOTH = (ArtifactKind.WEIGHTS, ArtifactKind.IMAGE)
pytestmark = pytest.mark.django_db


@pytest.fixture
def pool() -> NodePool:
    made = factories.pool(of=factories.cluster(type=ClusterType.KUBERNETES))
    factories.node(of=made)
    return made


def spec(version: Any, pool: NodePool, **fields: Any) -> PinSpec:
    return PinSpec(version_id=version.pk, pool_ids=(pool.pk,), artifacts=BOTH, **fields)


@pytest.mark.parametrize(
    ("image", "code"),
    [
        (None, "pin:user:no-image"),
        ({"artifact": None}, "pin:user:image-not-available"),
        ({"revoked_at": timezone.now(), "revoked_reason": "CVE"}, "pin:user:image-revoked"),
    ],
)
def test_it_refuses_a_pin_whose_image_cannot_be_warmed(pool: NodePool, image: Any, code: str) -> None:
    version = factories.version(image=None if image is None else factories.image(**image))

    with pytest.raises(Clash) as caught:
        spec_check(spec(version, pool))
    assert caught.value.code == code

    spec_check(PinSpec(version_id=version.pk, pool_ids=(pool.pk,)))  # its weights alone are nobody's problem


def test_a_revocation_leaves_the_pins_that_want_the_image_already(pool: NodePool, actor: Actor) -> None:
    version = factories.version(image=factories.image())
    pin, _ = pin_create(actor=actor, spec=spec(version, pool))
    Image.objects.update(revoked_at=timezone.now())

    assert pin_update(actor=actor, pin_id=pin.pk, changes={"priority": 700}).priority == 700
    with pytest.raises(Clash, match="revoked"):
        spec_check(spec(factories.version(image=version.image), pool))


def test_a_preview_shows_what_a_pull_moves_and_where(pool: NodePool) -> None:
    image = factories.image(compressed_bytes=40 * MIB)
    version = factories.version(image=image)

    (plan,) = pin_preview(spec=spec(version, pool))

    assert image.artifact is not None
    moves = {move.digest: (move.artifact, move.bytes) for move in plan.moves}
    assert moves[image.artifact.digest] == (image.reference, 40 * MIB)
    assert len(moves) == 2


def test_it_refuses_an_image_where_nodes_are_folders(pool: NodePool) -> None:
    local, version = factories.pool(), factories.version(image=factories.image())

    with pytest.raises(Clash) as caught:
        spec_check(PinSpec(version_id=version.pk, pool_ids=(pool.pk, local.pk), artifacts=BOTH))

    assert caught.value.code == "pin:user:images-not-applicable"
    assert local.full_name in caught.value.detail and pool.full_name not in caught.value.detail


def test_a_pin_may_want_another_image_than_its_version_has(pool: NodePool) -> None:
    mine, other = factories.image(), factories.image()
    version = factories.version(image=mine)

    (plan,) = pin_preview(spec=spec(version, pool, image_id=other.pk))

    assert other.reference in {move.artifact for move in plan.moves}
    assert mine.reference not in {move.artifact for move in plan.moves}


def test_a_pin_of_an_image_alone_is_about_that_image(pool: NodePool, actor: Actor) -> None:
    image = factories.image()
    version = factories.version(image=image)
    assert image.artifact is not None and version.artifact is not None
    wanted = replace(spec(version, pool), artifacts=(ArtifactKind.IMAGE,))

    (plan,) = pin_preview(spec=wanted)
    assert [move.digest for move in plan.moves] == [image.artifact.digest], "no weights are asked for"

    pin, operation = pin_create(actor=actor, spec=wanted)
    assert (operation.subject_name, operation.targets.get().bytes_total) == (image.reference, 100 * MIB)
    factories.entry(on=Node.objects.get(), of=version.artifact, state=EntryState.READY)
    operation_step(operation_id=operation.pk)
    operation.refresh_from_db()
    assert operation.state == "Running", "weights that happen to be there are not what it waits for"

    factories.entry(on=Node.objects.get(), of=image.artifact, state=EntryState.READY, desired="Ensure")
    operation_step(operation_id=operation.pk)
    operation.refresh_from_db()
    assert operation.state == "Succeeded"
    removal = pin_remove(actor=actor, pin_id=pin.pk)
    assert removal.subject_name == image.reference and removal.targets.count() == 1


def test_an_image_that_does_not_fit_is_refused_only_where_it_is_alone(
    pool: NodePool, actor: Actor, settings: LazySettings
) -> None:
    settings.IMAGES_SHARE_DISK = True
    large = factories.artifact(kind=ArtifactKind.IMAGE, files_count=0, manifest=b"", size_bytes=10**15)
    image = factories.image(artifact=large)
    version = factories.version(image=image)

    with pytest.raises(CapacityClash, match=f"{image.reference} does not fit on 1 of 1 node"):
        pin_create(actor=actor, spec=replace(spec(version, pool), artifacts=(ArtifactKind.IMAGE,)))
    pin, operation = pin_create(actor=actor, spec=spec(version, pool))
    assert version.artifact is not None
    PoolLoop.objects.update(plan={"refusals": [refusal(pin, large.digest)]}, reconciled_at=timezone.now() + AN_HOUR)
    factories.entry(on=Node.objects.get(), of=version.artifact, state=EntryState.QUEUED)
    operation_step(operation_id=operation.pk)
    operation.refresh_from_db()
    assert operation.state == "Running", "the image's lack of room is not the weights'"


def refusal(pin: Pin, digest: str) -> dict[str, str]:
    facts = {"pin_id": str(pin.pk), "node_uid": Node.objects.get().uid, "digest": digest}
    return facts | {"detail": "No room.", "next_step": "Unpin something."}


def test_it_says_which_image_serves_a_version(pool: NodePool, actor: Actor) -> None:
    image, version = factories.image(), factories.version()

    version_image_set(actor=actor, version_id=version.pk, image_id=image.pk)
    version_image_set(actor=actor, version_id=version.pk, image_id=image.pk)

    version.refresh_from_db()
    assert version.image == image
    (event,) = AuditEvent.objects.filter(action="version.image")
    assert (event.before, event.after) == ({"image": None}, {"image": image.reference})


def test_pins_follow_another_image_and_keep_it_from_being_forgotten(pool: NodePool, actor: Actor) -> None:
    version = factories.version(image=factories.image())
    pin_create(actor=actor, spec=spec(version, pool))
    before = PoolLoop.objects.get(pool=pool).wanted_round

    version_image_set(actor=actor, version_id=version.pk, image_id=factories.image().pk)

    assert PoolLoop.objects.get(pool=pool).wanted_round == before + 1
    with pytest.raises(Clash) as caught:
        version_image_set(actor=actor, version_id=version.pk, image_id=None)
    assert caught.value.code == "version:user:image-pinned"


def test_a_pin_without_pools_is_no_reason_to_fail(actor: Actor) -> None:
    version = factories.version(image=factories.image())
    factories.pin(of=version, artifacts=list(BOTH)).pools.clear()
    other = factories.image()
    assert version_image_set(actor=actor, version_id=version.pk, image_id=other.pk).image == other
    assert not PoolLoop.objects.exists()


def test_it_takes_no_image_that_cannot_serve(actor: Actor) -> None:
    version = factories.version()
    revoked, resolving = factories.image(revoked_at=timezone.now()), factories.image(artifact=None)

    for image_id, error in (
        (revoked.pk, Clash),
        (resolving.pk, Clash),
        (version.pk, Invalid),
    ):
        with pytest.raises(error):
            version_image_set(actor=actor, version_id=version.pk, image_id=image_id)
    with pytest.raises(Missing):
        version_image_set(actor=actor, version_id=revoked.pk, image_id=None)
    version.refresh_from_db()
    assert version.image is None
