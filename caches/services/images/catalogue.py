"""Images' verbs: register a reference, watch its tag, revoke and restore a digest, forget an image."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import F, ProtectedError, Q
from django.utils import timezone

from caches.domain.images import DEFAULT_NAMES, ImageReference, NotAReference, parse_reference
from caches.domain.rollouts import FINAL
from caches.domain.text import plural
from caches.models import Artifact, Image, ImageState, Rollout, SourceConnection
from caches.selectors.images import image_pools
from caches.services.images import resolver as image_resolver
from caches.services.loop.pool_rounds import pools_mark_dirty
from controlplane.audit.services import SYSTEM, Actor, audit_write
from controlplane.clusters.documents import ArtifactKind
from controlplane.errors import Clash, FieldError, HearthError, Invalid, Missing
from controlplane.locks import transaction_lock
from controlplane.operations.models import ACTIVE_STATES, Operation, OperationKind
from controlplane.operations.services import operation_start
from controlplane.serving.models import Endpoint

DUE_AT_ONCE = 20


def image_register(
    *, actor: Actor, reference: str, connection: SourceConnection | None = None, pull_secret: str = ""
) -> tuple[Image, Operation]:
    """Resolve a reference to a digest, in the background. A tag that has moved since makes another image of the same
    reference; the operation's result names it. Invalid for what is no reference; Clash while it is being registered
    from elsewhere."""
    parsed = at_registry(_parsed(reference, pull_secret), connection)
    text = str(parsed)
    params: dict[str, Any] = {"reference": text, "connection_id": str(connection.pk) if connection else None}
    with transaction.atomic():
        transaction_lock(f"image:{text}")
        rows = Image.objects.select_for_update(no_key=True).filter(reference=text)
        row = rows.filter(state=ImageState.RESOLVING).first()
        if row is not None:
            return row, _joined(actor, row, params)
        row = rows.filter(state=ImageState.AVAILABLE).order_by("-pk").first()
        if row is not None:
            return row, _running(row) or _start(actor, row, params)
        row = rows.order_by("-pk").first()
        fields: dict[str, Any] = {"connection": connection, "pull_secret": pull_secret, "state": ImageState.RESOLVING}
        if row is None:
            names = {"registry": parsed.registry, "repository": parsed.repository, "tag": parsed.tag}
            row = Image.objects.create(reference=text, **names, **fields)
        else:
            # Why it was refused stays until somebody answers: meanwhile it is all that is known.
            for name, value in fields.items():
                setattr(row, name, value)
            row.save(update_fields=[*fields, "updated_at"])
        operation = _start(actor, row, params)
        _audit(actor, "image.register", row, None, {"state": row.state, **params}, operation=operation)
        return row, operation


def image_check(*, image_id: UUID) -> Image | None:
    """Ask the registry what the tag names now, and remember it. None when there is no such image any more."""
    image = Image.objects.select_related("connection", "artifact").filter(pk=image_id).first()
    if image is None or image.artifact is None:
        return None
    found, message = image.moved_to or image.artifact.digest, ""
    try:
        with image_resolver.image_resolver(image.connection) as resolver:
            found = resolver.current_digest(image.reference)
    except HearthError as error:
        message = f"{error.detail} {error.next_step}".strip()[:1000]
    moved_to = "" if found == image.artifact.digest else found[:80]
    now = timezone.now()
    with transaction.atomic():
        # Only over what was read: a registration that ended meanwhile knows better.
        rows = Image.objects.filter(pk=image.pk, moved_to=image.moved_to, checked_at=image.checked_at)
        won = rows.update(moved_to=moved_to, checked_at=now, check_message=message, updated_at=now)
        if won == 1 and moved_to != image.moved_to:
            before = {"named": image.moved_to or image.artifact.digest}
            _audit(SYSTEM, "image.moved", image, before, {"named": found[:80]})
    image.refresh_from_db()
    return image


def images_due(*, now: datetime) -> list[UUID]:
    """Images with a tag that were not compared for SOURCE_RECHECK_SECONDS, the oldest first, a few at a time."""
    before = now - timedelta(seconds=settings.SOURCE_RECHECK_SECONDS)
    due = Image.objects.filter(Q(checked_at__isnull=True) | Q(checked_at__lte=before), state=ImageState.AVAILABLE)
    oldest = due.exclude(tag="").exclude(reference__contains="@").order_by(F("checked_at").asc(nulls_first=True), "pk")
    return list(oldest.values_list("pk", flat=True)[:DUE_AT_ONCE])


def image_revoke(*, actor: Actor, image_id: UUID, reason: str, withdraw: bool = False) -> Image:
    """Refuse the digest for new pins from now on, whatever names it; with ``withdraw`` it leaves every node too.

    Asking again may add the withdrawal. Invalid without a reason; Clash while there is no digest.
    """
    reason = reason.strip()
    if not 0 < len(reason) <= 500:
        detail = "Say in 1 to 500 characters why."
        error = FieldError("reason", "image:user:reason", detail)
        raise Invalid("image:user:reason", detail, next_step="Send a reason.", errors=[error])
    with transaction.atomic():
        image = _locked(image_id)
        now, rows = timezone.now(), Image.objects.filter(artifact=image.artifact_id)
        before = _marks(image)
        rows.filter(revoked_at__isnull=True).update(revoked_at=now, revoked_by=actor.name[:150], updated_at=now)
        rows.update(revoked_reason=reason, updated_at=now)
        if withdraw:
            rows.filter(withdrawn_at__isnull=True).update(withdrawn_at=now, updated_at=now)
            _pools_dirty(image)
        image.refresh_from_db()
        _audit(actor, "image.revoke", image, before, _marks(image))
    return image


def image_restore(*, actor: Actor, image_id: UUID) -> Image:
    """Take a revocation back, and the withdrawal with it: pins that want the image get it again."""
    with transaction.atomic():
        image = _locked(image_id)
        before = _marks(image)
        if image.revoked_at is None:
            return image
        Image.objects.filter(artifact=image.artifact_id).update(
            revoked_at=None, revoked_by="", revoked_reason="", withdrawn_at=None, updated_at=timezone.now()
        )
        _pools_dirty(image)
        image.refresh_from_db()
        _audit(actor, "image.restore", image, before, _marks(image))
    return image


def image_delete(*, actor: Actor, image_id: UUID) -> None:
    """Forget an image that nothing names. Clash otherwise, and for a revoked one: its mark would be lost."""
    with transaction.atomic():
        image = Image.objects.select_for_update().filter(pk=image_id).first()
        if image is None:
            raise _missing()
        if image.versions.exists():
            raise Clash(
                "image:user:in-use",
                f"{image.reference} serves {plural(image.versions.count(), 'model version')}.",
                next_step="Give those versions another image first.",
            )
        if image.pins.filter(removed_at__isnull=True).exists():
            raise Clash(
                "image:user:pinned",
                f"A pin keeps {image.reference} on nodes.",
                next_step="Remove the pin, or change the endpoint whose pin it is, first.",
            )
        if (served := _served_with(image)) is not None:
            raise Clash(
                "image:user:served",
                f"The endpoint {served.full_name} runs {image.reference} by the digest that this row keeps.",
                next_step="Change the endpoint's image, or delete the endpoint, first.",
            )
        if image.revoked_at is not None:
            raise Clash(
                "image:user:revoked",
                f"{image.reference} is revoked; without this row its digest could be registered again.",
                next_step="Restore it first if it may be used again.",
            )
        _audit(actor, "image.delete", image, {"state": image.state, "digest": _digest(image)}, None)
        artifact_id = image.artifact_id
        image.pins.update(image=None)  # of the past
        image.delete()
        _artifact_forget(artifact_id)


def _served_with(image: Image) -> Endpoint | None:
    """An endpoint whose newest rollout resolved to it, also where its image cache is off; or one that may go back."""
    live = Rollout.objects.filter(endpoint__gone_at__isnull=True, endpoint__released_at__isnull=True)
    newest = live.order_by("endpoint_id", "-number").distinct("endpoint_id")
    for row in newest.select_related("endpoint__cluster", "previous"):
        back = row.previous if row.state not in FINAL else None
        if image.pk in (row.resolved_image_id, back.resolved_image_id if back is not None else None):
            return row.endpoint
    return None


def _artifact_forget(artifact_id: UUID | None) -> None:
    """Delete the digest's row when nothing names it and no node holds it."""
    if artifact_id is None or Image.objects.filter(artifact=artifact_id).exists():
        return
    try:
        with transaction.atomic():
            Artifact.objects.filter(pk=artifact_id, kind=ArtifactKind.IMAGE).delete()
    except ProtectedError:
        pass  # nodes still hold it


def _parsed(reference: str, pull_secret: str) -> ImageReference:
    errors = []
    parsed = None
    try:
        parsed = parse_reference(reference)
    except NotAReference as error:
        errors.append(FieldError("reference", "image:user:reference", str(error)))
    if len(pull_secret) > 253:
        errors.append(
            FieldError("pull_secret", "image:user:pull-secret", "A secret's name has at most 253 characters.")
        )
    if errors or parsed is None:
        raise Invalid("image:user:invalid", " ".join(e.detail for e in errors), next_step="Correct it.", errors=errors)
    return parsed


def at_registry(parsed: ImageReference, connection: SourceConnection | None) -> ImageReference:
    """With the connection's registry where the reference names none: nodes know of no connections."""
    host = urlsplit(connection.endpoint).netloc if connection is not None else ""
    if parsed.registry or host.lower() in DEFAULT_NAMES:
        return parsed
    return replace(parsed, registry=host.lower())


def _joined(actor: Actor, row: Image, params: dict[str, Any]) -> Operation:
    """A second request while the first one works: the same operation, unless it would ask somebody else."""
    if str(row.connection_id or "") != str(params["connection_id"] or ""):
        raise Clash(
            "image:user:registering",
            f"{row.reference} is being registered through another connection.",
            next_step="Wait until that has ended, or cancel its operation.",
        )
    return _running(row) or _start(actor, row, params)


def _running(row: Image) -> Operation | None:
    rows = Operation.objects.filter(kind=OperationKind.IMAGE_REGISTER, subject_type="image", subject_id=str(row.pk))
    return rows.filter(state__in=ACTIVE_STATES).order_by("-id").first()


def _start(actor: Actor, row: Image, params: dict[str, Any]) -> Operation:
    return operation_start(
        actor=actor,
        kind=OperationKind.IMAGE_REGISTER,
        subject_type="image",
        subject_id=str(row.pk),
        subject_name=row.reference,
        params=params,
    )


def _locked(image_id: UUID) -> Image:
    """The row and its digest's, which a registration locks as well."""
    image = Image.objects.filter(pk=image_id).first()
    if image is None:
        raise _missing()
    if image.artifact_id is None:
        raise Clash(
            "image:user:not-available",
            f"{image.reference} is {image.state}: it has no digest.",
            next_step="Wait until its registration has succeeded.",
        )
    Artifact.objects.select_for_update(no_key=True).only("pk").get(pk=image.artifact_id)
    image.refresh_from_db()
    return image


def _pools_dirty(image: Image) -> None:
    pools_mark_dirty(pool_ids=[pool.pk for pool in image_pools(image)])


def _marks(image: Image) -> dict[str, Any]:
    return {
        "digest": _digest(image),
        "revoked": image.revoked_at is not None,
        "withdrawn": image.withdrawn_at is not None,
        "reason": image.revoked_reason,
    }


def _digest(image: Image) -> str:
    return image.artifact.digest if image.artifact else ""


def _missing() -> Missing:
    return Missing("image:user:not-found", "There is no such image.", next_step="List the images.")


def _audit(
    actor: Actor,
    action: str,
    image: Image,
    before: dict[str, Any] | None,
    after: dict[str, Any] | None,
    *,
    operation: Operation | None = None,
) -> None:
    audit_write(
        actor=actor,
        action=action,
        object_type="image",
        object_id=str(image.pk),
        object_name=image.reference,
        before=before,
        after=after,
        operation_id=operation.pk if operation else None,
    )
