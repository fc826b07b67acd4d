"""Chart specs as plain dicts (tests hand them to go.Figure, which rejects any unknown property).

Colours are names of CSS variables in ``meta.tokens``; static/js/charts.js turns them into the page's theme. Every
clickable mark has its page in ``customdata``, which charts.js fills in for the heatmap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import unescape
from typing import Any

from caches.models import Image, ModelVersion
from caches.selectors.matrix import Matrix, MatrixCell
from controlplane.clusters.models import Node
from controlplane.web.formats import reference_text
from controlplane.web.tones import words_of

Spec = dict[str, Any]

_KEPT = "Kept"  # Ready, and no pin wants it: drawn apart from what counts
# Order is the heatmap's scale; Unknown is drawn over it with a hatch.
_SCALE = (
    "",
    "Absent",
    "Queued",
    "Downloading",
    "Verifying",
    "Ready",
    _KEPT,
    "Repairing",
    "Evicting",
    "Failed",
    "Unknown",
)
_RANKS = {state: rank for rank, state in enumerate(_SCALE)}
_TOKENS = {
    "": "--surface-2",
    "Absent": "--surface-3",
    "Queued": "--idle-solid",
    "Downloading": "--busy-solid",
    "Verifying": "--busy-solid",
    "Ready": "--ok-solid",
    _KEPT: "--ok-tint",
    "Repairing": "--warn-solid",
    "Evicting": "--idle-solid",
    "Failed": "--bad-solid",
    "Unknown": "--unknown-tint",
}
_SIGNS = {
    "": "",
    "Absent": "–",  # noqa: RUF001  # a dash, not a hyphen
    "Queued": "…",
    "Downloading": "↓",
    "Verifying": "≈",
    "Ready": "✓",
    _KEPT: "✓ kept",
    "Repairing": "🔧︎",
    "Evicting": "↑",
    "Failed": "✕",
    "Unknown": "",  # the hatch says it
}
_WHOLE = ("Ready", _KEPT, "Verifying", "Unknown")  # nearly always with all their bytes
_PLAIN: Spec = {"showgrid": False, "zeroline": False, "fixedrange": True, "automargin": True}


@dataclass(frozen=True, slots=True)
class Links:
    """Where the heatmap leads. ``reason`` follows a column's address and opens why it is not warm on that node."""

    node: Callable[[Node], str]
    reason: Callable[[Node], str]
    column: Callable[[ModelVersion | Image], str]


def coverage_heatmap(matrix: Matrix, *, links: Links) -> Spec:
    """Nodes down, versions and images across; a bar drawn over a cell hatches the unknown and frames the kept.

    What is the same for a row, a column or a state is said once: charts.js puts each cell's sign, words and page
    together. ``meta.done`` has the cells whose bytes do not follow from their state, ``meta.loose`` those that are
    there without being wanted, both as [row, column, …].
    """
    rows, columns = matrix.nodes, matrix.columns
    cells = [matrix.lines[node.id] for node in rows]
    placed = [(y, x, cell) for y, line in enumerate(cells) for x, cell in enumerate(line) if cell.state]
    names = [_safe(_head(column)) for column in columns]
    labels = [_label(node, matrix) for node in rows]
    heat: Spec = {
        "type": "heatmap",
        "z": [[_RANKS[shown_state(cell)] for cell in line] for line in cells],
        "zmin": 0,
        "zmax": len(_SCALE),
        "texttemplate": "%{text}",
        "hovertemplate": "%{hovertext}<extra></extra>",
        "showscale": False,
        "xgap": 3,
        "ygap": 3,
        "meta": {
            "tokens": [_TOKENS[state] for state in _SCALE],
            "states": list(_SCALE),
            "signs": [_SIGNS[state] for state in _SCALE],
            "rows": [[_safe(node.name), links.node(node), links.reason(node)] for node in rows],
            "columns": [[_safe(c.full_name), links.column(c), c.artifact.size_bytes] for c in columns],  # type: ignore[union-attr]
            "whole": list(_WHOLE),
            "done": [[y, x, cell.bytes_done] for y, x, cell in placed if cell.bytes_done != _usual(cell)],
            "loose": [[y, x] for y, x, cell in placed if not cell.wanted and cell.state != "Ready"],
        },
    }
    unknown = [(y, x) for y, x, cell in placed if cell.state == "Unknown"]
    kept = [(y, x) for y, x, cell in placed if shown_state(cell) == _KEPT]
    overlays = [*([_hatch(unknown)] if unknown else []), *([_frame(kept)] if kept else [])]
    layout: Spec = {
        "height": 76 + 30 * max(1, len(rows)),
        "margin": {"l": 8, "r": 8, "t": 8, "b": 8},
        "barmode": "overlay",
        "bargap": 0,
        "showlegend": False,
        "uirevision": "coverage",
        # Characters: of the widest head and of the widest row's name. charts.js turns heads that do not fit.
        "meta": {"heads": [_widest(names), _widest(labels)]},
        "font": {"size": 13},
        "xaxis": _PLAIN | _ticks(names) | {"side": "top"},
        "yaxis": _PLAIN | _ticks(labels) | {"autorange": False, "range": [len(rows) - 0.5, -0.5]},
    }
    return {"data": [heat, *overlays], "layout": layout}


def shown_state(cell: MatrixCell) -> str:
    """The cell's state as it is drawn and said: a Ready copy that no pin wants is Kept."""
    return _KEPT if cell.state == "Ready" and not cell.wanted else cell.state


def _head(column: ModelVersion | Image) -> str:
    """Of an image the end of its name: the whole stands in each cell's words."""
    name = column.full_name
    return reference_text(name).rpartition("/")[2] if isinstance(column, Image) else name


def _widest(texts: Sequence[str]) -> int:
    return max((len(unescape(text)) for text in texts), default=0)


def _ticks(labels: Sequence[str]) -> Spec:
    return {"tickmode": "array", "tickvals": list(range(len(labels))), "ticktext": list(labels)}


def _frame(cells: Sequence[tuple[int, int]]) -> Spec:
    return _bars(cells) | {
        "marker": {"color": "rgba(0,0,0,0)", "line": {"width": 2}},
        "meta": {"line": "--ok-solid"},
    }


def _bars(cells: Sequence[tuple[int, int]]) -> Spec:
    return {
        "type": "bar",
        "x": [x for _, x in cells],
        "base": [y - 0.45 for y, _ in cells],
        "y": [0.9 for _ in cells],
        "width": 0.97,
        "hoverinfo": "skip",
    }


def _hatch(cells: Sequence[tuple[int, int]]) -> Spec:
    return _bars(cells) | {
        "text": "unknown",
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "textfont": {"size": 12},
        "marker": {"color": "rgba(0,0,0,0)", "pattern": {"shape": "/", "size": 9, "solidity": 0.12}},
        "meta": {"text": "--text"},
    }


def _usual(cell: MatrixCell) -> int:
    """The bytes that are there of a cell in this state, unless it is said otherwise."""
    return cell.bytes_total if cell.state in _WHOLE else 0


def _label(node: Node, matrix: Matrix) -> str:
    mark = matrix.marks.get(node.id)
    return _safe(node.name) + (f" {words_of(mark)}" if mark else "")


def _safe(text: str) -> str:
    """plotly reads a subset of HTML in texts."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


_CATEGORIES = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")  # Okabe and Ito


def disk_bar(
    parts: Sequence[tuple[str, int, str]],
    *,
    other_bytes: int,
    reserved_bytes: int,
    capacity_bytes: int,
    watermark: float,
) -> Spec:
    """One stacked bar of a node's disk: artifacts by size, other files, reserved bytes and what is free.

    ``parts`` are (name, bytes, page). The line marks the pool's high watermark.
    """
    known = sum(size for _, size, _ in parts) + other_bytes + reserved_bytes
    traces = [
        _segment(name, size, colour=_CATEGORIES[n % len(_CATEGORIES)], url=url)
        for n, (name, size, url) in enumerate(parts)
    ]
    traces.append(_segment("Other files", other_bytes, token="--idle-solid"))
    traces.append(_segment("Reserved by downloads", reserved_bytes, token="--busy-tint", pattern="."))
    traces.append(_segment("Free", max(0, capacity_bytes - known), token="--surface-3"))
    line = {
        "type": "line",
        "x0": capacity_bytes * watermark,
        "x1": capacity_bytes * watermark,
        "yref": "paper",
        "y0": 0,
        "y1": 1,
        "line": {"color": "#c9362f", "width": 2, "dash": "dot"},
    }
    layout: Spec = {
        "height": 92,
        "barmode": "stack",
        "margin": {"l": 30, "r": 30, "t": 6, "b": 26},
        "uirevision": "disk",
        "showlegend": False,  # the page writes it, where it can wrap
        "font": {"size": 12},
        "shapes": [line],
        "xaxis": _PLAIN | _size_ticks(capacity_bytes) | {"range": [0, max(1, capacity_bytes)]},
        "yaxis": _PLAIN | {"showticklabels": False},
    }
    return {"data": [trace for trace in traces if trace["x"][0] > 0], "layout": layout}


def disk_legend(spec: Spec) -> list[tuple[str, str, str, int, str]]:
    """(name, colour, token, bytes, page) of each part of a disk_bar, in its order; colour or token is "".

    Names are as plotly reads them: escaped once, so that a template marks them as safe.
    """
    return [
        (
            trace["name"],
            "" if trace["meta"]["tokens"] else trace["marker"]["color"],
            "".join(trace["meta"]["tokens"]).removeprefix("--"),
            trace["x"][0],
            trace["customdata"][0],
        )
        for trace in spec["data"]
    ]


def _segment(name: str, size: int, *, colour: str = "", token: str = "", url: str = "", pattern: str = "") -> Spec:
    marker: Spec = {"color": colour or "rgba(0,0,0,0)", "line": {"width": 1, "color": "rgba(128,128,128,0.35)"}}
    if pattern:
        marker["pattern"] = {"shape": pattern, "size": 6, "solidity": 0.3}
    return {
        "type": "bar",
        "orientation": "h",
        "name": _safe(name),
        "x": [size],
        "y": [0],
        "customdata": [url],
        "hovertemplate": f"<b>{_safe(name)}</b><br>{size / 1024**3:,.2f} GiB ({size:,} bytes)<extra></extra>",
        "marker": marker,
        "meta": {"tokens": [token] if token else []},
    }


def _size_ticks(capacity_bytes: int) -> Spec:
    steps = 4
    values = [capacity_bytes * n // steps for n in range(steps + 1)]
    unit, size = next(
        ((u, s) for u, s in (("TiB", 1024**4), ("GiB", 1024**3)) if capacity_bytes >= s), ("MiB", 1024**2)
    )
    return {
        "tickmode": "array",
        "tickvals": values,
        "ticktext": [f"{value / size:.4g} {unit}" for value in values],
    }
