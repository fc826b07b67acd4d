"""The hot set of each variant, from what all routers counted: the rule is routing.domain.hotset."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import QuerySet

from routing.domain.hotset import Counted, HotSet, aged, hot_set, merged
from routing.models import RoutedVariant
from routing.selectors.policies import newest_policies, policy_of
from routing.services.publishing import publish_soon

PERIOD, PERIOD_AT_FIRST = timedelta(seconds=10), timedelta(seconds=1)
YOUNG = 64.0  # requests before which a first set is looked for at once


def hot_sets_follow(*, counted: Mapping[UUID, Counted], now: datetime) -> int:
    """Add what was counted, and publish the sets that became others. How many did.

    A variant of which nothing new was counted stays as it is: without traffic nothing cools and nothing moves.
    """
    changed = 0
    with transaction.atomic():
        for row in _rows(list(counted)):
            pending = merged([_read(row.counted.get("pending")), counted[row.variant_id]])
            before = _read(row.counted.get("sum"))
            if row.hot_at is not None and now - row.hot_at < (PERIOD if before.requests > YOUNG else PERIOD_AT_FIRST):
                row.counted = {"sum": _written(before), "pending": _written(pending)}
                row.save(update_fields=["counted", "updated_at"])
                continue
            changed += _follow(row, aged(before, pending), now)
        if changed:
            publish_soon()
    return changed


def _rows(variant_ids: list[UUID]) -> QuerySet[RoutedVariant]:
    rows = RoutedVariant.objects.select_for_update(of=("self",)).select_related("variant__endpoint")
    return rows.filter(variant_id__in=variant_ids).order_by("pk")


def _follow(row: RoutedVariant, total: Counted, now: datetime) -> bool:
    policy = policy_of(row.variant.endpoint, newest_policies([row.variant_id]).get(row.variant_id))
    before = HotSet(row.hot_version, frozenset(int(one, 16) for one in row.hot))
    after = hot_set(before, total, len(row.membership), policy.extensions.hot_fraction)
    row.counted, row.hot_at = {"sum": _written(total)}, now
    row.hot, row.hot_version = sorted(f"{one:016x}" for one in after.digests), after.version
    row.save(update_fields=["counted", "hot", "hot_version", "hot_at", "updated_at"])
    return after.version != before.version


def _read(stored: Any) -> Counted:
    if not isinstance(stored, Mapping):
        return Counted()
    return Counted(stored["requests"], {int(digest, 16): count for digest, count in stored["counts"].items()})


def _written(counted: Counted) -> dict[str, Any]:
    return {
        "requests": counted.requests,
        "counts": {f"{digest:016x}": round(count, 3) for digest, count in counted.counts.items()},
    }
