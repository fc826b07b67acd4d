"""Drift: does the source still hold what was registered? Flags the version, replaces nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from uuid import UUID

import structlog
from django.conf import settings
from django.db import transaction
from django.db.models import F, Q, QuerySet
from django.utils import timezone

from caches.domain.manifests import manifest_decode
from caches.models import DriftState, ModelVersion, VersionState
from caches.services.connections import connection_source
from caches.services.listing import MAX_FILES, describe_all
from caches.sources.base import ListedFile, Source
from caches.sources.problems import shown
from caches.sources.selection import wanted
from controlplane.audit.services import SYSTEM, Actor, audit_write
from controlplane.clusters.documents import Algorithm, FileRecord, Manifest, Reason
from controlplane.errors import Clash, HearthError, Missing, Permanent
from controlplane.operations.models import ACTIVE_STATES, FINAL_STATES, Operation, OperationKind, OperationState
from controlplane.operations.services import (
    operation_acknowledge,
    operation_fail,
    operation_run,
    operation_start,
    operation_succeed,
)

LIST_PAGE = 1000
DESCRIBE_SECONDS = 25.0
MOST_SHOWN = 100
DUE_AT_ONCE = 20

log = structlog.get_logger(__name__)


def version_recheck(*, actor: Actor, version_id: UUID) -> Operation:
    """Compare a version with its source in the background; the running comparison when there is one already."""
    with transaction.atomic():
        rows = ModelVersion.objects.select_for_update(of=("self",)).select_related("model")
        version = rows.filter(pk=version_id).first()
        if version is None:
            raise Missing("version:user:not-found", "There is no such version.")
        if version.state != VersionState.AVAILABLE:
            raise Clash(
                "version:user:not-available",
                f"{version.full_name} is {version.state}: there is nothing to compare yet.",
                next_step="Wait until its registration has succeeded.",
            )
        running = _running().filter(subject_id=str(version_id)).first()
        return running or operation_start(
            actor=actor,
            kind=OperationKind.MODEL_RECHECK,
            subject_type="version",
            subject_id=str(version_id),
            subject_name=version.full_name,
        )


def version_recheck_step(*, operation_id: UUID) -> bool:
    """The whole comparison: listings are cheap, and only files that look different are asked for their checksum."""
    operation = Operation.objects.filter(pk=operation_id).first()
    if operation is None or operation.state in FINAL_STATES:
        return True
    if operation.state == OperationState.CANCELING:
        operation_acknowledge(operation_id=operation_id)
        return True
    operation_run(operation_id=operation_id)
    versions = ModelVersion.objects.select_related("model", "artifact", "connection")
    version = versions.filter(pk=operation.subject_id, state=VersionState.AVAILABLE).first()
    if version is None or version.artifact is None:
        return operation_fail(
            operation_id=operation_id, error=Missing("version:user:not-found", "The version was deleted meanwhile.")
        )
    try:
        with connection_source(version.connection) as source:
            changes = compare(source, version, manifest_decode(bytes(version.artifact.manifest)))
    except HearthError as error:
        _record(version, DriftState.UNREACHABLE, version.drift_changed, operation)
        return operation_fail(operation_id=operation_id, error=error)
    state = DriftState.DRIFTED if changes else DriftState.MATCHES
    _record(version, state, changes[:MOST_SHOWN], operation)
    result = {"drift": state.value, "changed_count": len(changes), "changed": changes[:MOST_SHOWN]}
    message = f"{len(changes)} files differ from what was registered." if changes else "Nothing changed."
    return operation_succeed(operation_id=operation_id, result=result, message=message)


def rechecks_due(*, now: datetime) -> list[UUID]:
    """Versions whose last comparison is older than SOURCE_RECHECK_SECONDS, the oldest first, a few at a time."""
    before = now - timedelta(seconds=settings.SOURCE_RECHECK_SECONDS)
    due = ModelVersion.objects.filter(
        Q(drift_checked_at__isnull=True) | Q(drift_checked_at__lte=before), state=VersionState.AVAILABLE
    )
    running = [UUID(key) for key in _running().values_list("subject_id", flat=True)]
    oldest = due.exclude(pk__in=running).order_by(F("drift_checked_at").asc(nulls_first=True), "pk")
    return list(oldest.values_list("pk", flat=True)[:DUE_AT_ONCE])


def rechecks_suspected(*, artifact_ids: Collection[UUID]) -> int:
    """Compare the versions of artifacts whose source a node found changed; returns how many comparisons run for it.

    A version that is known to have drifted is left to its usual round: there is nothing new to learn.
    """
    suspected = ModelVersion.objects.filter(artifact__in=artifact_ids, state=VersionState.AVAILABLE)
    count = 0
    for version_id in suspected.exclude(drift=DriftState.DRIFTED).order_by("pk").values_list("pk", flat=True):
        try:
            version_recheck(actor=SYSTEM, version_id=version_id)
            count += 1
        except HearthError as error:  # it was deleted or registered anew meanwhile
            log.info("recheck.refused", version=str(version_id), code=error.code)
    return count


def compare(source: Source, version: ModelVersion, manifest: Manifest) -> list[dict[str, str]]:
    """``{path, change}`` for every file that was Added, Removed or Changed, in path order."""
    registered = {file.path: file for file in manifest.files}
    found = _listed(source, version)
    suspects = [
        file
        for path, file in found.items()
        if path in registered and (file.revision, file.size_bytes) != _looks(registered[path])
    ]
    described = describe_all(source, version.uri, suspects, seconds=DESCRIBE_SECONDS)
    changes = {record.path: "Changed" for record in described if not _same(record, registered[record.path])}
    changes |= dict.fromkeys(found.keys() - registered.keys(), "Added")
    changes |= dict.fromkeys(registered.keys() - found.keys(), "Removed")
    return [{"path": shown(path), "change": changes[path]} for path in sorted(changes)]


def _listed(source: Source, version: ModelVersion) -> Mapping[str, ListedFile]:
    found: dict[str, ListedFile] = {}
    token = ""
    while True:
        try:
            page = source.list_page(version.uri, token, LIST_PAGE)
        except Permanent as error:
            if error.code != "source:user:empty-prefix":
                raise
            return found  # the folder itself is gone: every file was removed
        for file in page.files:
            if wanted(file.path, version.allow_patterns, version.ignore_patterns):
                found[file.path] = file
        if len(found) > MAX_FILES:
            raise Permanent(
                "version:source:too-many-files",
                f"The source holds more than {MAX_FILES} files now.",
                reason=Reason.SOURCE_CHANGED,
                next_step="Look at what was added below the registered address.",
            )
        token = page.next_token
        if not token:
            return found


def _looks(file: FileRecord) -> tuple[str, int]:
    return file.revision, file.size_bytes


def _same(found: FileRecord, registered: FileRecord) -> bool:
    """A new upload of the very same bytes is no drift where the store can prove it; elsewhere any new revision is one,
    because nodes refuse it. A Stat is its own revision, whatever else an older registration wrote down."""
    same = (found.size_bytes, found.algorithm, found.checksum) == (
        registered.size_bytes,
        registered.algorithm,
        registered.checksum,
    )
    by_checksum = registered.algorithm.is_content or registered.algorithm is Algorithm.STAT
    return same and (by_checksum or found.revision == registered.revision)


def _record(version: ModelVersion, state: DriftState, changes: list[dict[str, str]], operation: Operation) -> None:
    now = timezone.now()
    with transaction.atomic():
        ModelVersion.objects.filter(pk=version.pk).update(
            drift=state, drift_changed=changes, drift_checked_at=now, updated_at=now
        )
        if state != version.drift:
            audit_write(
                actor=SYSTEM,
                action="version.drift",
                object_type="version",
                object_id=str(version.pk),
                object_name=version.full_name,
                before={"drift": version.drift},
                after={"drift": state, "changed": [change["path"] for change in changes]},
                operation_id=operation.pk,
            )


def _running() -> QuerySet[Operation]:
    return Operation.objects.filter(kind=OperationKind.MODEL_RECHECK, subject_type="version", state__in=ACTIVE_STATES)
