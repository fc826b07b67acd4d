"""Deleting a pool in the browser: what leaves which node, what forbids it, and the typed name."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from caches.domain.plans import Plan
from caches.selectors.leaving import Leaving, pins_of, pool_leaving
from caches.selectors.nodes import nodes_list
from caches.selectors.operations import operation_of_pool
from caches.services.pool_deletion import pool_delete, pool_delete_preview
from caches.views.base import curl, readable, show, user_of
from caches.views.fleet import pool_named
from controlplane.accounts import access
from controlplane.accounts.actors import actor_of
from controlplane.accounts.models import Role
from controlplane.clusters.models import NodePool
from controlplane.errors import Clash, Invalid
from controlplane.web.form_keys import fresh_key, once


def delete(request: HttpRequest, name: str) -> HttpResponse:
    """GET shows what would leave the nodes; POST with the typed name starts that and shows the operation."""
    if request.method == "POST":
        return once(request, lambda: _start(request, name))
    found = _allowed(request, name)
    pins, plan = list(pins_of(found)), None
    if found.deleting_at is None and not pins:
        try:
            plan = pool_delete_preview(pool_id=found.pk)
        except Clash:  # pinned since it was looked at
            pins = list(pins_of(found))
    return show(
        request,
        "pages/pool_delete.html",
        {
            "pool": found,
            "pins": pins,
            "running": operation_of_pool(found) if found.deleting_at else None,
            "nodes": _by_node(pool_leaving(found, plan)) if plan else [],
            "nodes_total": nodes_list().filter(pool=found, lost_at__isnull=True).count(),
            **_sums(found, plan),
            "form_key": fresh_key(),
            "curl": curl(request, f"node-pools/{found.full_name}?dry_run=true", method="DELETE"),
        },
        title=f"Delete pool {name}",
        section="fleet",
        crumbs=[("Fleet", reverse("fleet")), (name, reverse("pool", args=[name]))],
        live_page=False,
    )


def _start(request: HttpRequest, name: str) -> str:
    found = _allowed(request, name)
    if request.POST.get("confirm", "").strip() != found.full_name:
        raise Invalid(
            "pool:user:not-confirmed",
            "The typed name is not the pool that would be deleted.",
            next_step=f"Go back and type {found.full_name} exactly.",
        )
    operation = pool_delete(actor=actor_of(request), pool_id=found.pk)
    return reverse("operation", args=[operation.id])


def _allowed(request: HttpRequest, name: str) -> NodePool:
    found = pool_named(name, readable(request))
    access.require(user_of(request), Role.ADMIN, found.full_name)
    return found


def _by_node(lines: Sequence[Leaving]) -> list[tuple[str, list[Leaving]]]:
    return [(node, list(mine)) for node, mine in groupby(lines, key=lambda line: line.node)]


def _sums(found: NodePool, plan: Plan | None) -> dict[str, int]:
    lines = plan.evictions if plan else ()
    return {"going": len(lines), "going_bytes": sum(line.bytes for line in lines)}
