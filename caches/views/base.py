"""What every page does: who may read, the fleet's health in title and icon, exports of its tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar
from urllib.parse import quote

from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils import timezone
from django.utils.safestring import SafeString

from caches.filters import Filters
from caches.models import ModelVersion
from caches.selectors.coverage import PoolCoverage
from caches.selectors.health import fleet_health
from caches.selectors.overview import Trouble
from controlplane.clusters.models import Node
from controlplane.errors import FieldError, Invalid
from controlplane.web import live
from controlplane.web.live import Crumb, Health
from controlplane.web.people import View as View
from controlplane.web.people import curl as curl
from controlplane.web.people import may as may
from controlplane.web.people import readable as readable
from controlplane.web.people import signed_in as signed_in
from controlplane.web.people import user_of as user_of
from controlplane.web.tables import Table, export, wanted_format

Row = TypeVar("Row")


def health_of(
    request: HttpRequest, covered: Sequence[PoolCoverage] | None = None
) -> tuple[Health, tuple[Trouble, ...]]:
    """The worst of what this person may see, and all of it. ``covered`` is their pools_coverage, where it is known."""
    return fleet_health(now=timezone.now(), targets=readable(request), covered=covered)


def show(
    request: HttpRequest,
    template: str,
    context: dict[str, Any] | None = None,
    *,
    title: str,
    section: str,
    crumbs: Sequence[tuple[str, str]] = (),
    tables: Sequence[Table] = (),
    suffix: str = "",
    live_page: bool = True,
    status: int = 200,
    stamp: str = "",
) -> HttpResponse:
    """A page, or the export of one of its tables when the address asks for that."""
    if tables and (exported := export(request, tables, suffix)) is not None:
        return exported
    context = dict(context or {})
    if "health" not in context:
        context["health"], _ = health_of(request)
    health = context.pop("health")
    return live.page(
        request,
        template,
        {**context, **{f"{table.name}_table": table for table in tables}},
        title=title,
        section=section,
        crumbs=tuple(Crumb(label, url) for label, url in crumbs),
        health=health,
        live=live_page,
        status=status,
        stamp=stamp,
    )


def filtered(request: HttpRequest, found: Filters, suffix: str = "") -> QuerySet[Any]:
    """The rows that the address asks for. A page can say beside them what it did not understand; an export cannot,
    so it is refused instead of holding rows that nobody asked for.
    """
    if found.errors and wanted_format(request, suffix):
        errors = [
            FieldError(name, "page:user:filter", " ".join(str(one) for one in problems))
            for name, problems in found.errors.items()
        ]
        raise Invalid(
            "page:user:filter",
            "The filter is not understood.",
            next_step="Correct the address, or export from the page.",
            errors=errors,
        )
    rows: QuerySet[Any] = found.qs
    return rows


def version_url(version: ModelVersion, name: str = "version") -> str:
    return reverse(name, args=[version.model.name, version.version])


def node_url(node: Node) -> str:
    return reverse("node", args=[node.id])


def pool_of(node: Node) -> str:
    """The target that access to this node is granted on."""
    return node.pool.full_name if node.pool is not None else node.cluster.name


def trouble_url(trouble: Trouble) -> str:
    """Where to look at it."""
    if trouble.page == "pool":
        return reverse("pool", args=[trouble.query])
    if trouble.page == "version":
        model, _, version = trouble.query.partition("/")
        return reverse("version", args=[model, version])
    return reverse(trouble.page) + (f"?{trouble.query}" if trouble.query else "")


def version_path(version: ModelVersion) -> str:
    """The REST path of a version."""
    return f"models/{version.model.name}/versions/{quote(version.version, safe='')}"


def fragment(request: HttpRequest, template: str, **context: Any) -> SafeString:
    """A small piece of HTML with a form, for a table's last cell."""
    return render_to_string(template, context, request)
