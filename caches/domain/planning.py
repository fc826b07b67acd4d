"""From a pool view to a plan, with a reason for every line. Pure: see docs in pool_view.py and plans.py.

Demands are taken in the order of value: priority, then the soonest known launch, then the older pin. What is Ready and
wanted is kept, what runs goes on and counts as reserved, new transfers are admitted while they fit under the watermark,
and room is made only by what nothing protects or by pins of strictly lower priority.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from caches.domain.admission import admit_pins
from caches.domain.board import Board, note_blind_nodes, open_board
from caches.domain.claims import claim_entries, settle_existing
from caches.domain.explaining import explain_board
from caches.domain.forecasting import forecast_node
from caches.domain.pacing import pace_plans
from caches.domain.plans import Check, ForecastEntry, Plan
from caches.domain.pool_view import PoolView, SharedLimits
from caches.domain.projection import keep_the_rest, to_plan


def _decided(view: PoolView, now: datetime) -> Board:
    board = open_board(view, now)
    note_blind_nodes(board)
    claim_entries(board)
    settle_existing(board)
    admit_pins(board)
    keep_the_rest(board)
    return board


def plan(view: PoolView, now: datetime) -> Plan:
    """What must be on every node of the pool, in which order, what may go, what is refused or waits, and why."""
    return to_plan(_decided(view, now))


def pace(plans: Sequence[Plan], limits: SharedLimits) -> tuple[Plan, ...]:
    """Apply limits that span pools: moves over a limit become waits; running transfers are never stopped."""
    return pace_plans(plans, limits)


def forecast(view: PoolView, node_uid: str, now: datetime) -> tuple[ForecastEntry, ...]:
    """What would go next on this node if room were needed, protected entries last with their protection."""
    return forecast_node(_decided(view, now), node_uid)


def explain(view: PoolView, digest: str, node_uid: str, now: datetime) -> tuple[Check, ...]:
    """Why this artifact is or is not warm on this node: the rule chain with every check."""
    return explain_board(_decided(view, now), digest, node_uid)
