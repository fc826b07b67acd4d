"""A page of routing in the frame that all pages have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from caches.selectors.health import fleet_health
from controlplane.web import live
from controlplane.web.live import Crumb
from controlplane.web.people import readable
from controlplane.web.tables import Table, export


def show(
    request: HttpRequest,
    template: str,
    context: dict[str, Any],
    *,
    title: str,
    crumbs: Sequence[tuple[str, str]] = (),
    tables: Sequence[Table] = (),
    suffix: str = "",
    live_page: bool = True,
    status: int = 200,
) -> HttpResponse:
    """A page, or the export of one of its tables when the address asks for that."""
    if tables and (exported := export(request, tables, suffix)) is not None:
        return exported
    return live.page(
        request,
        template,
        {**context, **{f"{table.name}_table": table for table in tables}},
        title=title,
        section="endpoints",
        crumbs=tuple(Crumb(label, url) for label, url in crumbs),
        health=fleet_health(now=timezone.now(), targets=readable(request))[0],
        live=live_page,
        status=status,
    )
