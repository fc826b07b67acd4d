"""Chart specs as plain dicts. Colours are CSS variables in ``meta.tokens``; static/js/charts.js paints them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from routing.domain.figures import ENOUGH, QUANTILES
from routing.selectors.telemetry import Marker, Telemetry

Spec = dict[str, Any]
_TOKENS = {"p50": "--ok-solid", "p95": "--busy-solid", "p99": "--warn-solid"}


@dataclass(frozen=True, slots=True)
class _Unit:
    """Of times. ``digits`` behind the point where somebody points at one."""

    name: str
    seconds: float
    digits: int

    def of(self, seconds: float | None) -> float | None:
        return None if seconds is None else round(seconds / self.seconds, 3)

    def hover(self, name: str) -> str:
        return f"{name}: %{{y:.{self.digits}f}} {self.name}<extra></extra>"


def _unit(shown: Telemetry) -> _Unit:
    """As texts have it: milliseconds while all is short of a second."""
    greatest = max((point.ttft.most or 0.0 for point in shown.points), default=0.0)
    return _Unit("s", 1.0, 3) if greatest >= 1 else _Unit("ms", 1e-3, 0)


def ttft_chart(shown: Telemetry) -> Spec:
    """Time to the first token by window, the hit rate on its own axis, and what was changed as dotted lines."""
    unit = _unit(shown)
    times = [point.at.isoformat() for point in shown.points]
    traces: list[Spec] = [
        {
            **_line(name, _TOKENS[name]),
            "x": times,
            "y": [unit.of(getattr(point.ttft, name)) for point in shown.points],
            "hovertemplate": unit.hover(name),
        }
        for name in QUANTILES
    ]
    traces.append(_longest(shown, times, unit))
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
    traces.append(_changes(marked))
    layout: Spec = {
        "height": 300,
        "margin": {"l": 64, "r": 64, "t": 8, "b": 32},
        "showlegend": True,
        "legend": {"orientation": "h", "y": -0.2},
        "uirevision": "ttft",
        "hovermode": "x unified",
        # No range up to now: the page would be another one at every refresh, although nothing changed.
        "xaxis": {"type": "date", "fixedrange": True, "automargin": True},
        "yaxis": {"title": {"text": f"Time to first token ({unit.name})"}, "rangemode": "tozero",
                  "ticksuffix": f" {unit.name}", "fixedrange": True, "zeroline": False, "automargin": True},
        "yaxis2": {"title": {"text": "Hit rate (%)"}, "overlaying": "y", "side": "right", "range": [0, 100],
                   "ticksuffix": " %", "tickvals": [0, 25, 50, 75, 100], "showgrid": False,
                   "fixedrange": True, "automargin": True},
        "shapes": [_mark(one.at.isoformat()) for one in marked],
    }  # fmt: skip
    return {"data": traces, "layout": layout}


def _longest(shown: Telemetry, times: list[str], unit: _Unit) -> Spec:
    """Dots where there were too few answers for a high percentile."""
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "longest",
        "marker": {"size": 6, "symbol": "circle-open"},
        "meta": {"tokens": [_TOKENS["p99"]]},
        "x": times,
        "y": [unit.of(point.ttft.most) if point.ttft.count < ENOUGH["p99"] else None for point in shown.points],
        "hovertemplate": unit.hover("longest"),
    }


def _changes(marked: Sequence[Marker]) -> Spec:
    """What the dotted lines say when somebody points at them."""
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "change",
        "marker": {"size": 8, "symbol": "diamond"},
        "meta": {"tokens": ["--idle-solid"]},
        "x": [one.at.isoformat() for one in marked],
        "y": [0 for _ in marked],
        "text": [f"{one.kind}: {one.detail}" for one in marked],
        "hovertemplate": "%{text}<extra></extra>",
    }


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
