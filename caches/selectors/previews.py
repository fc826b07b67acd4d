"""What would happen, asked of the planner with one fact changed. Nothing is written."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.utils import timezone

from caches.domain import planning
from caches.domain.plans import Check, ForecastEntry, Plan
from caches.models import ModelVersion, Pin
from caches.selectors.nodes import Targets, pools_list
from caches.selectors.pool_view import pool_view
from controlplane.clusters.models import Node, NodePool


def unpin_preview(pin: Pin) -> tuple[Plan, ...]:
    """The plans of the pin's pools as if it were removed and its retention over."""
    now = timezone.now()
    views = (pool_view(pool, now=now, without_pins=(pin.pk,)) for pool in pin.pools.all())
    return tuple(planning.plan(view, now) for view in views)


def pool_update_preview(pool: NodePool, changes: Mapping[str, Any]) -> Plan:
    """The pool's plan with other settings, for the nodes that it has now."""
    changed = copy.copy(pool)
    for name, value in changes.items():
        setattr(changed, name, value)
    now = timezone.now()
    return planning.plan(pool_view(changed, now=now), now)


def node_forecast(node: Node) -> tuple[ForecastEntry, ...]:
    """What would go next from this node if room were needed; empty for one that no pool selects or that is gone."""
    if node.pool is None or node.lost_at is not None:
        return ()
    now = timezone.now()
    return planning.forecast(pool_view(node.pool, now=now), node.uid, now)


@dataclass(frozen=True, slots=True)
class NodeChecks:
    """The chain of rules for one artifact on one node; ``warm`` None: unknown."""

    node: str
    node_id: UUID
    pool: str
    warm: bool | None
    checks: tuple[Check, ...]


def why_not_warm(version: ModelVersion, *, targets: Targets = None) -> tuple[NodeChecks, ...]:
    """For every live node of the pools that pin the version, why it is or is not warm there."""
    if version.artifact is None:
        return ()
    now = timezone.now()
    digest = version.artifact.digest
    found: list[NodeChecks] = []
    wanting = Pin.objects.filter(version__artifact=version.artifact, removed_at__isnull=True).values("pools")
    for pool in pools_list(targets=targets).filter(pk__in=wanting):
        view = pool_view(pool, now=now)
        # Asked for by uid: a node may be lost or change its pool between the two queries.
        uids = [node.uid for node in view.nodes]
        ids = dict(Node.objects.filter(cluster=pool.cluster_id, uid__in=uids).values_list("uid", "id"))
        for node in view.nodes:
            checks = planning.explain(view, digest, node.uid, now)
            found.append(NodeChecks(node.name, ids[node.uid], pool.full_name, _verdict(checks), checks))
    return tuple(found)


def _verdict(checks: Sequence[Check]) -> bool | None:
    verdicts = {check.passed for check in checks}
    if False in verdicts:
        return False
    return None if None in verdicts else True
