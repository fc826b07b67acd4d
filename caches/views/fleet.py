"""Fleet → pool → node."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from urllib.parse import urlencode
from uuid import UUID

from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from caches import charts
from caches.domain.labels import is_ready_label, ready_label
from caches.filters import NodeFilter
from caches.models import Image, ModelVersion
from caches.selectors.coverage import pools_coverage
from caches.selectors.entries import artifact_name, entries_list
from caches.selectors.loop_words import next_step_of
from caches.selectors.matrix import Matrix, pool_matrix
from caches.selectors.nodes import NodeCoverage, clusters_list, last_known, node_coverage, nodes_list, pools_list
from caches.selectors.operations import operation_of_pool
from caches.selectors.overview import cluster_state
from caches.selectors.previews import node_forecast
from caches.views.base import curl, filtered, may, node_url, readable, show, version_url
from caches.views.columns import entry_columns, entry_export_columns
from caches.views.entries import entry_actions
from caches.views.fleet_columns import forecast_columns, forecast_export_columns, node_columns, pool_columns
from controlplane.accounts.models import Role
from controlplane.clusters.documents import ArtifactKind, NodeState
from controlplane.clusters.models import Node, NodePool
from controlplane.errors import Missing
from controlplane.web.formats import bytes_text, percent_text, reference_text
from controlplane.web.live import with_charts
from controlplane.web.tables import Table, wanted_format
from controlplane.web.tones import look_of, words_of


def fleet(request: HttpRequest, suffix: str = "") -> HttpResponse:
    """Clusters and pools with their coverage; nodes that no pool selects are shown, too."""
    now, targets = timezone.now(), readable(request)
    pools = Table(
        request,
        pools_coverage(now=now, targets=targets),
        pool_columns(),
        name="pools",
        caption="Node pools",
        key=lambda row: str(row.pool.id),
        url=lambda row: reverse("pool", args=[row.pool.full_name]),
    )
    loose = nodes_list(targets=targets, now=now).filter(pool__isnull=True, lost_at__isnull=True)
    clusters = [(row, cluster_state(row, now=now)) for row in clusters_list(targets=targets).order_by("name")]
    nodes = Table(request, loose, node_columns({}), name="loose", caption="Nodes outside every pool", prefix="l")
    return show(
        request,
        "pages/fleet.html",
        {"clusters": clusters, "has_loose": loose.exists()},
        title="Fleet",
        section="fleet",
        tables=(pools, nodes),
        suffix=suffix,
    )


@with_charts
def pool(request: HttpRequest, name: str, suffix: str = "") -> HttpResponse:
    """One pool: coverage by version, the heatmap of nodes and versions, its nodes and its rules."""
    now, targets = timezone.now(), readable(request)
    found = pool_named(name, targets)
    [covered] = pools_coverage(now=now, pool=found)
    nodes_filter = NodeFilter(request.GET, queryset=nodes_list(targets=targets, now=now).filter(pool=found))
    rows = filtered(request, nodes_filter, suffix)
    coverage: dict[UUID, NodeCoverage] = {}
    nodes = Table(
        request,
        rows,
        node_columns(coverage),
        name="nodes",
        caption=f"Nodes of {name}",
        url=node_url,
        default_sort="name",
    )
    # A page shows fifty of perhaps five hundred nodes: only those are counted.
    coverage |= node_coverage(list(nodes.rows if wanted_format(request, suffix) else nodes.page.object_list))
    matrix, loop = pool_matrix(found, now=now), getattr(found, "loop", None)
    return show(
        request,
        "pages/pool.html",
        {
            "pool": found,
            "covered": covered,
            "matrix": matrix,
            "matrix_rows": [_matrix_row(matrix, node) for node in matrix.nodes],
            "heatmap": charts.coverage_heatmap(matrix, links=HEATMAP_LINKS),
            "loop": loop,
            "next_step": next_step_of(loop.error if loop else ""),
            "deleting": operation_of_pool(found) if found.deleting_at else None,
            "may_delete": found.deleting_at is None and may(request, Role.ADMIN, found.full_name),
            "states": [state.value for state in NodeState],
            "problems": nodes_filter.errors,
            "curl": curl(request, f"node-pools/{found.full_name}"),
        },
        title=name,
        section="fleet",
        crumbs=[("Fleet", reverse("fleet"))],
        tables=(nodes,),
        suffix=suffix,
    )


@with_charts
def node(request: HttpRequest, node_id: UUID, suffix: str = "") -> HttpResponse:
    """One machine incarnation: what it holds, its disk, and what would go next."""
    found = nodes_list(targets=readable(request)).filter(pk=node_id).first()
    if found is None:
        raise Missing("node:user:not-found", "There is no such node.", next_step="Find it from its pool's page.")
    entries = entries_list(targets=readable(request)).filter(node=found)
    columns = entry_columns(node=False)
    if wanted_format(request, suffix):
        columns += entry_export_columns()
    table = Table(
        request,
        entries,
        columns,
        name="entries",
        caption=f"What {found.name} holds",
        url=lambda row: reverse("entry", args=[row.id]),
        actions=lambda row: entry_actions(request, row),
        default_sort="state",
    )
    forecast = Table(
        request,
        node_forecast(found),
        forecast_columns() + (forecast_export_columns() if wanted_format(request, suffix) else []),
        name="forecast",
        caption="Next to be evicted",
        key=lambda row: row.digest[-12:],
        prefix="f",
    )
    pool_row = found.pool
    ready_labels, other_labels = _labels(found)
    return show(
        request,
        "pages/node.html",
        {
            "node": found,
            "state": found.shown_state,  # type: ignore[attr-defined]  # annotated by nodes_list
            "last_known": last_known(found),
            "coverage": node_coverage([found])[found.id],
            "disk": _disk(found, list(entries)),
            "ready_labels": ready_labels,
            "other_labels": other_labels,
            "incarnations": nodes_list(targets=readable(request))
            .filter(cluster=found.cluster, name=found.name)
            .exclude(pk=found.pk),
            "curl": curl(request, f"nodes/{found.id}"),
        },
        title=found.name,
        section="fleet",
        crumbs=[
            ("Fleet", reverse("fleet")),
            *([(pool_row.full_name, reverse("pool", args=[pool_row.full_name]))] if pool_row else []),
        ],
        tables=(table, forecast),
        suffix=suffix,
    )


# A cell that should be warm and is not leads to the reason, every other one to its node.
HEATMAP_LINKS = charts.Links(
    node=node_url,
    reason=lambda node: f"?{urlencode({'why': node.name})}#why-{node.id}",
    column=lambda one: version_url(one) if isinstance(one, ModelVersion) else reverse("image", args=[one.pk]),
)


@cache
def _state_cell(state: str) -> SafeString:
    css = "kept" if state == "Kept" else look_of(state).tone
    return format_html('<td class="{}">{}</td>', css, words_of(state) or "Not wanted")


def state_cells(states: Iterable[str]) -> SafeString:
    """The matrix' row of the table that says the same as the heatmap. Ten thousand cells of ten kinds."""
    return SafeString("".join(_state_cell(state) for state in states))


def _matrix_row(matrix: Matrix, node: Node) -> tuple[Node, NodeState | None, SafeString]:
    return node, matrix.marks.get(node.id), state_cells(map(charts.shown_state, matrix.lines[node.id]))


def pool_named(name: str, targets: frozenset[str] | None) -> NodePool:
    """``cluster.pool`` with its loop. Raises errors.Missing, also for one that the reader may not see."""
    cluster, _, pool_name = name.partition(".")
    rows = pools_list(targets=targets).select_related("loop")
    found = rows.filter(Q(cluster__name=cluster, name=pool_name)).first()
    if found is None:
        raise Missing(
            "pool:user:not-found", f"There is no node pool {name}.", next_step="Choose one on the Fleet page."
        )
    return found


def _labels(found: Node) -> tuple[list[tuple[str, str, list[str]]], list[tuple[str, str]]]:
    """The node's ready-labels as (label, page, versions or images that it stands for), and its other labels."""
    ready = {name for name in found.labels if is_ready_label(name)}
    named: dict[str, str] = {}
    shared: dict[str, list[str]] = {}
    rows = ModelVersion.objects.filter(artifact__isnull=False).select_related("model", "artifact") if ready else ()
    for version in rows and rows.defer("artifact__manifest").order_by("model__name", "version"):
        assert version.artifact is not None  # filtered
        label = ready_label(version.artifact.digest)
        if label in ready:
            named.setdefault(label, version_url(version))
            shared.setdefault(label, []).append(version.full_name)
    images = Image.objects.filter(artifact__isnull=False).select_related("artifact") if ready - shared.keys() else ()
    for image in images and images.defer("artifact__manifest").order_by("reference"):
        assert image.artifact is not None  # filtered
        label = ready_label(image.artifact.digest, ArtifactKind.IMAGE)
        if label in ready:
            named.setdefault(label, reverse("image", args=[image.pk]))
            shared.setdefault(label, []).append(image.full_name)
    shown = [(label, named.get(label, ""), shared.get(label, [])) for label in ready]
    return sorted(shown, key=lambda one: (not one[2], one[2], one[0])), sorted(
        (name, value) for name, value in found.labels.items() if name not in ready
    )


def _disk(found: Node, entries: list[object]) -> dict[str, object] | None:
    if found.capacity_bytes is None:
        return None
    parts = []
    for entry in sorted(entries, key=lambda row: -row.bytes_done):  # type: ignore[attr-defined]
        version = next(iter(entry.artifact.versions.all()), None)  # type: ignore[attr-defined]
        if entry.bytes_done:  # type: ignore[attr-defined]
            url = version_url(version) if version else ""
            parts.append((reference_text(artifact_name(entry)), entry.bytes_done, url))  # type: ignore[arg-type, attr-defined]
    orphans = sum(int(orphan["bytes"]) for orphan in found.orphans)
    if orphans:
        parts.append(("Orphaned trees", orphans, ""))
    spec = charts.disk_bar(
        parts,
        other_bytes=found.other_bytes,
        reserved_bytes=found.reserved_bytes,
        capacity_bytes=found.capacity_bytes,
        watermark=found.pool.high_watermark if found.pool else 1.0,
    )
    used = found.used_bytes + found.other_bytes
    summary = (
        f"{bytes_text(used)} of {bytes_text(found.capacity_bytes)} are used "
        f"({percent_text(used, found.capacity_bytes)}), "
        f"{bytes_text(found.reserved_bytes)} more are reserved by running downloads."
    )
    return {"spec": spec, "parts": parts, "summary": summary, "legend": charts.disk_legend(spec)}
