"""The catalogue's verbs: register a version, compare it with its source again, delete it.

The steps of the two operations live in resolving.py and drift.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import ProtectedError, QuerySet
from django.utils import timezone

from caches.models import Artifact, DriftState, Model, ModelVersion, Pin, SourceConnection, VersionState
from caches.services.connections import connection_source
from caches.services.drift import rechecks_due, version_recheck, version_recheck_step
from caches.services.eula import terms_settle
from caches.services.listing import check_patterns
from caches.services.resolving import content_differs, resolve_small, version_resolve_step
from controlplane.audit.services import Actor, audit_write
from controlplane.errors import Clash, FieldError, Invalid, Missing
from controlplane.operations.models import ACTIVE_STATES, Operation, OperationKind
from controlplane.operations.services import operation_start, operation_succeed

__all__ = [
    "rechecks_due",
    "version_delete",
    "version_recheck",
    "version_recheck_step",
    "version_register",
    "version_resolve_step",
]

_MODEL = re.compile(r"[A-Za-z0-9_-]{1,120}")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,119}")


def version_register(
    *,
    actor: Actor,
    model: str,
    version: str,
    connection: SourceConnection,
    uri: str,
    allow_patterns: Sequence[str] = (),
    ignore_patterns: Sequence[str] = (),
    accept_eula: bool = False,
) -> tuple[ModelVersion, Operation]:
    """Register what is below ``uri`` now under a name, in the background; its access is checked before this returns.

    A branch or tag in ``uri`` is resolved now and never again: the version's own ``uri`` names the commit. Where the
    source wants terms accepted, ``accept_eula`` does so in the actor's name; once is enough for a text.

    The same content again gives the version there is. Invalid for wrong names; the source's Permanent or Transient
    when the place cannot be read; Clash when the name means other content or is being registered from elsewhere.
    """
    check_names(model, version, uri)
    check_patterns(allow_patterns=allow_patterns, ignore_patterns=ignore_patterns)
    request: dict[str, Any] = {
        "connection_id": str(connection.pk),
        "allow_patterns": list(allow_patterns),
        "ignore_patterns": list(ignore_patterns),
    }
    existing = ModelVersion.objects.filter(model__name=model, version=version, state=VersionState.AVAILABLE)
    with connection_source(connection) as source:
        # From here on it means one revision: every page, every node and every repeat reads the same.
        request["uri"] = source.resolve(uri.rstrip("/")).uri
        if (terms := source.terms(request["uri"])) is not None:
            request["uri"] = terms_settle(actor=actor, connection=connection, terms=terms, accept=accept_eula)
        source.check(request["uri"])
        found = resolve_small(source, request) if existing.exists() else None
    with transaction.atomic():
        row, created = _row(model, version, request)
        if created:
            return row, _start(actor, row, request, "version.register")
        if row.state == VersionState.AVAILABLE:
            if found is None:
                return row, _start(actor, row, request, None)
            if row.artifact is None or row.artifact.digest != found.digest:
                raise content_differs(row, found)
            return row, _registered_by(actor, row, request)
        if row.state == VersionState.RESOLVING:
            return row, _joined(actor, row, request)
        _point(row, request)
        return row, _start(actor, row, request, "version.register")


def version_delete(*, actor: Actor, version_id: UUID) -> None:
    """Forget a version, and its artifact when nothing else has it. Clash while a pin wants it or is being removed."""
    with transaction.atomic():
        row = ModelVersion.objects.select_for_update().filter(pk=version_id).first()
        if row is None:
            raise Missing("version:user:not-found", "There is no such version.")
        pins = Pin.objects.filter(version=row)
        if pins.filter(removed_at__isnull=True).exists():
            raise Clash("version:user:pinned", f"{row.full_name} is pinned.", next_step="Remove its pin first.")
        ids = [str(pk) for pk in pins.values_list("pk", flat=True)]
        removing = Operation.objects.filter(kind=OperationKind.PIN_REMOVE, subject_id__in=ids, state__in=ACTIVE_STATES)
        if removing.exists():
            raise Clash(
                "version:user:pin-ending",
                f"The pin of {row.full_name} is still being removed.",
                next_step="Wait until that operation has ended.",
            )
        pins.delete()
        _audit(actor, "version.delete", row, before=_document(row), after=None)
        model_id, artifact_id = row.model_id, row.artifact_id
        row.delete()
        if not ModelVersion.objects.filter(model_id=model_id).exists():
            Model.objects.filter(pk=model_id).delete()
        _artifact_forget(artifact_id)


def _row(model: str, version: str, request: dict[str, Any]) -> tuple[ModelVersion, bool]:
    """The version's row, locked; True when this call made it."""
    # Locked, so that it cannot be deleted between here and the end of the transaction.
    if SourceConnection.objects.select_for_update(no_key=True).filter(pk=request["connection_id"]).first() is None:
        raise Missing("version:user:no-such-connection", "The source connection was deleted meanwhile.")
    parent, _ = Model.objects.get_or_create(name=model)
    Model.objects.select_for_update(no_key=True).get(pk=parent.pk)
    row, created = ModelVersion.objects.get_or_create(model=parent, version=version, defaults=request)
    if not created:
        rows = ModelVersion.objects.select_for_update(of=("self",)).select_related("model", "artifact")
        row = rows.get(pk=row.pk)
    return row, created


def _point(row: ModelVersion, request: dict[str, Any]) -> None:
    """A refused version starts anew, maybe from another place."""
    ModelVersion.objects.filter(pk=row.pk, state=VersionState.REFUSED).update(
        **request,
        state=VersionState.RESOLVING,
        code="",
        message="",
        next_step="",
        drift=DriftState.UNCHECKED,
        updated_at=timezone.now(),
    )
    row.refresh_from_db()


def _joined(actor: Actor, row: ModelVersion, request: dict[str, Any]) -> Operation:
    """A second request while the first one works: the same operation, unless it asks for something else."""
    if any(getattr(row, name) != value for name, value in request.items() if name != "connection_id") or (
        str(row.connection_id) != request["connection_id"]
    ):
        raise Clash(
            "version:user:registering",
            f"{row.full_name} is being registered from {row.uri}.",
            next_step="Wait until that has ended, or cancel its operation.",
        )
    running = _operations(row).filter(state__in=ACTIVE_STATES).first()
    return running or _start(actor, row, request, None)


def _registered_by(actor: Actor, row: ModelVersion, request: dict[str, Any]) -> Operation:
    """The operation that registered it, or a fresh one that says so where that was purged."""
    done = _operations(row).filter(state="Succeeded").first()
    if done is None:
        done = _start(actor, row, request, None)
        digest = row.artifact.digest if row.artifact else ""
        operation_succeed(operation_id=done.pk, result={"digest": digest}, message="It was registered already.")
        done.refresh_from_db()
    return done


def _operations(row: ModelVersion) -> QuerySet[Operation]:
    return Operation.objects.filter(
        kind=OperationKind.MODEL_REGISTER, subject_type="version", subject_id=str(row.pk)
    ).order_by("-id")


def _start(actor: Actor, row: ModelVersion, request: dict[str, Any], action: str | None) -> Operation:
    operation = operation_start(
        actor=actor,
        kind=OperationKind.MODEL_REGISTER,
        subject_type="version",
        subject_id=str(row.pk),
        subject_name=row.full_name,
        params=request,
    )
    if action:
        _audit(actor, action, row, before=None, after=_document(row), operation=operation)
    return operation


def _artifact_forget(artifact_id: UUID | None) -> None:
    """Delete an artifact that no version names and no node holds."""
    if artifact_id is None or ModelVersion.objects.filter(artifact_id=artifact_id).exists():
        return
    try:
        with transaction.atomic():
            Artifact.objects.filter(pk=artifact_id).delete()
    except ProtectedError:
        pass  # nodes still hold it: the planner evicts it like anything that nobody wants


def check_names(model: str, version: str, uri: str) -> None:
    """Invalid with every name that is none."""
    errors = []
    if not _MODEL.fullmatch(model):
        detail = "A model's name has letters, digits, _ and -, at most 120."
        errors.append(FieldError("model", "version:user:model-name", detail))
    if not _VERSION.fullmatch(version):
        detail = "A version has letters, digits and . _ + -, begins with a letter or digit, and has at most 120."
        errors.append(FieldError("version", "version:user:version-name", detail))
    if len(uri) > 1500:
        errors.append(FieldError("source.uri", "version:user:uri", "The address has at most 1500 characters."))
    if errors:
        raise Invalid(
            "version:user:invalid", " ".join(e.detail for e in errors), next_step="Correct it.", errors=errors
        )


def _document(row: ModelVersion) -> dict[str, Any]:
    return {
        "state": row.state,
        "connection": row.connection.name,
        "uri": row.uri,
        "allow_patterns": row.allow_patterns,
        "ignore_patterns": row.ignore_patterns,
        "digest": row.artifact.digest if row.artifact else None,
    }


def _audit(
    actor: Actor,
    action: str,
    row: ModelVersion,
    *,
    before: dict[str, Any] | None,
    after: dict[str, Any] | None,
    operation: Operation | None = None,
) -> None:
    audit_write(
        actor=actor,
        action=action,
        object_type="version",
        object_id=str(row.pk),
        object_name=row.full_name,
        before=before,
        after=after,
        operation_id=operation.pk if operation else None,
    )
