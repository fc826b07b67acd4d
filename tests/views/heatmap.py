"""The heatmap as static/js/charts.js puts it together in the browser, for tests that have none."""

from __future__ import annotations

from typing import Any

NAMES = {"": "Not wanted here", "Kept": "Kept: ready, and no pin wants it"}


def unpacked(spec: dict[str, Any]) -> dict[str, Any]:
    """The heatmap's trace with ``text``, ``hovertext`` and ``customdata`` for every cell."""
    heat: dict[str, Any] = spec["data"][0]
    meta = heat["meta"]
    done = {(y, x): count for y, x, count in meta["done"]}
    loose = {(y, x) for y, x in meta["loose"]}
    found: dict[str, Any] = {"text": [], "hovertext": [], "customdata": []}
    for y, line in enumerate(heat["z"]):
        cells = [_cell(meta, y, x, index, done, loose) for x, index in enumerate(line)]
        for name, values in zip(found, zip(*cells, strict=True), strict=False):
            found[name].append(list(values))
    return heat | found


def _cell(meta: Any, y: int, x: int, index: int, done: Any, loose: Any) -> tuple[str, str, str]:
    state, sign = meta["states"][index], meta["signs"][index]
    (node, node_page, reason), (version, version_page, total) = meta["rows"][y], meta["columns"][x]
    there = done.get((y, x), total if state in meta["whole"] else 0)
    share = f"<br>{there:,} of {total:,} bytes" if state and total else ""
    if state == "Downloading" and total:
        sign = f"{sign} {100 * there // total} %"
    cold = state and state not in ("Ready", "Kept") and (y, x) not in loose
    words = f"<b>{version}</b> on {node}<br>{NAMES.get(state, state)}{share}"
    return sign, words, version_page + reason if cold else node_page
