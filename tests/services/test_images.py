"""Registering images, watching their tags, revoking their digests."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from caches.models import Artifact, Image, ImageState, Rollout
from caches.services.images.catalogue import (
    image_check,
    image_delete,
    image_register,
    image_restore,
    image_revoke,
    images_due,
)
from caches.services.images.resolving import GIVE_UP_AFTER, image_resolve_step
from controlplane.audit.models import AuditEvent, Via
from controlplane.audit.services import Actor
from controlplane.clusters.documents import ArtifactKind, Reason
from controlplane.errors import Clash, Invalid, Missing, Permanent, Transient
from controlplane.operations.models import Operation, OperationState
from controlplane.operations.services import operation_cancel, operation_retry
from tests import factories
from tests.services.registries import Registry, Resolved, registered, use

ADA = Actor("ada", Via.API, "request-1")
REFERENCE = "registry.example/serving:v1"
pytestmark = pytest.mark.django_db


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    return use(Registry(), monkeypatch)


def step(operation: Operation) -> Operation:
    image_resolve_step(operation_id=operation.pk)
    operation.refresh_from_db()
    return operation


def test_it_fixes_a_tag_to_the_digest_that_it_names_now(registry: Registry) -> None:
    digest = registry.push(REFERENCE, "one")
    image, operation = image_register(actor=ADA, reference=f" {REFERENCE} ", pull_secret="pull")
    assert (image.state, image.artifact_id, operation.subject_name) == ("Resolving", None, REFERENCE)

    step(operation)

    image.refresh_from_db()
    assert (operation.state, operation.message) == ("Succeeded", "Registered.")
    assert operation.result == {
        "image_id": str(image.pk), "digest": digest, "size_bytes": 1000, "compressed_bytes": 400,
    }  # fmt: skip
    assert image.artifact is not None
    assert (image.state, image.artifact.digest, image.artifact.kind) == ("Available", digest, ArtifactKind.IMAGE)
    assert (image.artifact.size_bytes, image.compressed_bytes, image.artifact.files_count) == (1000, 400, 0)
    assert (image.registry, image.repository, image.tag, image.pull_secret) == (
        "registry.example", "serving", "v1", "pull",
    )  # fmt: skip
    assert (image.platforms, image.moved_to) == (["linux/amd64", "linux/arm64"], "")
    assert registry.closed == 1
    actions = AuditEvent.objects.filter(object_type="image", object_id=str(image.pk)).values_list("action", flat=True)
    assert {"image.register", "image.available"} <= set(actions)


def test_it_keeps_what_was_registered_when_the_tag_moves(registry: Registry) -> None:
    old = registry.push(REFERENCE, "one")
    first = registered(REFERENCE)
    new = registry.push(REFERENCE, "two")

    second = registered(REFERENCE)

    first.refresh_from_db()
    assert first.artifact is not None and second.artifact is not None
    assert (first.artifact.digest, first.moved_to, first.state) == (old, new, ImageState.AVAILABLE)
    assert (second.artifact.digest, second.moved_to, second.reference) == (new, "", REFERENCE)
    assert Operation.objects.latest("created_at").message.startswith("The tag has moved")


def test_it_makes_no_second_row_for_what_it_knows(registry: Registry) -> None:
    registry.push(REFERENCE, "one")
    first = registered(REFERENCE)
    registry.push(REFERENCE, "two")
    second = registered(REFERENCE)

    assert registered(REFERENCE) == second
    registry.push(REFERENCE, "one")  # moved back
    assert registered(REFERENCE) == first

    first.refresh_from_db()
    second.refresh_from_db()
    assert first.artifact is not None and (first.moved_to, second.moved_to) == ("", first.artifact.digest)
    assert Image.objects.count() == 2


def test_it_shares_one_digest_between_references(registry: Registry) -> None:
    for reference in (REFERENCE, "registry.example/serving:latest"):
        registry.push(reference, "one")

    first, second = registered(REFERENCE), registered("registry.example/serving:latest")

    assert first != second and first.artifact == second.artifact
    assert Artifact.objects.filter(kind=ArtifactKind.IMAGE).count() == 1


@pytest.mark.parametrize(
    ("found", "code", "reason"),
    [
        (Permanent("source:user:denied", "No.", reason=Reason.ACCESS_DENIED), "source:user:denied", "AccessDenied"),
        (Resolved("sha256:" + "0" * 64, unpacked_bytes=0), "image:source:no-size", "SourceUnavailable"),
    ],
)
def test_it_refuses_with_the_reason(registry: Registry, found: Any, code: str, reason: str) -> None:
    registry.names[REFERENCE] = found
    image, operation = image_register(actor=ADA, reference=REFERENCE)

    step(operation)

    image.refresh_from_db()
    assert (operation.state, image.state, image.code, image.artifact_id) == ("Failed", "Refused", code, None)
    assert operation.error is not None and operation.error["reason"] == reason
    assert image.message
    assert not Artifact.objects.exists()


def test_it_refuses_a_registry_that_answers_a_digest_with_another_one(registry: Registry) -> None:
    fixed = f"registry.example/serving@sha256:{'a' * 64}"
    registry.push(fixed, "another")
    _, operation = image_register(actor=ADA, reference=fixed)

    step(operation)

    assert operation.error is not None and operation.error["code"] == "image:source:other-digest"


def test_it_tries_again_until_it_gives_up(registry: Registry) -> None:
    registry.names[REFERENCE] = Transient("source:source:down", "It is down.", reason=Reason.SOURCE_UNAVAILABLE)
    image, operation = image_register(actor=ADA, reference=REFERENCE)

    with pytest.raises(Transient):
        image_resolve_step(operation_id=operation.pk)
    image.refresh_from_db()
    assert image.state == ImageState.RESOLVING
    Operation.objects.filter(pk=operation.pk).update(created_at=timezone.now() - GIVE_UP_AFTER)
    assert step(operation).state == OperationState.FAILED

    registry.push(REFERENCE, "one")
    again = operation_retry(actor=ADA, operation_id=operation.pk)
    assert step(again).state == OperationState.SUCCEEDED
    image.refresh_from_db()
    assert (image.state, image.code, image.message) == (ImageState.AVAILABLE, "", "")


def test_it_starts_anew_from_a_refused_one(registry: Registry) -> None:
    registry.names[REFERENCE] = Permanent("source:user:denied", "No.", reason=Reason.ACCESS_DENIED)
    image, operation = image_register(actor=ADA, reference=REFERENCE)
    step(operation)
    registry.push(REFERENCE, "one")

    assert registered(REFERENCE) == image
    assert Image.objects.count() == 1


def test_it_joins_a_registration_that_runs(registry: Registry) -> None:
    first = image_register(actor=ADA, reference=REFERENCE)
    assert image_register(actor=ADA, reference=REFERENCE) == first

    other = factories.connection()
    with pytest.raises(Clash) as caught:
        image_register(actor=ADA, reference=REFERENCE, connection=other)
    assert caught.value.code == "image:user:registering"


def test_it_leaves_nothing_available_when_it_is_cancelled_at_the_last_moment(registry: Registry) -> None:
    registry.push(REFERENCE, "one")
    image, operation = image_register(actor=ADA, reference=REFERENCE)
    registry.meanwhile = lambda: operation_cancel(actor=ADA, operation_id=operation.pk)

    assert image_resolve_step(operation_id=operation.pk) is False
    image.refresh_from_db()
    assert (image.state, Artifact.objects.count()) == (ImageState.RESOLVING, 0)

    assert step(operation).state == OperationState.CANCELED
    image.refresh_from_db()
    assert (image.state, image.code) == (ImageState.REFUSED, "image:user:canceled")


def test_it_fails_when_the_image_is_deleted_meanwhile(registry: Registry) -> None:
    registry.push(REFERENCE, "one")
    image, operation = image_register(actor=ADA, reference=REFERENCE)
    registry.meanwhile = lambda: image_delete(actor=ADA, image_id=image.pk)

    assert step(operation).state == OperationState.FAILED
    assert operation.error is not None and operation.error["code"] == "image:user:not-found"
    assert not Artifact.objects.exists() and not Image.objects.exists()


@pytest.mark.parametrize(
    ("reference", "secret", "fields"),
    [("Not A Reference", "", ["reference"]), ("a:b", "x" * 254, ["pull_secret"]), ("", "x" * 254, None)],
)
def test_it_names_every_wrong_field(reference: str, secret: str, fields: list[str] | None) -> None:
    with pytest.raises(Invalid) as caught:
        image_register(actor=ADA, reference=reference, pull_secret=secret)

    assert [error.field for error in caught.value.errors] == (fields or ["reference", "pull_secret"])
    assert not Image.objects.exists() and not Operation.objects.exists()


def test_it_shows_a_tag_that_moved_and_that_came_back(registry: Registry) -> None:
    registry.push(REFERENCE, "one")
    image = registered(REFERENCE)
    new = registry.push(REFERENCE, "two")

    checked = image_check(image_id=image.pk)
    assert checked is not None and checked.moved_to == new
    assert image_check(image_id=image.pk) is not None  # says nothing new
    registry.push(REFERENCE, "one")
    assert (image_check(image_id=image.pk) or image).moved_to == ""

    moves = AuditEvent.objects.filter(action="image.moved").order_by("at").values_list("after", flat=True)
    assert [move["named"] for move in moves] == [new, image.artifact.digest]  # type: ignore[union-attr,index]


def test_it_keeps_what_it_knew_while_the_registry_is_silent(registry: Registry) -> None:
    registry.push(REFERENCE, "one")
    image = registered(REFERENCE)
    new = registry.push(REFERENCE, "two")
    image_check(image_id=image.pk)
    registry.names[REFERENCE] = Transient("source:source:down", "It is down.")

    checked = image_check(image_id=image.pk)

    assert checked is not None and checked.moved_to == new
    assert checked.check_message.startswith("It is down.")


def test_it_does_not_undo_what_a_registration_found_meanwhile(registry: Registry) -> None:
    old = registry.push(REFERENCE, "one")
    image = registered(REFERENCE)
    new = registry.push(REFERENCE, "two")

    def registration() -> None:
        registry.meanwhile = lambda: None
        registered(REFERENCE)
        registry.names[REFERENCE] = Resolved(old)  # what the check was told before that

    registry.meanwhile = registration
    image_check(image_id=image.pk)

    image.refresh_from_db()
    assert image.moved_to == new


def test_it_compares_tags_and_nothing_else(registry: Registry) -> None:
    now = timezone.now()
    fixed = f"registry.example/serving:v1@sha256:{'a' * 64}"
    registry.names[fixed] = Resolved(f"sha256:{'a' * 64}")
    registry.push(REFERENCE, "one")
    registry.push("b:1", "two")
    registered(fixed)
    first, second = registered(REFERENCE), registered("b:1")
    image_register(actor=ADA, reference="still:resolving")
    assert images_due(now=now) == []

    Image.objects.update(checked_at=now - timedelta(days=1))
    Image.objects.filter(pk=first.pk).update(checked_at=now - timedelta(days=2))

    assert images_due(now=now) == [first.pk, second.pk]
    assert image_check(image_id=factories.artifact().pk) is None


def test_it_revokes_a_digest_whatever_names_it(registry: Registry) -> None:
    for reference in (REFERENCE, "b:1", "c:1"):
        registry.push(reference, "one")
    first, second = registered(REFERENCE), registered("b:1")

    image_revoke(actor=ADA, image_id=first.pk, reason=" CVE ")

    second.refresh_from_db()
    assert second.revoked_at is not None
    assert (second.revoked_by, second.revoked_reason, second.withdrawn_at) == ("ada", "CVE", None)
    third, operation = image_register(actor=ADA, reference="c:1")
    step(operation)
    third.refresh_from_db()
    assert (third.state, third.code) == (ImageState.REFUSED, "image:user:revoked")

    image_restore(actor=ADA, image_id=second.pk)
    first.refresh_from_db()
    assert (first.revoked_at, first.revoked_by, first.revoked_reason) == (None, "", "")
    assert registered("c:1") == third
    trail = AuditEvent.objects.filter(action__in=["image.revoke", "image.restore"]).order_by("at")
    assert [(one.actor, one.after["revoked"]) for one in trail] == [("ada", True), ("ada", False)]  # type: ignore[index]


@pytest.mark.parametrize("reason", ["", "   ", "x" * 501])
def test_it_wants_to_know_why(registry: Registry, reason: str) -> None:
    registry.push(REFERENCE, "one")
    image = registered(REFERENCE)

    with pytest.raises(Invalid) as caught:
        image_revoke(actor=ADA, image_id=image.pk, reason=reason)
    assert [error.field for error in caught.value.errors] == ["reason"]
    image.refresh_from_db()
    assert image.revoked_at is None


def test_it_revokes_only_what_has_a_digest(registry: Registry) -> None:
    image, _ = image_register(actor=ADA, reference=REFERENCE)

    with pytest.raises(Clash):
        image_revoke(actor=ADA, image_id=image.pk, reason="CVE")
    with pytest.raises(Missing):
        image_revoke(actor=ADA, image_id=factories.artifact().pk, reason="CVE")


def test_it_forgets_the_digest_with_its_last_name(registry: Registry) -> None:
    for reference in (REFERENCE, "b:1"):
        registry.push(reference, "one")
    first, second = registered(REFERENCE), registered("b:1")

    image_delete(actor=ADA, image_id=first.pk)
    assert Artifact.objects.count() == 1
    image_delete(actor=ADA, image_id=second.pk)
    assert not Artifact.objects.exists()
    with pytest.raises(Missing):
        image_delete(actor=ADA, image_id=second.pk)


def test_an_image_that_an_endpoint_runs_is_not_forgotten(registry: Registry) -> None:
    """Also where its cache is off, so that no pin names it: its digest would become a tag again, and all pods new."""
    registry.push(REFERENCE, "one")
    image = registered(REFERENCE)
    endpoint = factories.endpoint(name="chat")
    first = factories.rollout(of=endpoint, number=1, state="Done", resolved_image=image)
    with pytest.raises(Clash, match="chat runs"):
        image_delete(actor=ADA, image_id=image.pk)
    second = factories.rollout(of=endpoint, number=2, state="Holding", previous=first)
    with pytest.raises(Clash, match="chat runs"):
        image_delete(actor=ADA, image_id=image.pk)  # the way back is still open
    Rollout.objects.filter(pk=second.pk).update(state="Done")
    image_delete(actor=ADA, image_id=image.pk)
    assert not Artifact.objects.exists()


def test_it_keeps_the_digest_while_a_node_holds_it(registry: Registry) -> None:
    registry.push(REFERENCE, "one")
    image = registered(REFERENCE)
    factories.entry(of=image.artifact)

    image_delete(actor=ADA, image_id=image.pk)

    assert Artifact.objects.filter(kind=ArtifactKind.IMAGE).count() == 1


def test_it_deletes_neither_what_serves_nor_what_is_revoked(registry: Registry) -> None:
    registry.push(REFERENCE, "one")
    image = registered(REFERENCE)
    version = factories.version(image=image)
    with pytest.raises(Clash, match="serves 1 model version"):
        image_delete(actor=ADA, image_id=image.pk)

    version.delete()
    image_revoke(actor=ADA, image_id=image.pk, reason="CVE")
    with pytest.raises(Clash) as caught:
        image_delete(actor=ADA, image_id=image.pk)
    assert caught.value.code == "image:user:revoked"
