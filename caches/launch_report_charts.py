"""Charts of comparisons and reports of launches as plain dicts (see caches/charts.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from caches.domain.launches.comparison import Comparison, Effect
from caches.domain.launches.resampling import Difference
from caches.launch_charts import PHASE_WORDS
from controlplane.web.formats import duration_text

Spec = dict[str, Any]
_AXIS: Spec = {"zeroline": False, "fixedrange": True, "automargin": True}
_WAITS = (0.1, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 7200)
_GREY = "#888888"
# Okabe and Ito.
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7")


def effect_words(effect: Effect) -> str:
    """What it is an effect on."""
    return PHASE_WORDS[effect.phase] if effect.phase is not None else "Until ready"


def effects(comparison: Comparison) -> Spec:
    """What the second selection has more than the first, per phase, each with its interval; zero is no difference."""
    traces = []
    for name, symbol, colour, shown in (
        ("median", "circle", _COLOURS[0], [(one, one.median) for one in comparison.effects]),
        ("p95", "diamond", _COLOURS[1], [(one, one.p95) for one in comparison.effects]),
    ):
        known = [(one, found) for one, found in shown if found.low is not None]
        if known:
            traces.append(_interval(name, symbol, colour, known))
    layout: Spec = {
        "height": 120 + 38 * len(comparison.effects),
        "margin": {"l": 8, "r": 16, "t": 8, "b": 40},
        "legend": {"orientation": "h", "y": -0.25},
        "uirevision": "effects",
        "font": {"size": 12},
        "xaxis": _AXIS | {"ticksuffix": " s", "showgrid": True},
        "yaxis": _AXIS | {"autorange": "reversed", "showgrid": False, "type": "category"},
        "shapes": [{"type": "line", "x0": 0, "x1": 0, "yref": "paper", "y0": 0, "y1": 1, "line": _line()}],
    }
    return {"data": traces, "layout": layout}


def distributions(groups: Mapping[str, Sequence[float]]) -> Spec:
    """The share of launches that were ready after so many seconds, a line for each group; seconds on a log scale."""
    traces: list[Spec] = []
    for (name, seconds), colour in zip(groups.items(), _COLOURS, strict=False):
        ordered = sorted(max(one, 0.001) for one in seconds)
        steps = _thinned(ordered)
        traces.append(
            {
                "type": "scatter",
                "mode": "lines" if len(ordered) > 1 else "markers",  # no line goes through one point
                "name": f"{_safe(name)} (n = {len(ordered)})",
                "x": [ordered[index] for index in steps],
                "y": [100 * (index + 1) / len(ordered) for index in steps],
                "line": {"shape": "hv", "width": 2, "color": colour},
                "marker": {"size": 9, "color": colour},
                "hovertext": [duration_text(ordered[index]) for index in steps],
                "hovertemplate": f"<b>{_safe(name)}</b><br>%{{y:.0f}} % within %{{hovertext}}<extra></extra>",
                "meta": {"tokens": []},
            }
        )
    layout: Spec = {
        "height": 340,
        "margin": {"l": 8, "r": 16, "t": 8, "b": 40},
        "legend": {"orientation": "h", "y": -0.25},
        "uirevision": "distributions",
        "font": {"size": 12},
        "xaxis": _AXIS | {"type": "log", "showgrid": True, "title": {"text": "until ready"}} | _ticks(),
        "yaxis": _AXIS | {"range": [0, 102], "ticksuffix": " %", "showgrid": True},
    }
    return {"data": traces, "layout": layout}


def _ticks() -> Spec:
    """What people tell apart when they wait."""
    return {"tickmode": "array", "tickvals": list(_WAITS), "ticktext": [duration_text(one) for one in _WAITS]}


def _thinned(ordered: Sequence[float], most: int = 400) -> list[int]:
    """Indexes enough to draw by, with the first and the last."""
    every = max(1, len(ordered) // most)
    return sorted({*range(0, len(ordered), every), len(ordered) - 1}) if ordered else []


def _interval(name: str, symbol: str, colour: str, known: Sequence[tuple[Effect, Difference]]) -> Spec:
    change = [found.change or 0.0 for _, found in known]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": change,
        "y": [effect_words(one) for one, _ in known],
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [max(0.0, (found.high or 0.0) - at) for at, (_, found) in zip(change, known, strict=True)],
            "arrayminus": [max(0.0, at - (found.low or 0.0)) for at, (_, found) in zip(change, known, strict=True)],
            "color": colour,
        },
        "marker": {"symbol": symbol, "size": 9, "color": colour},
        "hovertext": [
            f"{duration_text(found.change)}, {duration_text(found.low)} to {duration_text(found.high)}"
            for _, found in known
        ],
        "hovertemplate": f"<b>%{{y}}</b><br>{name}: %{{hovertext}}<extra></extra>",
        "meta": {"tokens": []},
    }


def _line() -> Spec:
    return {"width": 1, "dash": "dot", "color": _GREY}


def _safe(text: str) -> str:
    """plotly reads a subset of HTML in texts."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
