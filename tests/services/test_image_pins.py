"""Pins that want an image: what is asked of it, and what a version's image is."""

from __future__ import annotations

from typing import Any

import pytest
from django.utils import timezone

from caches.models import Image, PoolLoop
from caches.services.pin_specs import PinSpec, spec_check
from caches.services.pins import pin_create, pin_preview, pin_update
from caches.services.version_image import version_image_set
from controlplane.audit.models import AuditEvent
from controlplane.audit.services import Actor
from controlplane.clusters.documents import ArtifactKind
from controlplane.clusters.models import ClusterType, NodePool
from controlplane.errors import Clash, Invalid, Missing
from tests import factories
from tests.factories import MIB

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
