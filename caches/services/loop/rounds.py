"""One round of the control loop for one pool: gather → plan → pace → confirm → apply → remember.

Level-triggered: a round depends on nothing but rows and fresh answers, so repeating it is harmless, and losing a worker
at any line leaves the pool dirty for the next one.
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from uuid import UUID

import structlog
from django.db import transaction
from django.db.models import Case, DateTimeField, F, Q, Value, When
from django.db.models.functions import Greatest
from django.utils import timezone

from caches.domain.planning import pace, plan
from caches.domain.plans import Plan
from caches.domain.pool_view import PoolView, SharedLimits
from caches.domain.states import is_moving_bytes
from caches.models import CacheEntry, PoolLoop, SourceConnection
from caches.selectors.artifact_facts import artifact_origins
from caches.selectors.entry_rows import pool_rows
from caches.selectors.pool_view import pool_view
from caches.services.agents import agents_apply
from caches.services.eviction_requests import evictions_withdraw
from caches.services.loop.apply import plan_apply
from caches.services.loop.evictions import evictions_confirm
from caches.services.loop.memory import plan_document, refusals_announce
from caches.services.loop.patience import patience_keep
from caches.services.loop.pool_rounds import pools_mark_dirty
from caches.services.loop.round_budget import RoundBudget
from controlplane.celery import publish
from controlplane.clusters.documents import Action, EntryState
from controlplane.clusters.gateway import GatewayError, Throttled
from controlplane.clusters.models import NodePool
from controlplane.clusters.registry import gateway_for, scheduling_lag
from controlplane.locks import advisory_lock

__all__ = ["pool_reconcile", "pools_due", "pools_mark_dirty"]

EVERY = timedelta(seconds=30)
EVICTIONS, AGENTS = 0.5, 0.25  # of a round's time at most, of what is left of it then

log = structlog.get_logger(__name__)


def pool_reconcile(*, pool_id: UUID) -> Plan | None:
    """The applied plan. None when another worker is at this pool, or its cluster did not answer or asked for patience:
    it stays dirty."""
    with advisory_lock(f"pool:{pool_id}") as mine:
        if not mine:
            return None
        pool = NodePool.objects.select_related("cluster").filter(pk=pool_id).first()
        if pool is None:
            return None
        loop, _ = PoolLoop.objects.get_or_create(pool=pool)
        if loop.not_before is not None and timezone.now() < loop.not_before:
            return None
        with structlog.contextvars.bound_contextvars(pool=pool.full_name):
            return _round(pool, loop)


def pools_due(*, now: datetime) -> list[UUID]:
    """Pools with an unanswered request, and those whose last round is too old, save where a cluster asked for patience;
    rows are made for new pools."""
    unknown = NodePool.objects.filter(loop__isnull=True).values_list("pk", flat=True)
    PoolLoop.objects.bulk_create([PoolLoop(pool_id=pk, wanted_at=now) for pk in sorted(unknown)], ignore_conflicts=True)
    due = PoolLoop.objects.filter(
        Q(wanted_round__gt=F("done_round")) | Q(reconciled_at__isnull=True) | Q(reconciled_at__lte=now - EVERY)
    )
    due = due.exclude(not_before__gt=now)
    return list(due.order_by("wanted_at", "id").values_list("pool_id", flat=True))


def _round(pool: NodePool, loop: PoolLoop) -> Plan | None:
    wanted, now, budget = loop.wanted_round, timezone.now(), RoundBudget.open()
    gateway = gateway_for(pool.cluster)
    try:
        rows = pool_rows(pool)
        view = pool_view(pool, now=now, rows=rows)
        lag = scheduling_lag(pool.cluster)
        confirmed = evictions_confirm(
            view=view,
            gateway=gateway,
            decide=lambda changed: _decide(pool, changed, now),
            now=now,
            lag=lag,
            budget=budget.share(EVICTIONS),
        )
        if any(entry.evict_requested for node in view.nodes for entry in node.entries):
            evictions_withdraw(plans=[confirmed.plan], pool_ids=[pool.pk])
        problems = agents_apply(pool=pool, gateway=gateway, now=now, budget=budget.share(AGENTS))
        problems += plan_apply(
            pool=pool,
            rows=rows,
            view=view,
            plan=confirmed.plan,
            gateway=gateway,
            now=now,
            leaving=confirmed.leaving,
            budget=budget,
        )
    except GatewayError as error:
        message = f"{type(error).__name__}: {error}"[:1000]
        PoolLoop.objects.filter(pk=loop.pk).update(error=message, updated_at=timezone.now())
        if isinstance(error, Throttled):
            patience_keep(cluster=pool.cluster, error=error)
        log.warning("pool.unanswered", error=message)
        return None
    if budget.left_over:
        log.info("pool.goes-on", left_over=budget.left_over)
    _remember(pool, loop, wanted, confirmed.plan, problems, now, is_whole=not budget.left_over)
    if confirmed.leaving:
        publish("caches.pool_reconcile", str(pool.pk), countdown=lag.total_seconds())
    return confirmed.plan


def _decide(pool: NodePool, view: PoolView, now: datetime) -> Plan:
    wanted = plan(view, now)
    if not wanted.moves:
        return wanted
    return pace([wanted], _limits_left(pool, view))[0]


def _limits_left(pool: NodePool, view: PoolView) -> SharedLimits:
    """What the connections' limits leave to this pool after the transfers that other pools were given."""
    limited = SourceConnection.objects.filter(
        name__in={facts.connection for facts in view.artifacts.values()}, max_downloads__isnull=False
    )
    limits = {row.name: row.max_downloads or 0 for row in limited}
    if not limits:
        return SharedLimits()
    moving = [state for state in EntryState if is_moving_bytes(state)]
    elsewhere = Counter(
        CacheEntry.objects.filter(
            desired=Action.ENSURE, state__in=[*moving, EntryState.ABSENT], node__lost_at__isnull=True
        )
        .exclude(node__pool=pool)
        .values_list("artifact__digest", flat=True)
    )
    origins = artifact_origins(elsewhere.keys())
    taken: Counter[str] = Counter()
    for digest, count in elsewhere.items():
        if digest in origins:
            taken[origins[digest].facts.connection] += count
    return SharedLimits({name: max(0, limit - taken[name]) for name, limit in limits.items()})


def _remember(
    pool: NodePool,
    loop: PoolLoop,
    wanted: int,
    plan: Plan,
    problems: list[str],
    started: datetime,
    *,
    is_whole: bool = True,
) -> None:
    """``is_whole`` False: the request is not answered yet, and the next round goes on with it at once."""
    now = timezone.now()
    wanted_at = loop.wanted_at or started
    changes: dict[str, object] = {
        "reconciled_at": now,
        "error": "; ".join(problems)[:1000],
        "plan": plan_document(plan),
        "updated_at": now,
    }
    if is_whole:
        newer = When(wanted_round__gt=wanted, then=Value(now))
        changes["done_round"] = wanted
        changes["lag_seconds"] = max(0.0, (now - wanted_at).total_seconds())
        changes["wanted_at"] = Case(newer, default=Value(None), output_field=DateTimeField())
    else:
        changes["wanted_round"] = Greatest(F("wanted_round"), F("done_round") + 1)
        changes["wanted_at"] = wanted_at
    with transaction.atomic():
        # Once for each change: what was refused before is in the plan that this one replaces.
        refusals_announce(plan=plan, previous=loop.plan, round_number=wanted, pool=pool)
        PoolLoop.objects.filter(pk=loop.pk).update(**changes)
    if not is_whole or PoolLoop.objects.filter(pk=loop.pk, wanted_round__gt=wanted).exists():
        publish("caches.pool_reconcile", str(pool.pk))
