"""The startup taint: a node that joined with it gets no work until what is pinned there is warm."""

from __future__ import annotations

from collections.abc import Sequence

from django.db import transaction

from caches.domain.plans import Plan
from caches.domain.pool_view import PoolView
from caches.domain.warming import warm_nodes
from caches.services.loop.fan_out import fan_out
from caches.services.loop.round_budget import RoundBudget
from controlplane.audit.services import SYSTEM, audit_write
from controlplane.clusters.gateway import ClusterGateway, NotApplicable
from controlplane.clusters.models import Node
from controlplane.clusters.node_labels import node_taints_told

COLD_TAINT = "hearth.dev/cold"


def cold_taints_remove(
    *, nodes: Sequence[Node], view: PoolView, plan: Plan, gateway: ClusterGateway, budget: RoundBudget | None = None
) -> list[str]:
    """Take the taint from every node that is warm; returns what could not be done. Nobody but its kubelet sets it."""
    tainted = [node for node in nodes if _cold(node)]
    if not tainted:
        return []
    warm = warm_nodes(plan, view.nodes)

    def remove(node: Node) -> None:
        for taint in _cold(node):
            gateway.set_node_taint(node.name, node.uid, taint, False)

    answers, failure = fan_out(remove, [node for node in tainted if node.uid in warm], budget=budget)
    for answer in answers:
        if answer.error is None:
            _remember(answer.item)
    if failure is not None and not isinstance(failure, NotApplicable):
        raise failure
    problems = [f"{answer.item.name}: {answer.error}" for answer in answers if answer.error is not None]
    return problems if failure is None else [*problems, str(failure)]


def _remember(node: Node) -> None:
    with transaction.atomic():
        node_taints_told(node_id=node.pk, taints=[taint for taint in node.taints if taint not in _cold(node)])
        audit_write(
            actor=SYSTEM,
            action="node.warmed",
            object_type="node",
            object_id=str(node.pk),
            object_name=node.name,
            before={"taints": _cold(node)},
            after={"taints": []},
            message="What is pinned to the node is warm: work may come.",
        )


def _cold(node: Node) -> list[str]:
    return [taint for taint in node.taints if _key(taint) == COLD_TAINT]


def _key(taint: str) -> str:
    """The key of ``key``, ``key:Effect`` or ``key=value:Effect``."""
    return taint.split(":", 1)[0].split("=", 1)[0]
