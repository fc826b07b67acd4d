"""Resolving a version: pages of a source become file records, the records a manifest, the manifest an artifact.

A step handles one page and keeps its records in ``Operation.params`` under names with ``_``, which a retry drops. A
worker killed between two steps repeats one page; nothing is visible to others before the last step's transaction.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from caches.domain.manifests import case_collisions, manifest_build
from caches.models import DriftState, ModelVersion, SourceConnection, VersionState
from caches.services.artifacts import weights_artifact
from caches.services.connections import connection_source
from caches.services.launches.rows import launches_of_version_refresh
from caches.services.listing import MAX_FILES, TooSlow, check_paths, describe_all, pack, unpack
from caches.services.registering import CanceledMeanwhile, deleted, registration_step
from caches.sources.base import PAGE_SIZE, ListedFile, Source
from caches.sources.metadata import read_metadata
from caches.sources.problems import empty_place, shown
from caches.sources.selection import wanted
from controlplane.audit.services import SYSTEM, audit_write
from controlplane.clusters.documents import FileRecord, Manifest, Reason
from controlplane.errors import Clash, HearthError, Missing, Permanent
from controlplane.operations.models import Operation, OperationState
from controlplane.operations.services import (
    operation_fail,
    operation_progress,
    operation_succeed,
)

STEP_SECONDS = 20.0  # of a worker's 45: one page of checksums, and then the headers
HEADER_SECONDS = 10.0
SMALLEST_PAGE = 20
GIVE_UP_AFTER = timedelta(hours=1)
_NOUN = "version"


def version_resolve_step(*, operation_id: UUID) -> bool:
    """Resolve one page. True when the operation ended; False asks for the next step; Transient when to try later."""
    return registration_step(
        operation_id=operation_id, noun=_NOUN, patience=GIVE_UP_AFTER, subject=_version, work=_work, refuse=_refuse
    )


def _work(operation: Operation, version: ModelVersion) -> bool:
    connection = SourceConnection.objects.filter(pk=operation.params["connection_id"]).first()
    if connection is None:
        raise Missing("version:user:no-such-connection", "The source connection was deleted meanwhile.")
    with connection_source(connection) as source:
        return _page(operation, version, source)


def resolve_small(source: Source, request: Mapping[str, Any]) -> Manifest | None:
    """The manifest at once when one page holds everything; None when it does not, or takes too long."""
    page = source.list_page(request["uri"])
    if page.next_token:
        return None
    files = [file for file in page.files if wanted(file.path, request["allow_patterns"], request["ignore_patterns"])]
    check_paths(files)
    try:
        return build(request["uri"], describe_all(source, request["uri"], files, seconds=STEP_SECONDS), len(page.files))
    except TooSlow:
        return None


def build(uri: str, records: Sequence[FileRecord], listed: int) -> Manifest:
    """The manifest of all records; Permanent when there is nothing, or names that cannot live side by side."""
    if not listed:
        raise empty_place(uri)
    if not records:
        raise Permanent(
            "version:user:everything-filtered",
            f"The patterns leave none of the {listed} files below {uri}.",
            reason=Reason.INVALID_REQUEST,
            next_step="Correct the allow and ignore patterns; they match the path below the prefix.",
        )
    # A store whose listing changes while it is read may name a file on two pages.
    unique = {record.path: record for record in records}
    if groups := case_collisions(unique):
        raise Permanent(
            "version:user:case-collision",
            f"These names cannot live side by side on every disk: {', '.join(map(shown, groups[0]))}.",
            reason=Reason.INVALID_REQUEST,
            next_step="Rename one of them at the source, or leave it out with an ignore pattern.",
        )
    return manifest_build(unique.values())


def content_differs(version: ModelVersion, found: Manifest) -> Clash:
    """The name and version exist and mean other content."""
    ours = version.artifact.digest if version.artifact else ""
    return Clash(
        "version:user:content-differs",
        f"{version.full_name} is registered with other content ({ours[:19]}…, here {found.digest[:19]}…).",
        next_step="Register this content as a new version; a version's content never changes.",
    )


def _page(operation: Operation, version: ModelVersion, source: Source) -> bool:
    params, uri = operation.params, operation.params["uri"]
    size = int(params.get("_page_size", PAGE_SIZE))
    page = source.list_page(uri, params.get("_token", ""), size)
    files = [file for file in page.files if wanted(file.path, params["allow_patterns"], params["ignore_patterns"])]
    listed = int(params.get("_listed", 0)) + len(page.files)
    kept = int(params.get("_kept", 0)) + len(files)
    _check_page(files, kept)
    try:
        records = describe_all(source, uri, files, seconds=STEP_SECONDS)
    except TooSlow:
        if size <= SMALLEST_PAGE:
            raise
        operation_progress(operation_id=operation.pk, params={**params, "_page_size": max(SMALLEST_PAGE, size // 4)})
        return False
    packed = [*params.get("_packed", []), pack(records)]
    if page.next_token:
        state = {"_token": page.next_token, "_listed": listed, "_kept": kept, "_packed": packed}
        operation_progress(
            operation_id=operation.pk, params={**params, **state}, message=f"{kept} files read, and there are more."
        )
        return False
    manifest = build(uri, [record for part in packed for record in unpack(part)], listed)
    if version.state == VersionState.AVAILABLE:
        return _compare(operation, version, manifest)
    resolved = source.resolve(uri)
    metadata = read_metadata(source, uri, manifest.files, seconds=HEADER_SECONDS) | dict(resolved.facts)
    _publish(operation, version, manifest, metadata, resolved.revision or revision_of(manifest))
    return True


def _check_page(files: Sequence[ListedFile], kept: int) -> None:
    check_paths(files)
    if kept > MAX_FILES:
        raise Permanent(
            "version:user:too-many-files",
            f"There are more than {MAX_FILES} files.",
            reason=Reason.INVALID_REQUEST,
            next_step="Name a folder further down, or use patterns.",
        )


def _publish(
    operation: Operation, version: ModelVersion, manifest: Manifest, metadata: Mapping[str, Any], revision: str
) -> None:
    now = timezone.now()
    with transaction.atomic():
        artifact, _ = weights_artifact(manifest)
        won = ModelVersion.objects.filter(pk=version.pk, state=VersionState.RESOLVING).update(
            state=VersionState.AVAILABLE,
            code="",
            message="",
            next_step="",
            artifact=artifact,
            revision=revision,
            drift=DriftState.MATCHES,
            drift_changed=[],
            drift_checked_at=now,
            metadata=dict(metadata),
            updated_at=now,
        )
        facts = {
            "digest": artifact.digest,
            "size_bytes": artifact.size_bytes,
            "files_count": artifact.files_count,
            "anchored": artifact.anchored,
        }
        if won == 1:
            _audit(version, operation, VersionState.AVAILABLE, facts)
            launches_of_version_refresh(digest=artifact.digest)
        elif not ModelVersion.objects.filter(pk=version.pk).exists():
            raise deleted(_NOUN)  # nobody would name the artifact
        _clean(operation)
        if not operation_succeed(operation_id=operation.pk, result=facts, message="Registered."):
            raise CanceledMeanwhile


def _compare(operation: Operation, version: ModelVersion, manifest: Manifest) -> bool:
    assert version.artifact is not None  # Available versions have one, by constraint
    _clean(operation)
    if version.artifact.digest == manifest.digest:
        facts = {"digest": manifest.digest, "size_bytes": manifest.size_bytes, "files_count": len(manifest.files)}
        operation_succeed(operation_id=operation.pk, result=facts, message="It was registered already.")
    else:
        operation_fail(operation_id=operation.pk, error=content_differs(version, manifest))
    return True


def _version(operation: Operation) -> ModelVersion | None:
    """The subject. A retry finds it Refused and puts it back to Resolving, with what the operation asks for."""
    params, now = operation.params, timezone.now()
    if operation.state != OperationState.CANCELING:
        ModelVersion.objects.filter(pk=operation.subject_id, state=VersionState.REFUSED).update(
            state=VersionState.RESOLVING,
            connection_id=params["connection_id"],
            uri=params["uri"],
            allow_patterns=params["allow_patterns"],
            ignore_patterns=params["ignore_patterns"],
            updated_at=now,
        )
    versions = ModelVersion.objects.select_related("model", "artifact").defer("artifact__manifest")
    return versions.filter(pk=operation.subject_id).first()


def _refuse(version: ModelVersion | None, operation: Operation, error: HearthError) -> None:
    _clean(operation)
    if version is None:
        return
    fields = {"code": error.code, "message": error.detail[:1000], "next_step": error.next_step[:500]}
    with transaction.atomic():
        rows = ModelVersion.objects.filter(pk=version.pk, state=VersionState.RESOLVING)
        if rows.update(state=VersionState.REFUSED, updated_at=timezone.now(), **fields) == 1:
            _audit(version, operation, VersionState.REFUSED, fields)


def _clean(operation: Operation) -> None:
    """Drop the pages: an operation is listed and shown for months."""
    kept = {key: value for key, value in operation.params.items() if not key.startswith("_")}
    operation_progress(operation_id=operation.pk, params=kept)


def revision_of(manifest: Manifest) -> str:
    """One short name for the revisions of all files, to compare by eye."""
    lines = "\n".join(f"{file.path}\0{file.revision}\0{file.version_id}" for file in manifest.files)
    return hashlib.sha256(lines.encode()).hexdigest()[:16]


def _audit(version: ModelVersion, operation: Operation, state: VersionState, facts: Mapping[str, Any]) -> None:
    audit_write(
        actor=SYSTEM,
        action=f"version.{state.value.lower()}",
        object_type="version",
        object_id=str(version.pk),
        object_name=version.full_name,
        before={"state": VersionState.RESOLVING},
        after={"state": state, **facts},
        operation_id=operation.pk,
    )
