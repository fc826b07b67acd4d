"""From the planner's plans, one for each pool, to the one Plan of the contract."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rest_framework.response import Response

from caches.api.serializers.plans import PlanSerializer
from caches.domain.plans import Plan


def plan_response(plans: Iterable[Plan], *, notes: Sequence[str] = ()) -> Response:
    """200 with the Plan: what a dry run answers."""
    return Response(plan_document(tuple(plans), notes=notes))


def plan_document(plans: Sequence[Plan], *, notes: Sequence[str] = ()) -> dict[str, Any]:
    """The Plan as JSON-ready data. Pools work side by side, so the slowest one gives the time."""
    moving = [plan for plan in plans if plan.total_bytes]
    basis = min((plan.estimate_basis for plan in moving), default=0)
    plan = {
        "moves": _lines(plans, "moves"),
        "evictions": _lines(plans, "evictions"),
        "refusals": _lines(plans, "refusals"),
        "waits": _lines(plans, "waits"),
        "total_bytes": sum(plan.total_bytes for plan in plans),
        "estimated_seconds": _longest(moving),
        "estimate_basis": basis or None,
        "notes": [*notes, *(note for plan in plans for note in plan.notes)],
    }
    return PlanSerializer(plan).data


def _lines(plans: Sequence[Plan], name: str) -> list[Mapping[str, Any]]:
    return [{"pool": f"{plan.cluster}.{plan.pool}", **asdict(line)} for plan in plans for line in getattr(plan, name)]


def _longest(moving: Sequence[Plan]) -> float | None:
    if not moving:
        return 0.0
    seconds = [plan.estimated_seconds for plan in moving]
    return None if None in seconds else max(seconds)  # type: ignore[type-var]  # no None is left
