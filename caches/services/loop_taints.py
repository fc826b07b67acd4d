"""The startup taint: a node that joined with it gets no work until what is pinned there is warm."""

from __future__ import annotations

from collections.abc import Sequence

from caches.domain.plans import Plan
from caches.domain.pool_view import PoolView
from caches.domain.warming import is_warm
from controlplane.audit.services import SYSTEM, audit_write
from controlplane.clusters.gateway import ClusterGateway, Conflict, NotApplicable, NotFound
from controlplane.clusters.models import Node

COLD_TAINT = "hearth.dev/cold"


def cold_taints_remove(*, nodes: Sequence[Node], view: PoolView, plan: Plan, gateway: ClusterGateway) -> list[str]:
    """Take the taint from every node that is warm; returns what could not be done. Nobody but its kubelet sets it."""
    problems = []
    views = {node.uid: node for node in view.nodes}
    for node in nodes:
        taints = [taint for taint in node.taints if _key(taint) == COLD_TAINT]
        if not taints or node.uid not in views or not is_warm(plan, views[node.uid]):
            continue
        try:
            for taint in taints:
                gateway.set_node_taint(node.name, node.uid, taint, False)
        except (NotFound, Conflict, NotApplicable) as error:
            problems.append(f"{node.name}: {error}")
            continue
        audit_write(
            actor=SYSTEM,
            action="node.warmed",
            object_type="node",
            object_id=str(node.pk),
            object_name=node.name,
            before={"taints": taints},
            after={"taints": []},
            message="What is pinned to the node is warm: work may come.",
        )
    return problems


def _key(taint: str) -> str:
    """The key of ``key``, ``key:Effect`` or ``key=value:Effect``."""
    return taint.split(":", 1)[0].split("=", 1)[0]
