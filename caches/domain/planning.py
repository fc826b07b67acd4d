"""From a pool view to a plan, with a reason for every line. Pure: see docs in pool_view.py and plans.py."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from caches.domain.plans import Check, ForecastEntry, Plan
from caches.domain.pool_view import PoolView, SharedLimits


def plan(view: PoolView, now: datetime) -> Plan:
    """What must be on every node of the pool, in which order, what may go, what is refused or waits, and why."""
    raise NotImplementedError


def pace(plans: Sequence[Plan], limits: SharedLimits) -> tuple[Plan, ...]:
    """Apply limits that span pools: moves over a limit become waits; running transfers are never stopped."""
    raise NotImplementedError


def forecast(view: PoolView, node_uid: str, now: datetime) -> tuple[ForecastEntry, ...]:
    """What would go next on this node if room were needed, protected entries last with their protection."""
    raise NotImplementedError


def explain(view: PoolView, digest: str, node_uid: str, now: datetime) -> tuple[Check, ...]:
    """Why this artifact is or is not warm on this node: the rule chain with every check."""
    raise NotImplementedError
