"""Mirroring what holders say into CacheEntry rows of images: guarded, and without news nothing is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import structlog
from django.db import transaction
from django.utils import timezone

from caches.domain.image_states import RETRY_AFTER, TAKEN, ImageState, held_state, let_go_state
from caches.domain.states import may_follow
from caches.models import CacheEntry, EntryChange, ImageHold
from caches.selectors.image_demand import holds_images
from caches.services.loop.pool_rounds import pools_mark_dirty
from caches.services.webhooks.announcing import webhook_announce
from controlplane.clusters.documents import Action, ArtifactKind, EntryState
from controlplane.clusters.gateway import ClusterGateway, GatewayError, ImagePresence, NotFound
from controlplane.clusters.models import ClusterType, NodePool
from controlplane.clusters.registry import gateway_for
from controlplane.locks import advisory_lock

LISTED_EVERY = timedelta(minutes=1)  # how often a node is asked about an image that nothing holds any more
PROVEN_EVERY = timedelta(minutes=5)  # and about one that is held and Ready
SETTLED = timedelta(minutes=3)  # how long after its pull a node may not list an image yet
ASKED_AT_ONCE = 20  # nodes

log = structlog.get_logger(__name__)

Key = tuple[str, str]  # node uid, digest
Entries = Sequence[CacheEntry]


def pools_to_observe() -> list[UUID]:
    """Pools with holders, or with entries of images that are not settled."""
    held = ImageHold.objects.values_list("pool_id", flat=True)
    open_ones = CacheEntry.objects.filter(
        artifact__kind=ArtifactKind.IMAGE, node__lost_at=None, node__pool__isnull=False
    )
    open_ones = open_ones.exclude(state__in=[EntryState.ABSENT, EntryState.LOST])
    found = {*held, *open_ones.values_list("node__pool_id", flat=True)}
    rows = NodePool.objects.filter(pk__in=found).exclude(cluster__type=ClusterType.LOCAL)
    return list(rows.order_by("pk").values_list("pk", flat=True))


def pool_images_observe(*, pool_id: UUID) -> int:
    """Look at the holders of one pool; returns how many entries changed; none where it does not answer."""
    with advisory_lock(f"images:{pool_id}") as mine:
        pool = NodePool.objects.select_related("cluster").filter(pk=pool_id).first()
        if not mine or pool is None or not holds_images(pool):
            return 0
        entries = _entries(pool)
        if not entries:
            return 0
        gateway = gateway_for(pool.cluster)
        try:
            seen = _seen(gateway.image_presence(pool.name))
            listed = _listed(gateway, entries, seen)
        except GatewayError as error:
            log.warning("images.unanswered", pool=pool.full_name, error=f"{type(error).__name__}: {error}")
            return 0
        return _write(pool, gateway, entries, seen, listed)


def _entries(pool: NodePool) -> Entries:
    rows = CacheEntry.objects.filter(node__pool=pool, node__lost_at=None, artifact__kind=ArtifactKind.IMAGE)
    return list(rows.select_related("node", "artifact").defer("artifact__manifest").order_by("pk"))


def _seen(found: Sequence[ImagePresence]) -> Mapping[Key, ImagePresence]:
    """By place. Of two pods there, as when one replaces another, the one that stays counts, and the Ready one first."""
    best: dict[Key, ImagePresence] = {}
    for one in sorted(found, key=lambda one: (not one.leaving, one.ready is True)):
        best[one.node_uid, one.reference.rpartition("@")[2]] = one
    return best


def _listed(
    gateway: ClusterGateway, entries: Entries, seen: Mapping[Key, ImagePresence]
) -> Mapping[str, frozenset[str] | None]:
    """What nodes say that they have, by uid: those with an image that nothing holds any more, and those that have not
    been asked for long whether they still have what is held there."""
    now = timezone.now()
    asked: dict[str, str] = {}
    for entry in sorted(entries, key=lambda entry: (entry.desired == Action.ENSURE, entry.verified_at or now)):
        if _is_asked(entry, seen, now):
            asked.setdefault(entry.node.uid, entry.node.name)
    found: dict[str, frozenset[str] | None] = {}
    for uid, name in list(asked.items())[:ASKED_AT_ONCE]:
        try:
            found[uid] = gateway.images_listed(name, uid)
        except NotFound:
            continue  # its incarnation is gone: the watcher will say so
    return found


def _is_asked(entry: CacheEntry, seen: Mapping[Key, ImagePresence], now: datetime) -> bool:
    if entry.desired == Action.ENSURE:
        return entry.state == EntryState.READY and (
            entry.verified_at is None or entry.verified_at <= now - PROVEN_EVERY
        )
    if entry.state in (EntryState.ABSENT, EntryState.LOST) or (entry.node.uid, entry.artifact.digest) in seen:
        return False
    is_new = entry.state != EntryState.EVICTING or entry.observed_at is None
    return is_new or (entry.observed_at is not None and entry.observed_at <= now - LISTED_EVERY)


def _is_taken(
    entry: CacheEntry,
    presence: ImagePresence | None,
    listed: Mapping[str, frozenset[str] | None],
    now: datetime,
) -> bool:
    """Whether its node no longer has what its holder runs: a running container needs no image any more, the next pod
    does."""
    if entry.desired != Action.ENSURE or entry.state != EntryState.READY or presence is None or not presence.ready:
        return False
    on_list = listed.get(entry.node.uid)
    settled = entry.ready_at is not None and entry.ready_at <= now - SETTLED
    return bool(on_list) and settled and entry.artifact.digest not in (on_list or ())


def _write(
    pool: NodePool,
    gateway: ClusterGateway,
    entries: Entries,
    seen: Mapping[Key, ImagePresence],
    listed: Mapping[str, frozenset[str] | None],
) -> int:
    now, changed = timezone.now(), 0
    for entry in entries:
        presence = seen.get((entry.node.uid, entry.artifact.digest))
        state = _state(entry, presence, listed)
        if presence is not None and _is_taken(entry, presence, listed, now):
            try:
                gateway.renew_image_holder(pool.name, presence.reference, entry.node.name)
            except GatewayError as error:
                log.warning("images.not-renewed", node=entry.node.name, error=str(error)[:300])
                continue
            state = ImageState(EntryState.QUEUED, message=TAKEN)
        elif state is not None and state.state is EntryState.READY and entry.node.uid in listed:
            CacheEntry.objects.filter(pk=entry.pk, state=EntryState.READY).update(verified_at=now)
        if state is None or not may_follow(EntryState(entry.state), state.state):
            continue
        with transaction.atomic():
            if _record(entry, state, now):
                changed += 1
                pools_mark_dirty(pool_ids=[pool.pk])
    return changed


def _state(
    entry: CacheEntry, presence: ImagePresence | None, listed: Mapping[str, frozenset[str] | None]
) -> ImageState | None:
    if entry.desired == Action.ENSURE:
        return held_state(presence)
    uid = entry.node.uid
    if presence is None and entry.state != EntryState.ABSENT and uid not in listed:
        return None  # its node was not asked this time
    on_list = listed.get(uid)
    there = None if on_list is None else entry.artifact.digest in on_list
    return let_go_state(EntryState(entry.state), presence, there)


def _record(entry: CacheEntry, found: ImageState, now: datetime) -> bool:
    """Write what is new; True when the state changed. Guarded by what was read: a service that was faster wins."""
    rows = CacheEntry.objects.filter(pk=entry.pk, state=entry.state, desired=entry.desired)
    if found.state == entry.state:
        words = {"reason": found.reason, "message": found.message[:1000]}
        old = entry.observed_at
        if {name: getattr(entry, name) for name in words} != words or old is None or old <= now - LISTED_EVERY:
            rows.update(**words, observed_at=now, observed_retry_round=entry.retry_round)
        return False
    if rows.update(**_fields(entry, found, now)) != 1:
        return False
    EntryChange.objects.create(
        entry=entry,
        at=now,
        old_state=entry.state,
        new_state=found.state,
        reason=found.reason,
        message=found.message[:1000],
    )
    if found.state is EntryState.FAILED:
        _announce(entry, found, now)
    return True


def _fields(entry: CacheEntry, found: ImageState, now: datetime) -> dict[str, Any]:
    size = entry.artifact.size_bytes
    fields: dict[str, Any] = {
        "state": found.state,
        "reason": found.reason,
        "message": found.message[:1000],
        "bytes_done": 0,
        "bytes_total": size,
        "retry_at": None,
        "observed_at": now,
        "observed_retry_round": entry.retry_round,
        "observed_verify_round": entry.verify_round,
        "state_since": now,
        "updated_at": now,
    }
    if found.state is EntryState.READY:
        fields |= {"bytes_done": size, "ready_at": now, "verified_at": now, "attempts": 0}
    elif found.state is EntryState.DOWNLOADING:
        fields |= {"started_at": now}
    elif found.state is EntryState.FAILED:
        fields |= {"attempts": entry.attempts + 1, "retry_at": now + RETRY_AFTER if found.retries else None}
    elif found.state in (EntryState.ABSENT, EntryState.EVICTING):
        fields |= {"ready_at": None, "verified_at": None, "attempts": 0}
    if found.state is EntryState.ABSENT:
        fields |= {"evict_requested_at": None}
    return fields


def _announce(entry: CacheEntry, found: ImageState, now: datetime) -> None:
    webhook_announce(
        event="entry.failed",
        dedup_key=f"entry.failed:{entry.pk}:{found.reason}:{now.isoformat()}",
        payload={
            "node": entry.node.name,
            "node_uid": entry.node.uid,
            "digest": entry.artifact.digest,
            "reason": found.reason,
            "message": found.message,
            "attempts": entry.attempts + 1,
            "retry_at": (now + RETRY_AFTER).isoformat() if found.retries else None,
        },
    )
