"""What people ask of one entry: evict it, verify it, try it again."""

from __future__ import annotations

import dataclasses
from datetime import datetime
from uuid import UUID

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from caches.domain.planning import forecast, plan
from caches.domain.plans import Plan, Protection
from caches.domain.pool_view import PoolView
from caches.models import CacheEntry
from caches.selectors.entries import artifact_name
from caches.selectors.pool_view import pool_view
from caches.services.admission import entry_name, node_name
from caches.services.entry_mirror import entries_close_lost, statuses_mirror
from caches.services.loop.pool_rounds import pools_mark_dirty
from caches.services.scrub_findings import MOVED
from controlplane.audit.services import Actor, audit_write
from controlplane.clusters.documents import ArtifactKind, EntryState
from controlplane.clusters.models import NodePool
from controlplane.errors import Clash, Missing
from controlplane.locks import deadlock_retried
from controlplane.operations.models import ACTIVE_STATES, Operation, OperationKind
from controlplane.operations.services import TargetSpec, operation_start

__all__ = [
    "entries_close_lost",
    "entry_evict",
    "entry_evict_preview",
    "entry_retry",
    "entry_retry_check",
    "entry_scrub",
    "entry_scrub_check",
    "statuses_mirror",
]

_VERIFIABLE = (EntryState.READY, EntryState.REPAIRING)
_SAYS = {
    Protection.IN_USE: ("a pod or engine on the node has it mounted", "Stop its consumers there first."),
    Protection.PINNED: ("a pin wants it there", "Remove or change the pin first; otherwise it would come back."),
    Protection.HELD: ("it is held", "Wait until the hold ends."),
    Protection.REFERENCES_UNKNOWN: ("who uses it is unknown", "Wait until the cluster answers again."),
    Protection.NODE_NOT_READY: ("its node does not answer", "Wait until the node is Ready again."),
}


def entry_evict_preview(*, entry_id: UUID) -> Plan:
    """The plan of the entry's pool as if its eviction had been asked for. Clash when it is protected."""
    entry = _get(entry_id)
    _check_there(entry)
    now = timezone.now()
    view = _as_if_asked(pool_view(_pool_of(entry), now=now), entry)
    wanted = plan(view, now)
    going = any(e.node_uid == entry.node.uid and e.digest == entry.artifact.digest for e in wanted.evictions)
    if not going:
        raise _protected(view, entry, now)
    return wanted


@deadlock_retried
def entry_evict(*, actor: Actor, entry_id: UUID) -> Operation:
    """Ask for an eviction. It is confirmed only by a fresh listing of the node's consumers, so it may still wait."""
    entry = _get(entry_id)
    entry_evict_preview(entry_id=entry_id)
    with transaction.atomic():
        now = timezone.now()
        asked = CacheEntry.objects.filter(pk=entry_id, evict_requested_at__isnull=True).exclude(
            state__in=(EntryState.ABSENT, EntryState.LOST)
        )
        if asked.update(evict_requested_at=now, updated_at=now) != 1:
            running = _running(entry, OperationKind.ENTRY_EVICT)
            # Nothing changes, but whoever asked was answered with this work: the trail has their request too.
            asked_before: dict[str, object] = {"evict_requested": True}
            _audit(actor, entry, "entry.evict-joined", asked_before, asked_before, running)
            return running
        operation = _start(actor, entry, OperationKind.ENTRY_EVICT, {})
        _audit(actor, entry, "entry.evict", {"state": entry.state}, {"evict_requested": True}, operation)
        _mark(entry)
    return operation


@deadlock_retried
def entry_scrub(*, actor: Actor, entry_id: UUID) -> Operation:
    """Have the node read and check every byte of a Ready entry now; damage is repaired file by file."""
    entry = _get(entry_id)
    _pool_of(entry)
    _check_readable(entry)
    with transaction.atomic():
        ready = CacheEntry.objects.filter(pk=entry_id, state__in=_VERIFIABLE)
        if ready.update(verify_round=F("verify_round") + 1, updated_at=timezone.now()) != 1:
            raise _not_ready(entry)
        entry.refresh_from_db(fields=["verify_round", "bytes_moved"])
        params: dict[str, object] = {"round": entry.verify_round, MOVED: entry.bytes_moved}
        operation = _start(actor, entry, OperationKind.ENTRY_SCRUB, params)
        _audit(actor, entry, "entry.scrub", None, {"verify_round": entry.verify_round}, operation)
        _mark(entry)
    return operation


@deadlock_retried
def entry_retry(*, actor: Actor, entry_id: UUID) -> CacheEntry:
    """Have a Failed entry tried again now instead of at its ``retry_at``."""
    entry = _get(entry_id)
    _pool_of(entry)
    with transaction.atomic():
        failed = CacheEntry.objects.filter(pk=entry_id, state=EntryState.FAILED)
        if failed.update(retry_round=F("retry_round") + 1, updated_at=timezone.now()) != 1:
            raise _not_failed(entry)
        entry.refresh_from_db()
        _audit(actor, entry, "entry.retry", {"reason": entry.reason}, {"retry_round": entry.retry_round}, None)
        _mark(entry)
    return entry


def entry_scrub_check(*, entry_id: UUID) -> None:
    """Refuse, as entry_scrub does, what cannot be verified. Writes nothing."""
    entry = _get(entry_id)
    _pool_of(entry)
    _check_readable(entry)
    if entry.state not in _VERIFIABLE:
        raise _not_ready(entry)


def entry_retry_check(*, entry_id: UUID) -> None:
    """Refuse, as entry_retry does, what has not failed. Writes nothing."""
    entry = _get(entry_id)
    _pool_of(entry)
    if entry.state != EntryState.FAILED:
        raise _not_failed(entry)


def _check_readable(entry: CacheEntry) -> None:
    if entry.artifact.kind == ArtifactKind.IMAGE:
        raise Clash(
            "entry:user:image",
            "Nobody but its node's runtime can read an image, which checks it when it pulls it.",
            next_step="Evict the entry and pin it again where you doubt what is there.",
        )


def _not_ready(entry: CacheEntry) -> Clash:
    return Clash(
        "entry:user:not-ready",
        f"Only an entry that is Ready can be verified; this one is {entry.state}.",
        next_step="Wait until it is Ready, or retry it when it has failed.",
    )


def _not_failed(entry: CacheEntry) -> Clash:
    return Clash("entry:user:not-failed", f"Only a Failed entry can be retried; this one is {entry.state}.")


def _get(entry_id: UUID) -> CacheEntry:
    rows = CacheEntry.objects.select_related("node__pool__cluster", "artifact").defer("artifact__manifest")
    entry = rows.filter(pk=entry_id).first()
    if entry is None:
        raise Missing("entry:user:not-found", f"There is no cache entry {entry_id}.")
    return entry


def _check_there(entry: CacheEntry) -> None:
    if entry.state in (EntryState.ABSENT, EntryState.LOST):
        raise Clash("entry:user:not-there", f"{artifact_name(entry)} is not on {entry.node.name}.")


def _pool_of(entry: CacheEntry) -> NodePool:
    """Clash where there is none: the node would never hear of what was asked."""
    if entry.node.pool is None:
        raise Clash(
            "entry:user:no-pool",
            f"{entry.node.name} belongs to no pool, so nothing is planned for it.",
            next_step="Give the node the labels of a pool first.",
        )
    return entry.node.pool


def _as_if_asked(view: PoolView, entry: CacheEntry) -> PoolView:
    nodes = tuple(
        dataclasses.replace(
            node,
            entries=tuple(
                dataclasses.replace(e, evict_requested=e.evict_requested or e.digest == entry.artifact.digest)
                for e in node.entries
            ),
        )
        if node.uid == entry.node.uid
        else node
        for node in view.nodes
    )
    return dataclasses.replace(view, nodes=nodes)


def _protected(view: PoolView, entry: CacheEntry, now: datetime) -> Clash:
    ranked = forecast(view, entry.node.uid, now)
    protection = next((e.protected_by for e in ranked if e.digest == entry.artifact.digest), None)
    why, step = (
        _SAYS.get(protection, ("it is not there or is already going", ""))
        if protection
        else (
            "it is not there",
            "",
        )
    )
    code = protection.value if protection else "absent"
    return Clash(
        "entry:user:protected",
        f"{entry_name(entry)} is not evicted: {why} ({code}).",
        next_step=step,
    )


def _running(entry: CacheEntry, kind: OperationKind) -> Operation:
    operation = Operation.objects.filter(kind=kind, subject_id=str(entry.pk), state__in=ACTIVE_STATES).first()
    if operation is None:
        entry.refresh_from_db(fields=["state"])
        _check_there(entry)
        raise Clash("entry:user:already-going", f"The eviction on {entry.node.name} was already asked for.")
    return operation


def _start(actor: Actor, entry: CacheEntry, kind: OperationKind, params: dict[str, object]) -> Operation:
    return operation_start(
        actor=actor,
        kind=kind,
        subject_type="entry",
        subject_id=str(entry.pk),
        subject_name=entry_name(entry),
        params={"entry_id": str(entry.pk), **params},
        targets=[TargetSpec(str(entry.node_id), node_name(entry.node), 0)],
    )


def _mark(entry: CacheEntry) -> None:
    if entry.node.pool_id is not None:
        pools_mark_dirty(pool_ids=[entry.node.pool_id])


def _audit(
    actor: Actor,
    entry: CacheEntry,
    action: str,
    before: dict[str, object] | None,
    after: dict[str, object],
    operation: Operation | None,
) -> None:
    audit_write(
        actor=actor,
        action=action,
        object_type="entry",
        object_id=str(entry.pk),
        object_name=entry_name(entry),
        before=before,
        after=after,
        operation_id=operation.pk if operation else None,
    )
