"""Charts of launches as plain dicts (see caches/charts.py). What was not measured is hatched, and never a colour."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from caches.domain.launches.period import Period, label_of
from caches.domain.launches.words import PHASES, Phase
from caches.models import Launch
from caches.selectors.launches.stats import EDGES, Example, HeatCell
from controlplane.audit.models import AuditEvent
from controlplane.web.formats import duration_text, iso_text
from controlplane.web.tones import words_of

Spec = dict[str, Any]

PHASE_WORDS = {
    Phase.WAITING: "Waiting for a node",
    Phase.IMAGE_PULL: "Image pull",
    Phase.WEIGHTS_FETCH: "Weights fetch",
    Phase.INITIALISATION: "Runtime initialisation",
    Phase.WEIGHTS_LOAD: "Weights load and shard",
    Phase.HEALTH_CHECKS: "Health checks",
    Phase.FIRST_REQUEST: "First successful request",
}
# Okabe and Ito: told apart by people who see few colours.
_COLOURS = dict(zip(PHASES, ("#56B4E9", "#E69F00", "#0072B2", "#CC79A7", "#009E73", "#F0E442", "#D55E00"), strict=True))
_AXIS: Spec = {"showgrid": False, "zeroline": False, "fixedrange": True, "automargin": True}
_MOST_TICKS = 8
_UNKNOWN = "Unknown"
_SLIVER = 0.002  # of a launch


def phase_bars(examples: Sequence[Example], page: Callable[[Launch], str]) -> Spec:
    """One stacked bar for the median and the p95 launch of each class, seconds across; what nobody measured last."""
    labels = [f"{words_of(one.event_class)}, {'median' if one.quantile == 0.5 else 'p95'}" for one in examples]
    pages = [page(one.launch) for one in examples]
    traces = []
    for index, phase in enumerate(PHASES):
        seconds = [one.launch.phase_seconds[index] or 0.0 for one in examples]
        if any(seconds):
            traces.append(_stacked(PHASE_WORDS[phase], labels, seconds, pages) | {"marker": _coloured(phase)})
    unknown = [one.launch.unknown_seconds or 0.0 for one in examples]
    if any(unknown):
        traces.append(_stacked(_UNKNOWN, labels, unknown, pages) | {"marker": _hatched()})
    layout: Spec = {
        "height": 110 + 34 * max(1, len(examples)),
        "barmode": "stack",
        "margin": {"l": 8, "r": 16, "t": 8, "b": 40},
        "legend": {"orientation": "h", "y": -0.3, "traceorder": "normal"},
        "uirevision": "phases",
        "font": {"size": 12},
        "xaxis": _AXIS | _durations(max((sum(_known(one.launch)) for one in examples), default=1.0)),
        "yaxis": _AXIS | {"autorange": "reversed"},
    }
    return {"data": traces, "layout": layout}


def heatmap(cells: Iterable[HeatCell], period: Period, zone: ZoneInfo, events: Sequence[AuditEvent]) -> Spec:
    """Time across, seconds until ready upwards, how many launches as the colour; a diamond for each change above it.

    Steps are numbered, so that an hour that clocks repeat has its own column. ``meta.edges`` are the times between
    the columns: static/js/charts.js asks for those that somebody drags over.
    """
    steps, rows = period.steps, [_row_label(index) for index in range(len(EDGES))]
    moments = [_moment(start, zone) for start in steps]
    column = {start: index for index, start in enumerate(steps)}
    counts: list[list[int | None]] = [[None] * len(steps) for _ in EDGES]
    for cell in cells:
        if cell.start in column:
            counts[EDGES.index(int(cell.low))][column[cell.start]] = cell.count
    every = max(1, -(-len(steps) // _MOST_TICKS))
    ticks = list(range(0, len(steps), every))
    heat: Spec = {
        "type": "heatmap",
        "z": counts,
        "x": list(range(len(steps))),
        "y": list(range(len(EDGES))),
        "colorscale": "Cividis",
        "zmin": -max((count or 0 for row in counts for count in row), default=0) / 4,  # one launch is no dark nothing
        "showscale": False,
        "xgap": 1,
        "ygap": 1,
        "hovertemplate": "%{z} launches<br>%{text}<extra></extra>",
        "text": [[f"{label} from {moment}" for moment in moments] for label in rows],
        "meta": {"tokens": []},
    }
    layout: Spec = {
        "height": 380,
        "margin": {"l": 8, "r": 8, "t": 8, "b": 8},
        "uirevision": f"heat {iso_text(period.since)} {iso_text(period.until)}",
        "font": {"size": 12},
        "showlegend": False,
        "dragmode": "zoom",
        "meta": {"edges": [*map(iso_text, steps), "now" if period.open else iso_text(period.end)]},
        "xaxis": _AXIS
        | {
            "fixedrange": False,
            "range": [-0.5, len(steps) - 0.5],
            "tickmode": "array",
            "tickvals": [tick - 0.5 for tick in ticks],  # where the step begins, as changes are placed
            "ticktext": [label_of(steps[tick], zone, period.step) for tick in ticks],
        },
        "yaxis": _AXIS
        | {
            "range": [-0.5, len(EDGES) + 0.5],
            "tickmode": "array",
            "tickvals": list(range(len(EDGES))),
            "ticktext": rows,
        },
    }
    marks = _changes(events, period)
    layout["shapes"] = [_line(x) for x in marks["x"]] if marks else []
    return {"data": [heat, *([marks] if marks else [])], "layout": layout}


def waterfall(launch: Launch) -> Spec:
    """The phases of one launch where they lie, in seconds from its beginning; lengths without a place are left out.
    Below them, hatched, what no phase that was measured lies in."""
    start = launch.started_at or launch.began_at
    traces: list[Spec] = []
    for line in launch.phases:
        phase = Phase(line["phase"])
        pieces = [(_seconds(start, begin), _seconds(start, end)) for begin, end in line["pieces"]]
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": PHASE_WORDS[phase],
                "y": [PHASE_WORDS[phase]] * max(1, len(pieces)),
                "base": [begin for begin, _ in pieces] or [0],
                "x": [end - begin for begin, end in pieces] or [0],
                "marker": _coloured(phase),
                "hovertext": [_piece(begin, end) for begin, end in pieces] or [line["state"]],
                "hovertemplate": "%{y}<br>%{hovertext}<extra></extra>",
                "meta": {"tokens": []},
            }
        )
    whole = launch.total_seconds or max((one["base"][-1] + one["x"][-1] for one in traces), default=1.0)
    gaps = _gaps(traces, launch.total_seconds) if launch.unknown_seconds else []
    if gaps:
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": _UNKNOWN,
                "y": [_UNKNOWN] * len(gaps),
                "base": [begin for begin, _ in gaps],
                "x": [end - begin for begin, end in gaps],
                "marker": _hatched(),
                "hovertext": [_piece(begin, end) for begin, end in gaps],
                "hovertemplate": f"{_UNKNOWN}: no phase is known to lie here<br>%{{hovertext}}<extra></extra>",
                "meta": {"tokens": []},
            }
        )
    layout: Spec = {
        "height": 330 if gaps else 300,
        "barmode": "overlay",
        "showlegend": False,
        "margin": {"l": 8, "r": 16, "t": 8, "b": 30},
        "uirevision": "waterfall",
        "font": {"size": 12},
        "xaxis": _AXIS | _durations(whole),
        "yaxis": _AXIS
        | {"autorange": "reversed", "categoryarray": [*PHASE_WORDS.values(), _UNKNOWN], "categoryorder": "array"},
    }
    return {"data": traces, "layout": layout}


def _gaps(traces: Sequence[Spec], total: float | None) -> list[tuple[float, float]]:
    """What lies between the bars, from the beginning to the end; slivers that nobody could see are left out."""
    pieces = sorted((base, base + length) for one in traces for base, length in zip(one["base"], one["x"], strict=True))
    edges, reached = [], 0.0
    for begin, end in [*pieces, (total or 0.0, total or 0.0)]:
        edges.append((reached, begin))
        reached = max(reached, end)
    return [(begin, end) for begin, end in edges if end - begin > _SLIVER * (total or 1.0)]


def _stacked(name: str, labels: Sequence[str], seconds: Sequence[float], pages: Sequence[str]) -> Spec:
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "y": list(labels),
        "x": list(seconds),
        "customdata": list(pages),
        "hovertext": [duration_text(one) for one in seconds],
        "hovertemplate": f"<b>{name}</b><br>%{{y}}: %{{hovertext}}<extra></extra>",
        "meta": {"tokens": []},
    }


def _coloured(phase: Phase) -> Spec:
    return {"color": _COLOURS[phase], "line": {"width": 1, "color": "rgba(128,128,128,0.35)"}}


def _hatched() -> Spec:
    return {
        "color": "rgba(0,0,0,0)",
        "line": {"width": 1, "color": "rgba(128,128,128,0.6)"},
        "pattern": {"shape": "/", "size": 8, "solidity": 0.2},
    }


def _known(launch: Launch) -> list[float]:
    return [*(seconds or 0.0 for seconds in launch.phase_seconds), launch.unknown_seconds or 0.0]


def _durations(most: float) -> Spec:
    """An axis of seconds from zero, with ticks as people say durations."""
    values = [most * part / 4 for part in range(5)]
    return {
        "range": [0, most * 1.02 or 1],
        "tickmode": "array",
        "tickvals": values,
        "ticktext": [duration_text(round(value, 1) if value < 10 else round(value)) for value in values],
    }


def _row_label(index: int) -> str:
    if index + 1 == len(EDGES):
        return f"{duration_text(EDGES[index])} or more"
    return f"{duration_text(EDGES[index])} to {duration_text(EDGES[index + 1])}"


def _moment(moment: datetime, zone: ZoneInfo) -> str:
    return f"{moment.astimezone(zone):%Y-%m-%d %H:%M}"


def _changes(events: Sequence[AuditEvent], period: Period) -> Spec:
    """Where things were changed, each leading to its event."""
    if not events:
        return {}
    return {
        "type": "scatter",
        "mode": "markers",
        "cliponaxis": False,
        "x": [_place(event.at, [*period.steps, period.until]) for event in events],
        "y": [len(EDGES)] * len(events),
        "marker": {"symbol": "diamond", "size": 9, "color": "rgba(0,0,0,0)", "line": {"width": 1, "color": "#888888"}},
        "customdata": [f"/audit?id={event.pk}" for event in events],
        "hovertext": [_safe(f"{event.action} {event.object_name} by {event.actor}") for event in events],
        "hovertemplate": "%{hovertext}<extra></extra>",
        "meta": {"tokens": ["--warn-solid"]},
    }


def _place(moment: datetime, edges: Sequence[datetime]) -> float:
    """Where on an axis of numbered steps, which need not be of one length."""
    index = max(0, min(len(edges) - 2, bisect_right(edges, moment) - 1))
    return index - 0.5 + (moment - edges[index]) / (edges[index + 1] - edges[index])


def _line(x: float) -> Spec:
    line = {"width": 1, "dash": "dot", "color": "#888888"}
    return {"type": "line", "x0": x, "x1": x, "yref": "paper", "y0": 0, "y1": 1, "line": line}


def _seconds(start: datetime, moment: str) -> float:
    return (datetime.fromisoformat(moment) - start) / timedelta(seconds=1)


def _piece(begin: float, end: float) -> str:
    return f"{duration_text(end - begin)}, from {duration_text(max(0.0, begin))}"


def _safe(text: str) -> str:
    """plotly reads a subset of HTML in texts."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
