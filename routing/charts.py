"""Chart specs as plain dicts. Colours are CSS variables in ``meta.tokens``; static/js/charts.js paints them."""

from __future__ import annotations

from typing import Any

from routing.selectors.telemetry import QUANTILES, Telemetry

Spec = dict[str, Any]
_TOKENS = {"p50": "--ok-solid", "p95": "--busy-solid", "p99": "--warn-solid"}


def ttft_chart(shown: Telemetry) -> Spec:
    """Time to the first token by window, the hit rate on its own axis, and what was changed as dotted lines."""
    times = [point.at.isoformat() for point in shown.points]
    traces: list[Spec] = [
        {
            **_line(name, _TOKENS[name]),
            "x": times,
            "y": [_milliseconds(getattr(point.ttft, name)) for point in shown.points],
            "hovertemplate": f"{name}: %{{y:.0f}} ms<extra></extra>",
        }
        for name in QUANTILES
    ]
    traces.append(
        {
            **_line("hit rate", "--idle-solid"),
            "x": times,
            "y": [None if point.hit_rate is None else round(100 * point.hit_rate, 2) for point in shown.points],
            "yaxis": "y2",
            "hovertemplate": "hit rate: %{y:.0f} %<extra></extra>",
        }
    )
    marked = [one for one in shown.markers if one.kind != "HotSet"]
    layout: Spec = {
        "height": 260,
        "margin": {"l": 48, "r": 48, "t": 8, "b": 32},
        "showlegend": False,
        "uirevision": "ttft",
        "hovermode": "x unified",
        # No range up to now: the page would be another one at every refresh, although nothing changed.
        "xaxis": {"type": "date", "fixedrange": True, "automargin": True},
        "yaxis": {"rangemode": "tozero", "ticksuffix": " ms", "fixedrange": True, "zeroline": False,
                  "automargin": True},
        "yaxis2": {"overlaying": "y", "side": "right", "range": [0, 100], "ticksuffix": " %", "showgrid": False,
                   "fixedrange": True, "automargin": True},
        "shapes": [_mark(one.at.isoformat()) for one in marked],
    }  # fmt: skip
    return {"data": traces, "layout": layout}


def _line(name: str, token: str) -> Spec:
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": name,
        "marker": {"size": 5},
        "line": {"width": 2},
        "meta": {"tokens": [token]},
    }


def _mark(at: str) -> Spec:
    return {
        "type": "line", "x0": at, "x1": at, "yref": "paper", "y0": 0, "y1": 1,
        "line": {"dash": "dot", "width": 1, "color": "gray"},
    }  # fmt: skip


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(1000 * seconds, 3)
