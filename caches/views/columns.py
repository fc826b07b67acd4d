"""Columns that several tables share."""

from __future__ import annotations

from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from caches.models import CacheEntry
from caches.selectors.entries import artifact_name
from caches.views.base import node_url, pool_of, version_url
from controlplane.clusters.documents import ArtifactKind, EntryState
from controlplane.operations.models import Operation
from controlplane.web import cells
from controlplane.web.formats import duration_text, rate_text
from controlplane.web.tables import Column
from controlplane.web.tones import Tone, look_of

_MOVING = frozenset({EntryState.DOWNLOADING, EntryState.VERIFYING, EntryState.REPAIRING})


def entry_state(entry: CacheEntry) -> SafeString:
    """Icon, word, colour; then the reason, since when and when it is tried again."""
    shown: str = entry.shown_state  # type: ignore[attr-defined]  # annotated by entries_list
    known = f"Last known: {entry.state}." if shown != entry.state else ""
    why = f"{entry.reason}: {entry.message}" if entry.reason and entry.message else entry.reason or entry.message
    retry = cells.when(entry.retry_at) if entry.retry_at and shown == EntryState.FAILED else ""
    attempts = f"Attempt {entry.attempts}." if entry.attempts > 1 else ""
    again = format_html('<span class="reason">Tried again {}. {}</span>', retry, attempts) if retry else ""
    return format_html("{}{}{}", cells.pill(shown), cells.reason(known, why), again)


def entry_progress(entry: CacheEntry) -> SafeString:
    """Bytes, measured rate and time left while it moves; the size of what is there otherwise."""
    shown: str = entry.shown_state  # type: ignore[attr-defined]
    if shown == EntryState.ABSENT:
        return cells.size(None)
    if shown not in _MOVING and not (shown == EntryState.FAILED and entry.bytes_done):
        return cells.size(entry.bytes_total or entry.artifact.size_bytes)
    total = entry.bytes_total or entry.artifact.size_bytes
    meter = cells.progress(entry.bytes_done, total, look_of(shown).tone)
    if entry.rate_bytes_per_second is None:
        return meter
    left = f", {duration_text(entry.eta_seconds)} left" if entry.eta_seconds is not None else ""
    return format_html(
        '{}<small class="muted nowrap">{}{}</small>', meter, rate_text(entry.rate_bytes_per_second), left
    )


def entry_version(entry: CacheEntry) -> SafeString:
    version = next(iter(entry.artifact.versions.all()), None)
    if version is None and entry.artifact.kind == ArtifactKind.IMAGE:
        return cells.reference(artifact_name(entry))
    if version is None:
        return cells.digest(entry.artifact.digest)
    return cells.link(version.full_name, version_url(version))


def version_columns() -> list[Column]:
    """Model versions by name, and their states."""
    return [
        Column(
            "version",
            "Model version",
            lambda v: v.full_name,
            lambda v: cells.link(v.full_name, version_url(v)),
            "model__name",
            heading=True,
        ),
        Column("state", "State", lambda v: v.state, lambda v: cells.pill(v.state), "state"),
    ]


def entry_columns(*, node: bool = True, version: bool = True) -> list[Column]:
    """The entries table; pages of one node or one version leave out what they are about."""
    columns = []
    if version:
        columns.append(Column("artifact", "Model version", artifact_name, entry_version, "", heading=True))
    if node:
        columns += [
            Column(
                "node",
                "Node",
                lambda e: e.node.name,
                lambda e: cells.link(e.node.name, node_url(e.node)),
                "node__name",
                heading=not version,
            ),
            Column("pool", "Pool", lambda e: pool_of(e.node), _pool_link, "node__pool__name"),
        ]
    return [
        *columns,
        Column("state", "State", lambda e: e.shown_state, entry_state, "shown_state"),
        Column("bytes_done", "Progress", lambda e: e.bytes_done, entry_progress, "bytes_done", numeric=False),
        Column("since", "Since", lambda e: e.shown_since, lambda e: cells.when(e.shown_since), "shown_since"),
        Column("verified_at", "Verified", lambda e: e.verified_at, lambda e: cells.when(e.verified_at), "verified_at"),
        Column(
            "last_used_at", "Last used", lambda e: e.last_used_at, lambda e: cells.when(e.last_used_at), "last_used_at"
        ),
    ]


def entry_export_columns() -> list[Column]:
    """What exports add to what pages show."""
    return [
        Column("digest", "Digest", lambda e: e.artifact.digest, lambda e: cells.digest(e.artifact.digest)),
        Column("reason", "Reason", lambda e: e.reason),
    ]


def _pool_link(entry: CacheEntry) -> SafeString:
    pool = entry.node.pool
    return cells.link(pool.full_name, reverse("pool", args=[pool.full_name])) if pool else cells.NOTHING


def operation_progress(operation: Operation) -> SafeString:
    tone = look_of(operation.state).tone
    if operation.bytes_total:
        done = operation.bytes_total if operation.state == "Succeeded" else operation.bytes_done
        meter = cells.progress(done, operation.bytes_total, tone if tone is not Tone.IDLE else Tone.BUSY)
        if operation.eta_seconds is None or operation.state != "Running":
            return meter
        return format_html('{}<small class="muted">{} left</small>', meter, duration_text(operation.eta_seconds))
    return format_html('<span class="muted">{}</span>', operation.message or "—")


_KINDS = {
    "ModelRegister": "Register",
    "ModelRecheck": "Recheck",
    "ImageRegister": "Register",
    "PinWarm": "Warm",
    "PinRemove": "Unpin",
    "EntryEvict": "Evict",
    "EntryScrub": "Verify",
    "PoolDelete": "Delete pool",
    "LaunchTrial": "Trial of launches,",
}


def operation_title(operation: Operation) -> str:
    """ "Warm llama v3": what is done, to what."""
    return f"{_KINDS.get(operation.kind, operation.kind)} {operation.subject_name}"


def operation_url(operation: Operation) -> str:
    return reverse("operation", args=[operation.id])


def operation_columns() -> list[Column]:
    return [
        Column(
            "operation",
            "Operation",
            operation_title,
            lambda o: cells.link(operation_title(o), operation_url(o)),
            "subject_name",
            heading=True,
        ),
        Column("kind", "Kind", lambda o: o.kind, None, "kind"),
        Column("state", "State", lambda o: o.state, lambda o: cells.pill(o.state), "state"),
        Column("bytes_done", "Progress", lambda o: o.bytes_done, operation_progress, "bytes_done"),
        Column(
            "eta_seconds",
            "Time left",
            lambda o: o.eta_seconds,
            lambda o: cells.duration(o.eta_seconds),
            "eta_seconds",
            numeric=True,
        ),
        Column("started_by", "By", lambda o: o.started_by, None, "started_by"),
        Column("created_at", "Started", lambda o: o.created_at, lambda o: cells.when(o.created_at), "created_at"),
        Column("ended_at", "Ended", lambda o: o.ended_at, lambda o: cells.when(o.ended_at), "ended_at"),
    ]
