"""Overview, all entries, search."""

from __future__ import annotations

from django.db.models import CharField, Q, Value
from django.db.models.functions import Concat
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import timezone

from caches.filters import EntryFilter
from caches.models import Model, ModelVersion
from caches.selectors import overview
from caches.selectors.coverage import pools_coverage
from caches.selectors.entries import SHOWN_STATES, entries_list
from caches.selectors.nodes import nodes_list, pools_list
from caches.selectors.operations import operations_list
from caches.views.base import filtered, health_of, node_url, readable, show, trouble_url, version_url
from caches.views.columns import (
    entry_columns,
    entry_export_columns,
    operation_columns,
)
from caches.views.entries import entry_actions
from caches.views.trail import audit_table
from controlplane.web.tables import Table, wanted_format

SEARCH_LIMIT = 20


def home(request: HttpRequest, suffix: str = "") -> HttpResponse:
    """Is anything wrong; what is covered; what is moving; which disks fill up; who changed what."""
    now, targets = timezone.now(), readable(request)
    pools = pools_coverage(now=now, targets=targets)
    health, found = health_of(request, pools)
    operations = Table(
        request,
        overview.operations_in_flight(targets=targets),
        [column for column in operation_columns() if column.name in ("operation", "state", "bytes_done")],
        name="in-flight",
        caption="Operations in flight",
        url=lambda row: reverse("operation", args=[row.id]),
        prefix="o",
    )
    recent = audit_table(
        request,
        overview.last_changes(targets=targets),
        suffix=suffix,
        name="changes",
        caption="Last changes",
        prefix="c",
    )
    return show(
        request,
        "pages/overview.html",
        {
            "health": health,
            "troubles": [(trouble, trouble_url(trouble)) for trouble in found],
            "pools": pools,
            "missing": overview.copies_missing(pools),
            "flow": overview.flow(now=now, targets=targets),
            "disks": overview.disks_filling(now=now, targets=targets),
            "begun": overview.has_anything(),
            "operations": operations,
            "recent": recent,
        },
        title="Overview",
        section="overview",
        tables=(operations, recent),
        suffix=suffix,
    )


def entries(request: HttpRequest, suffix: str = "") -> HttpResponse:
    """Every artifact on every node, filtered by what the address says."""
    targets = readable(request)
    found = EntryFilter(request.GET, queryset=entries_list(targets=targets))
    columns = entry_columns()
    if wanted_format(request, suffix):
        columns += entry_export_columns()
    table = Table(
        request,
        filtered(request, found, suffix),
        columns,
        name="entries",
        caption="Cache entries",
        url=lambda row: node_url(row.node),
        actions=lambda row: entry_actions(request, row),
        default_sort="node",
    )
    return show(
        request,
        "pages/entries.html",
        {"states": SHOWN_STATES, "pools": pools_list(targets=targets), "problems": found.errors},
        title="Cache entries",
        section="fleet",
        crumbs=[("Fleet", reverse("fleet"))],
        tables=(table,),
        suffix=suffix,
    )


def search(request: HttpRequest) -> HttpResponse:
    """By name or id over models, versions, nodes, pools, pins' versions and operations."""
    text = request.GET.get("q", "").strip()[:200]
    groups = _search(request, text) if text else []
    context = {"text": text, "groups": [group for group in groups if group[1]]}
    return show(request, "pages/search.html", context, title="Search", section="search", live_page=False)


def _search(request: HttpRequest, text: str) -> list[tuple[str, list[tuple[str, str]]]]:
    targets = readable(request)
    words = text.split()
    versions = ModelVersion.objects.select_related("model").filter(
        *(
            Q(model__name__icontains=word) | Q(version__icontains=word) | Q(artifact__digest__icontains=word)
            for word in words
        )
    )
    models = Model.objects.filter(name__icontains=text)
    nodes = nodes_list(targets=targets).filter(Q(name__icontains=text) | Q(uid__icontains=text), lost_at__isnull=True)
    full_name = Concat("cluster__name", Value("."), "name", output_field=CharField())
    pools = pools_list(targets=targets).alias(full=full_name).filter(full__icontains=text)
    operations = operations_list(targets=targets).filter(subject_name__icontains=text)
    return [
        ("Models", [(model.name, reverse("model", args=[model.name])) for model in models[:SEARCH_LIMIT]]),
        ("Versions", [(row.full_name, version_url(row)) for row in versions[:SEARCH_LIMIT]]),
        ("Pools", [(pool.full_name, reverse("pool", args=[pool.full_name])) for pool in pools[:SEARCH_LIMIT]]),
        ("Nodes", [(node.name, node_url(node)) for node in nodes[:SEARCH_LIMIT]]),
        (
            "Operations",
            [
                (f"{row.kind} {row.subject_name}", reverse("operation", args=[row.id]))
                for row in operations[:SEARCH_LIMIT]
            ],
        ),
    ]
