"""Applying NodeCaches, and what to do when somebody else writes their specs.

A spec that another hand changed is taken back and audited. Somebody who changes it again and again is another
controller: after a few repairs Hearth says so and waits, instead of fighting at the speed of two machines.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

import structlog
from django.db import transaction

from caches.models import NodeProjection
from caches.services.loop.fan_out import fan_out
from caches.services.loop.pool_rounds import pools_mark_dirty
from caches.services.loop.round_budget import RoundBudget
from controlplane.audit.services import SYSTEM, audit_write
from controlplane.clusters.codec import dumps
from controlplane.clusters.documents import NodeCacheSpec
from controlplane.clusters.gateway import ClusterGateway, Conflict, ObservedNodeCache
from controlplane.clusters.models import Node

REPAIRS = 3  # within the time below; then the other side has to be stopped first
REPAIR_PERIOD = timedelta(minutes=10)
CHUNK = 200  # nodes whose answers are remembered together

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Wanted:
    """One NodeCache to be applied. ``spec_hash`` also covers the credentials that the spec needs."""

    node: Node
    spec: NodeCacheSpec
    spec_hash: str


@dataclass(frozen=True, slots=True)
class _Applied:
    """What an apply came to. ``foreign``: it took something back, from ``managers`` where they are known; ``problem``
    says why nothing was applied."""

    generation: int = 0
    foreign: bool = False
    managers: tuple[str, ...] = ()
    problem: str = ""


def document_hash(spec: NodeCacheSpec) -> str:
    """By which a spec in the cluster is known to be the one that was applied."""
    return hashlib.sha256(dumps(spec).encode()).hexdigest()


def node_caches_apply(
    *, wanted: Sequence[Wanted], gateway: ClusterGateway, now: datetime, budget: RoundBudget | None = None
) -> list[str]:
    """Apply these specs, in this order; returns what could not be done, as sentences. GatewayError as raised by the
    cluster. What the ``budget`` does not suffice for is left to the next round."""
    problems = []
    for start in range(0, len(wanted), CHUNK):
        if start and budget is not None and budget.spent:
            budget.put_off(len(wanted) - start)
            break
        problems += _apply(wanted[start : start + CHUNK], gateway, now, budget)
    return problems


def node_caches_compare(*, cluster_id: UUID, caches: Sequence[ObservedNodeCache]) -> int:
    """Have every spec applied again that is newer than Hearth's and other than it; returns how many there were."""
    by_uid = {cache.node_uid: cache for cache in caches}
    # Where nothing was applied yet, what the cluster holds is no change of anything, and is applied over anyway.
    rows = NodeProjection.objects.filter(
        node__cluster_id=cluster_id,
        node__uid__in=list(by_uid),
        node__lost_at__isnull=True,
        foreign=False,
        generation__gt=0,
    ).select_related("node")
    changed = []
    for row in rows:
        cache = by_uid[row.node.uid]
        if cache.generation > row.generation and document_hash(cache.spec) != row.document_hash:
            changed.append(row)
    if not changed:
        return 0
    with transaction.atomic():
        NodeProjection.objects.filter(pk__in=[row.pk for row in changed]).update(foreign=True, spec_hash="")
        pools_mark_dirty(pool_ids={row.node.pool_id for row in changed if row.node.pool_id is not None})
    for row in changed:
        log.warning("node-cache.changed-by-another", node=row.node.name)
    return len(changed)


def _apply(wanted: Sequence[Wanted], gateway: ClusterGateway, now: datetime, budget: RoundBudget | None) -> list[str]:
    """What is about to be applied is written down first, so that the watcher can tell Hearth's own change from
    another's whichever is seen first."""
    known = {row.node_id: row for row in NodeProjection.objects.filter(node__in=[item.node for item in wanted])}
    problems, ready = [], []
    for item in wanted:
        row = known.get(item.node.pk)
        contested = _contested(item.node, row, now, ()) if row is not None and row.foreign else ""
        if contested:
            problems.append(contested)
        else:
            ready.append(item)
    _announce(ready, now)
    answers, failure = fan_out(lambda item: _send(item, known.get(item.node.pk), gateway, now), ready, budget=budget)
    # What was done is known before anything is raised.
    _remember([(answer.item, answer.result) for answer in answers if answer.result and not answer.result.problem], now)
    if failure is not None:
        raise failure
    # A conflict that names no manager: its incarnation is gone, and the watcher will say so.
    problems += [f"{answer.item.node.name}: {answer.error}" for answer in answers if answer.error is not None]
    return problems + [answer.result.problem for answer in answers if answer.result and answer.result.problem]


def _announce(wanted: Sequence[Wanted], now: datetime) -> None:
    rows = [
        NodeProjection(
            node=item.node, document_hash=document_hash(item.spec), spec_hash="", generation=0, applied_at=now
        )
        for item in wanted
    ]
    NodeProjection.objects.bulk_create(
        rows, update_conflicts=True, unique_fields=["node"], update_fields=["document_hash", "spec_hash"]
    )


def _send(item: Wanted, row: NodeProjection | None, gateway: ClusterGateway, now: datetime) -> _Applied:
    """One apply; takes back what others hold unless they were told to stop. Reads no rows. Never takes over at
    first: the refusal names who holds it."""
    foreign = row is not None and row.foreign
    try:
        return _Applied(gateway.apply_node_cache(item.spec), foreign)
    except Conflict as error:
        if not error.managers:
            raise
        if problem := _contested(item.node, row, now, error.managers):
            return _Applied(problem=problem)
        return _Applied(gateway.apply_node_cache(item.spec, take_over=True), True, error.managers)


def _remember(done: Sequence[tuple[Wanted, _Applied]], now: datetime) -> None:
    with transaction.atomic():
        rows = {
            row.node_id: row
            for row in NodeProjection.objects.select_for_update(no_key=True)
            .filter(node__in=[item.node for item, _ in done])
            .order_by("pk")
        }
        changed = []
        for item, applied in done:
            row = rows.get(item.node.pk)
            if row is None or (row.foreign and not applied.foreign):
                continue  # gone, or changed by another hand since: it is applied again
            row.spec_hash, row.generation, row.applied_at, row.updated_at = item.spec_hash, applied.generation, now, now
            if applied.foreign:
                row.foreign, row.repairs, row.repaired_at = False, _repairs(row, now) + 1, now
                _audit_repair(item.node, applied.managers, row.repairs)
            changed.append(row)
        NodeProjection.objects.bulk_create(
            changed,
            update_conflicts=True,
            unique_fields=["node"],
            update_fields=["spec_hash", "generation", "applied_at", "updated_at", "foreign", "repairs", "repaired_at"],
        )


def _repairs(row: NodeProjection | None, now: datetime) -> int:
    """Repairs that still count."""
    if row is None or row.repaired_at is None or now - row.repaired_at >= REPAIR_PERIOD:
        return 0
    return row.repairs


def _contested(node: Node, row: NodeProjection | None, now: datetime, managers: Sequence[str]) -> str:
    """Why a change of another hand is not taken back now, or ""."""
    if row is None or row.repaired_at is None or _repairs(row, now) < REPAIRS:
        return ""
    until = row.repaired_at + REPAIR_PERIOD
    who = f"another controller ({', '.join(managers)})" if managers else "another controller"
    return (
        f"{node.name}: {who} keeps changing its NodeCache, which was repaired {row.repairs} times. "
        f"Stop it; the next repair is at {until:%H:%M:%S} UTC."
    )


def _audit_repair(node: Node, managers: Sequence[str], repairs: int) -> None:
    audit_write(
        actor=SYSTEM,
        action="node-cache.repaired",
        object_type="node",
        object_id=str(node.pk),
        object_name=node.name,
        after={"managers": list(managers), "repairs": repairs},
        message="Somebody else changed the spec of its NodeCache: it is what Hearth wants again.",
    )
