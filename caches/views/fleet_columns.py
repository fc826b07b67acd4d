"""Columns of pools, nodes and the eviction forecast."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from django.urls import reverse
from django.utils.html import format_html

from caches.selectors.coverage import PoolCoverage
from caches.selectors.nodes import NodeCoverage, last_known
from caches.views.base import node_url
from controlplane.clusters.documents import NodeState
from controlplane.clusters.models import Node
from controlplane.web import cells
from controlplane.web.formats import bytes_text
from controlplane.web.tables import Column
from controlplane.web.tones import Tone


def _coverage_cell(row: PoolCoverage) -> object:
    total = row.coverage
    parts = [
        (Tone.OK, total.bytes_ready),
        (Tone.BUSY, total.bytes_arrived - total.bytes_ready),
        (Tone.UNKNOWN, total.bytes_unknown),
    ]
    text = f"{total.ready} of {total.required} copies"
    return format_html(
        '<span class="with-meter">{}<small class="nowrap">{}</small></span>',
        cells.meter(parts, total.bytes_required, text),
        text,
    )


def pool_columns() -> list[Column]:
    return [
        Column(
            "pool",
            "Pool",
            lambda r: r.pool.full_name,
            lambda r: cells.link(r.pool.full_name, reverse("pool", args=[r.pool.full_name])),
            "x",
            heading=True,
        ),
        Column("state", "State", lambda r: r.state, lambda r: cells.pill(r.state), "x"),
        Column("copies_ready", "Coverage", lambda r: r.coverage.ready, _coverage_cell, "x"),
        Column("copies_required", "Wanted", lambda r: r.coverage.required, None, "x", numeric=True),
        Column("copies_failed", "Failed", lambda r: r.failed, None, "x", numeric=True),
        Column("copies_in_flight", "On the way", lambda r: r.in_flight, None, "x", numeric=True),
        Column("copies_unknown", "Unknown", lambda r: r.coverage.unknown, None, "x", numeric=True),
        Column("nodes", "Nodes", lambda r: r.nodes_total, None, "x", numeric=True),
        Column(
            "used_bytes",
            "Used",
            lambda r: r.used_bytes + r.other_bytes,
            lambda r: cells.size(r.used_bytes + r.other_bytes),
            "x",
            numeric=True,
        ),
        Column(
            "capacity_bytes",
            "Capacity",
            lambda r: r.capacity_bytes,
            lambda r: cells.size(r.capacity_bytes),
            "x",
            numeric=True,
        ),
    ]


def node_columns(coverage: Mapping[UUID, NodeCoverage]) -> list[Column]:
    def covered(row: Node) -> NodeCoverage:
        return coverage.get(row.id, NodeCoverage())

    def disk(row: Node) -> object:
        if row.capacity_bytes is None:
            return None
        used = row.used_bytes + row.other_bytes
        text = f"{bytes_text(used)} of {bytes_text(row.capacity_bytes)}"
        return format_html(
            '<span class="with-meter">{}<small class="nowrap">{}</small></span>',
            cells.disk(row, text),
            text,
        )

    return [
        Column("name", "Node", lambda r: r.name, lambda r: cells.link(r.name, node_url(r)), "name", heading=True),
        Column("state", "State", lambda r: r.shown_state, _node_state, "shown_state"),
        Column(
            "ready",
            "Ready",
            lambda r: covered(r).ready,
            lambda r: f"{covered(r).ready} of {covered(r).required}",
            numeric=True,
        ),
        Column("used_bytes", "Disk", lambda r: r.used_bytes + r.other_bytes, disk, "used_bytes"),
        Column(
            "capacity_bytes",
            "Capacity",
            lambda r: r.capacity_bytes,
            lambda r: cells.size(r.capacity_bytes),
            "capacity_bytes",
            numeric=True,
        ),
        Column("reported_at", "Reported", lambda r: r.reported_at, lambda r: cells.when(r.reported_at), "reported_at"),
        Column("joined_at", "Joined", lambda r: r.joined_at, lambda r: cells.when(r.joined_at), "joined_at"),
        Column(
            "uid",
            "Incarnation",
            lambda r: r.uid,
            lambda r: format_html('<code title="{}">{}</code>', r.uid, r.uid[:8]),
            "",
        ),
    ]


def _node_state(row: Node) -> object:
    shown: str = row.shown_state  # type: ignore[attr-defined]  # annotated by nodes_list
    known = last_known(row)
    note = f"Last known: {known}." if shown == NodeState.UNKNOWN and known else ""
    return format_html("{}{}", cells.pill(shown), cells.reason(note))


_PROTECTED = {
    "InUse": "a workload uses it",
    "Pinned": "pinned",
    "Held": "held",
    "Grace": "used too recently",
    "ReferencesUnknown": "who uses it is unknown",
    "NodeNotReady": "its node does not answer",
}


def forecast_export_columns() -> list[Column]:
    """What exports have as a column of its own and pages below the word."""
    return [Column("detail", "Why in this place", lambda r: r.detail)]


def forecast_columns() -> list[Column]:
    return [
        Column("rank", "Order", lambda r: r.rank, None, "x", numeric=True),
        Column(
            "artifact", "Model version", lambda r: r.artifact, lambda r: cells.reference(r.artifact), "x", heading=True
        ),
        Column("protected_by", "May go", lambda r: r.protected_by, _may_go, ""),
        Column("bytes", "Size", lambda r: r.bytes, lambda r: cells.size(r.bytes), "x", numeric=True),
        Column("last_used_at", "Last used", lambda r: r.last_used_at, lambda r: cells.when(r.last_used_at), ""),
    ]


def _may_go(row: object) -> object:
    """The reason stands below the word: in a column of its own it would be off a narrow screen."""
    protection, why = row.protected_by, cells.reason(row.detail)  # type: ignore[attr-defined]
    if protection is None:
        return format_html("{}{}", cells.pill("Evicts", "Goes next"), why)
    return format_html("{}{}", cells.pill("Kept", f"Stays: {_PROTECTED.get(protection.value, protection.value)}"), why)
