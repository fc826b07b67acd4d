"""Pins for pages and REST, with how far each one is."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import Prefetch, QuerySet
from django.utils import timezone

from caches.domain.pool_view import PlacementType
from caches.models import CacheEntry, Pin, PoolLoop
from caches.selectors.entries import UNKNOWN, entries_list
from caches.selectors.nodes import Targets
from controlplane.accounts.access import targets_filter
from controlplane.clusters.documents import EntryState
from controlplane.clusters.models import Node, NodePool
from controlplane.errors import Missing


@dataclass(frozen=True, slots=True)
class PinCondition:
    """A condition computed from rows; ``last_transition`` None: they do not tell since when it is so."""

    type: str
    status: str
    reason: str
    message: str
    last_transition: datetime | None


@dataclass(frozen=True, slots=True)
class PinStatus:
    """Nodes that shall hold the artifact, that hold it verified, and that failed. ``eta_seconds`` None: unknown."""

    target: int
    ready: int
    failed: int
    eta_seconds: float | None
    conditions: tuple[PinCondition, ...]


def pins_list(*, targets: Targets = None) -> QuerySet[Pin]:
    """Live pins with version, artifact and pools; a pin is visible when one of its pools is."""
    rows = Pin.objects.filter(removed_at__isnull=True).select_related("version__model", "version__artifact")
    if targets is not None:
        visible = Pin.objects.filter(targets_filter(targets, cluster="pools__cluster__name", pool="pools__name"))
        rows = rows.filter(pk__in=visible.values("pk"))
    pools = NodePool.objects.select_related("cluster").order_by("cluster__name", "name")
    return rows.defer("version__artifact__manifest").prefetch_related(Prefetch("pools", queryset=pools))


def pin_get(*, pin_id: UUID, targets: Targets = None) -> Pin:
    """One live pin. Raises errors.Missing, also for a removed one."""
    found = pins_list(targets=targets).filter(pk=pin_id).first()
    if found is None:
        raise Missing("pin:user:not-found", f"There is no pin {pin_id}.", next_step="List the pins.")
    return found


def pin_statuses(pins: Sequence[Pin], *, now: datetime | None = None) -> Mapping[UUID, PinStatus]:
    """Status of each pin in a constant number of queries. Pins come from pins_list()."""
    now = now or timezone.now()
    pool_ids = {pool.id for pin in pins for pool in pin.pools.all()}
    nodes = _nodes_by_pool(pool_ids)
    entries = _entries(pins, pool_ids, now)
    refusals = _refusals(pool_ids)
    return {pin.id: _status(pin, nodes, entries, refusals.get(str(pin.id), ())) for pin in pins}


def _nodes_by_pool(pool_ids: Iterable[UUID]) -> Mapping[UUID, Sequence[Node]]:
    found: dict[UUID, list[Node]] = defaultdict(list)
    live = Node.objects.filter(pool__in=list(pool_ids), lost_at__isnull=True)
    for node in live.only("id", "pool_id", "labels"):
        found[node.pool_id].append(node)  # type: ignore[index]  # filtered by pool
    return found


def _entries(pins: Sequence[Pin], pool_ids: Iterable[UUID], now: datetime) -> Mapping[tuple[UUID, UUID], CacheEntry]:
    artifacts = [pin.version.artifact_id for pin in pins]
    rows = entries_list(now=now).filter(
        artifact__in=artifacts, node__pool__in=list(pool_ids), node__lost_at__isnull=True
    )
    rows = rows.prefetch_related(None).select_related(None)
    rows = rows.only("id", "node_id", "artifact_id", "state", "state_since", "eta_seconds")
    return {(entry.artifact_id, entry.node_id): entry for entry in rows}


def _refusals(pool_ids: Iterable[UUID]) -> Mapping[str, Sequence[Mapping[str, Any]]]:
    found: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for plan in PoolLoop.objects.filter(pool__in=list(pool_ids)).values_list("plan", flat=True):
        for refusal in (plan or {}).get("refusals", []):
            found[refusal.get("pin_id", "")].append(refusal)
    return found


def _status(
    pin: Pin,
    nodes: Mapping[UUID, Sequence[Node]],
    entries: Mapping[tuple[UUID, UUID], CacheEntry],
    refusals: Sequence[Mapping[str, Any]],
) -> PinStatus:
    target = 0
    mine: list[CacheEntry] = []
    for pool in pin.pools.all():
        matching = [node for node in nodes.get(pool.id, ()) if _matches(node, pin.node_selector)]
        target += _wanted(pin, len(matching))
        keys = ((pin.version.artifact_id, node.id) for node in matching)
        mine += [entries[key] for key in keys if key in entries]  # type: ignore[index]
    states = [entry.shown_state for entry in mine]  # type: ignore[attr-defined]  # annotated by entries_list
    ready = min(target, states.count(EntryState.READY))
    failed = states.count(EntryState.FAILED)
    return PinStatus(
        target=target,
        ready=ready,
        failed=failed,
        eta_seconds=_eta(mine, target - ready),
        conditions=(
            _warm(pin, target, ready, states.count(UNKNOWN), failed, _since(pin, mine)),
            _admitted(refusals),
        ),
    )


def _matches(node: Node, selector: Mapping[str, str]) -> bool:
    return all(node.labels.get(label) == value for label, value in selector.items())


def _wanted(pin: Pin, matching: int) -> int:
    if pin.placement_type == PlacementType.COUNT:
        return min(pin.placement_value, matching)
    if pin.placement_type == PlacementType.PERCENT:
        return math.ceil(matching * pin.placement_value / 100)
    return matching


def _eta(entries: Sequence[CacheEntry], missing: int) -> float | None:
    if missing <= 0:
        return 0.0
    known = [entry.eta_seconds for entry in entries if entry.state == EntryState.DOWNLOADING]
    # One node without an estimate, or not begun, leaves the whole without one.
    return max(known) if len(known) >= missing and None not in known else None  # type: ignore[type-var]


def _since(pin: Pin, entries: Sequence[CacheEntry]) -> datetime:
    """When the newest target took its state; nothing was so for the pin before there was a pin."""
    return max([pin.created_at, *(entry.state_since for entry in entries if entry.state_since is not None)])


def _warm(pin: Pin, target: int, ready: int, unknown: int, failed: int, since: datetime) -> PinCondition:
    if target and ready >= target:
        return PinCondition("Warm", "True", "AllReady", f"{ready} of {target} nodes are warm.", since)
    if pin.suspended:
        return PinCondition(
            "Warm", "False", "Suspended", "Nothing is fetched while the pin is suspended.", pin.updated_at
        )
    if not target:
        return PinCondition("Warm", "False", "NoNodes", "No node of its pools matches the pin.", None)
    if ready + unknown >= target:
        return PinCondition("Warm", "Unknown", "NodesSilent", f"{unknown} nodes have not reported lately.", None)
    reason = "Failed" if failed else "Warming"
    return PinCondition("Warm", "False", reason, f"{ready} of {target} nodes are warm, {failed} failed.", since)


def _admitted(refusals: Sequence[Mapping[str, Any]]) -> PinCondition:
    if not refusals:
        return PinCondition("Admitted", "True", "Fits", "Every target node has or can make the room.", None)
    first = refusals[0]
    more = f" (and {len(refusals) - 1} more nodes)" if len(refusals) > 1 else ""
    return PinCondition(
        "Admitted", "False", str(first.get("reason", "Refused")), f"{first.get('detail', '')}{more}", None
    )
