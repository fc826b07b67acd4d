"""What a round leaves behind: what it refused as JSON for pages and operations, and what of that is new."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from caches.domain.plans import Plan, Refusal
from caches.services.webhooks.announcing import webhook_announce
from controlplane.audit.services import SYSTEM, audit_write
from controlplane.clusters.models import NodePool


def plan_document(plan: Plan) -> dict[str, Any]:
    """What pages, operations and the next round read of a plan: ``refusals`` as in plans.Plan, times as RFC 3339.

    Nothing else: a plan of a thousand cold nodes would be megabytes, read again by everything that looks at the row.
    """
    names = [field.name for field in dataclasses.fields(Refusal)]
    return {
        "refusals": [{name: _plain(getattr(refusal, name)) for name in names} for refusal in plan.refusals],
    }


def refusals_announce(*, plan: Plan, previous: Mapping[str, Any] | None, round_number: int, pool: NodePool) -> int:
    """Audit and announce each pin that is refused somewhere where it was not before; returns how many pins."""
    before = {(r["pin_id"], r["node_uid"], r["reason"]) for r in (previous or {}).get("refusals", [])}
    fresh: dict[str, list[Refusal]] = {}
    for refusal in plan.refusals:
        if (refusal.pin_id, refusal.node_uid, refusal.reason) not in before:
            fresh.setdefault(refusal.pin_id, []).append(refusal)
    for pin_id, refusals in fresh.items():
        first = refusals[0]
        nodes = [refusal.node for refusal in refusals]
        audit_write(
            actor=SYSTEM,
            action="pin.refused",
            object_type="pin",
            object_id=pin_id,
            object_name=first.artifact,
            after={"pool": pool.full_name, "reason": first.reason, "nodes": nodes, "need_bytes": first.need_bytes},
            message=first.detail,
        )
        webhook_announce(
            event="pin.refused",
            dedup_key=f"pin.refused:{pin_id}:{pool.pk}:{round_number}",
            payload={
                "pin": pin_id,
                "artifact": first.artifact,
                "pool": pool.full_name,
                "nodes": nodes,
                "reason": first.reason,
                "detail": first.detail,
                "need_bytes": first.need_bytes,
                "free_bytes": first.free_bytes,
                "reserved_bytes": first.reserved_bytes,
                "next_step": first.next_step,
            },
        )
    return len(fresh)


def _plain(value: object) -> object:
    return value.isoformat() if isinstance(value, datetime) else value
