"""The step that resolves an image: one question to its registry, then one transaction."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from caches.domain.images import parse_reference
from caches.models import Artifact, Image, ImageState, SourceConnection
from caches.services.images import resolver as image_resolver
from caches.services.images.resolver import ResolvedImage
from caches.services.registering import CanceledMeanwhile, deleted, registration_step
from controlplane.audit.services import SYSTEM, audit_write
from controlplane.clusters.documents import ArtifactKind, Reason
from controlplane.errors import HearthError, Missing, Permanent
from controlplane.locks import transaction_lock
from controlplane.operations.models import Operation, OperationState
from controlplane.operations.services import (
    operation_succeed,
)

GIVE_UP_AFTER = timedelta(minutes=10)
_NOUN = "image"


def image_resolve_step(*, operation_id: UUID) -> bool:
    """Resolve the reference. True when the operation ended; False asks for another step; Transient: later."""
    return registration_step(
        operation_id=operation_id, noun=_NOUN, patience=GIVE_UP_AFTER, subject=_image, work=_work, refuse=_refuse
    )


def _work(operation: Operation, image: Image) -> bool:
    found = _ask(image, operation)
    _check(image, found)
    _publish(operation, image, found)
    return True


def _ask(image: Image, operation: Operation) -> ResolvedImage:
    connection = None
    if key := operation.params.get("connection_id"):
        connection = SourceConnection.objects.filter(pk=key).first()
        if connection is None:
            raise Missing("image:user:no-such-connection", "The source connection was deleted meanwhile.")
    with image_resolver.image_resolver(connection) as resolver:
        return resolver.resolve(image.reference)


def _check(image: Image, found: ResolvedImage) -> None:
    """Permanent where the registry said something that no image can be."""
    wanted = parse_reference(image.reference).digest
    if wanted and found.digest != wanted:
        raise Permanent(
            "image:source:other-digest",
            f"The registry answers {image.reference[:200]} with {found.digest[:80]}.",
            reason=Reason.INTEGRITY_MISMATCH,
            next_step="Do not use this registry before its operator has explained that.",
        )
    if found.unpacked_bytes <= 0 or found.compressed_bytes < 0:
        raise Permanent(
            "image:source:no-size",
            "The registry states no size for its layers.",
            reason=Reason.SOURCE_UNAVAILABLE,
            next_step="Push the image again with a current client.",
        )


def _publish(operation: Operation, image: Image, found: ResolvedImage) -> None:
    with transaction.atomic():
        transaction_lock(f"image:{image.reference}")
        Artifact.objects.get_or_create(
            digest=found.digest,
            defaults={
                "kind": ArtifactKind.IMAGE,
                "size_bytes": found.unpacked_bytes,
                "files_count": 0,
                "anchored": True,
                "manifest": b"",
            },
        )
        # Locked, so that a revocation comes before or after this and never between.
        artifact = Artifact.objects.select_for_update(no_key=True).defer("manifest").get(digest=found.digest)
        if Image.objects.filter(artifact=artifact, revoked_at__isnull=False).exists():
            raise _revoked(found.digest)
        row, message = _settle(operation, image, artifact, found)
        facts = {
            "image_id": str(row.pk),
            "digest": artifact.digest,
            "size_bytes": artifact.size_bytes,
            "compressed_bytes": row.compressed_bytes,
        }
        if not operation_succeed(operation_id=operation.pk, result=facts, message=message):
            raise CanceledMeanwhile


def _settle(operation: Operation, image: Image, artifact: Artifact, found: ResolvedImage) -> tuple[Image, str]:
    """The row that stands for this reference and this digest; those of other digests are told that the tag moved."""
    now = timezone.now()
    here: dict[str, Any] = {"moved_to": "", "checked_at": now, "check_message": "", "updated_at": now}
    available = Image.objects.filter(reference=image.reference, state=ImageState.AVAILABLE)
    available.exclude(artifact=artifact).update(**here | {"moved_to": artifact.digest})
    fields: dict[str, Any] = {
        **here,
        "state": ImageState.AVAILABLE,
        "code": "",
        "message": "",
        "next_step": "",
        "artifact": artifact,
        "media_type": found.media_type[:120],
        "platforms": list(found.platforms)[:50],
        "compressed_bytes": found.compressed_bytes,
        "resolved_at": now,
    }
    facts = {"digest": artifact.digest, "size_bytes": artifact.size_bytes}
    known = available.filter(artifact=artifact).first()
    if known is not None:
        Image.objects.filter(pk=known.pk).update(**here)
        Image.objects.filter(pk=image.pk, state=ImageState.RESOLVING).delete()
        return known, "It was registered already."
    if Image.objects.filter(pk=image.pk, state=ImageState.RESOLVING).update(**fields) == 1:
        image.refresh_from_db()
        _audit(image, operation, ImageState.RESOLVING, ImageState.AVAILABLE, facts)
        return image, "Registered."
    if not Image.objects.filter(pk=image.pk).exists():
        raise deleted(_NOUN)
    copied = {name: getattr(image, name) for name in ("reference", "registry", "repository", "tag", "pull_secret")}
    made = Image.objects.create(**copied, connection_id=operation.params.get("connection_id"), **fields)
    _audit(made, operation, None, ImageState.AVAILABLE, facts)
    return made, "The tag has moved: it is registered beside what it named before."


def _image(operation: Operation) -> Image | None:
    """The subject. A retry finds it Refused and puts it back to Resolving."""
    if operation.state != OperationState.CANCELING:
        busy = Image.objects.filter(reference=operation.params["reference"], state=ImageState.RESOLVING).exists()
        if not busy:
            Image.objects.filter(pk=operation.subject_id, state=ImageState.REFUSED).update(
                state=ImageState.RESOLVING, updated_at=timezone.now()
            )
    return Image.objects.select_related("connection").filter(pk=operation.subject_id).first()


def _refuse(image: Image | None, operation: Operation, error: HearthError) -> None:
    if image is None:
        return
    fields = {"code": error.code, "message": error.detail[:1000], "next_step": error.next_step[:500]}
    with transaction.atomic():
        rows = Image.objects.filter(pk=image.pk, state=ImageState.RESOLVING)
        if rows.update(state=ImageState.REFUSED, updated_at=timezone.now(), **fields) == 1:
            _audit(image, operation, ImageState.RESOLVING, ImageState.REFUSED, fields)


def _revoked(digest: str) -> Permanent:
    return Permanent(
        "image:user:revoked",
        f"{digest[:19]}… was revoked.",
        reason=Reason.INVALID_REQUEST,
        next_step="Register an image with another digest, or restore the revoked one.",
    )


def _audit(
    image: Image, operation: Operation, before: ImageState | None, after: ImageState, facts: Mapping[str, Any]
) -> None:
    audit_write(
        actor=SYSTEM,
        action=f"image.{after.value.lower()}",
        object_type="image",
        object_id=str(image.pk),
        object_name=image.reference[:300],
        before={"state": before} if before else None,
        after={"state": after, **facts},
        operation_id=operation.pk,
    )
