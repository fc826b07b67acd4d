"""Images from a registry that wants a token: resolved, and told when their tag moved."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from django.conf import LazySettings

from caches.models import Image, SourceConnection
from caches.services.connections import connection_create
from caches.services.images.catalogue import image_check, image_register
from caches.sources.secrets import write_secret
from controlplane.audit.models import Via
from controlplane.audit.services import Actor
from controlplane.operations.models import Operation
from controlplane.operations.steps import operation_step
from tests.standins.registry import RegistryStandIn, registry_stand_in

ADA = Actor("ada", Via.API, "request-1")
pytestmark = pytest.mark.django_db


@pytest.fixture
def standing(tmp_path: Path, settings: LazySettings) -> Iterator[RegistryStandIn]:
    settings.SECRETS_DIR = tmp_path / "secrets"
    with registry_stand_in("bearer") as made:
        write_secret("pull", {"username": made.user, "password": made.password})
        yield made


@pytest.fixture
def connection(standing: RegistryStandIn) -> SourceConnection:
    return connection_create(
        actor=ADA, name="images", type="Registry", endpoint=f"http://{standing.host}", secret_name="pull",
        allowed=["team"],
    )  # fmt: skip


def settled(image: Image, operation: Operation) -> tuple[Image, Operation]:
    operation_step(operation_id=operation.pk)
    image.refresh_from_db()
    operation.refresh_from_db()
    return image, operation


def test_it_is_resolved_through_its_connection(standing: RegistryStandIn, connection: SourceConnection) -> None:
    digest = standing.image((b"layer" * 100, ""), tag="v1")
    image, operation = settled(
        *image_register(actor=ADA, reference=f"{standing.host}/team/m:v1", connection=connection)
    )
    assert (operation.state, image.state) == ("Succeeded", "Available"), operation.error
    assert image.artifact is not None
    assert (image.artifact.digest, image.artifact.size_bytes, image.platforms) == (digest, 500, ["linux/amd64"])
    moved = standing.image((b"other", ""), tag="v1")
    image_check(image_id=image.pk)
    image.refresh_from_db()
    assert image.moved_to == moved and image.artifact.digest == digest


def test_it_is_refused_with_the_registry_s_reason(standing: RegistryStandIn, connection: SourceConnection) -> None:
    for reference, code in ((f"{standing.host}/team/m:none", "source:user:no-such-image"),
                            (f"{standing.host}/other:v1", "source:user:not-allowed")):  # fmt: skip
        image, operation = settled(*image_register(actor=ADA, reference=reference, connection=connection))
        assert (operation.state, image.state, image.code) == ("Failed", "Refused", code)
    write_secret("pull", {"username": standing.user, "password": "wrong"})
    image, _ = settled(*image_register(actor=ADA, reference=f"{standing.host}/team/x:v1", connection=connection))
    assert (image.state, image.code) == ("Refused", "source:user:access-denied")
