"""Charts: valid for plotly, unknown never green, every cell leads somewhere."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import Any

import plotly.graph_objects as go
import pytest
from django.test import Client
from django.utils import timezone

from caches import charts
from caches.selectors.matrix import pool_matrix
from caches.views.fleet import HEATMAP_LINKS
from controlplane.clusters.models import Node
from tests import factories
from tests.views.addresses import PAGES
from tests.views.conftest import Stage
from tests.views.heatmap import unpacked


def heatmap(stage: Stage) -> dict[str, Any]:
    matrix = pool_matrix(stage.pool, now=timezone.now())
    return charts.coverage_heatmap(matrix, links=HEATMAP_LINKS)


def disk(**changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "parts": [("llama v1", 100, "/models/llama/versions/v1"), ("<b>&", 50, "")],
        "other_bytes": 30,
        "reserved_bytes": 20,
        "capacity_bytes": 400,
        "watermark": 0.85,
    }
    return charts.disk_bar(**(values | changes))


def test_it_draws_a_heatmap_that_plotly_accepts(stage: Stage) -> None:
    spec = heatmap(stage)
    figure = go.Figure(spec)
    assert len(figure.data[0].z) == 4 and len(figure.data[0].z[0]) == 2
    json.dumps(spec)


def test_it_hatches_what_is_unknown_and_never_counts_it_as_ready(stage: Stage) -> None:
    heat, hatch, *_ = heatmap(stage)["data"]
    rows = dict(zip(["n1", "n2", "n3", "n4"], heat["z"], strict=True))
    tokens = heat["meta"]["tokens"]
    assert tokens[rows["n1"][0]] == "--ok-solid"
    assert tokens[rows["n4"][0]] == "--unknown-tint"
    assert (hatch["x"], hatch["base"]) == ([0], [2.55])
    assert hatch["marker"]["pattern"]["shape"] == "/"
    assert [state for state, token in charts._TOKENS.items() if token == "--ok-solid"] == ["Ready"]


def test_it_hatches_a_silent_node_also_when_its_cluster_calls_it_not_ready(stage: Stage) -> None:
    Node.objects.filter(pk=stage.nodes[3].pk).update(ready=False)
    Node.objects.filter(pk=stage.nodes[0].pk).update(ready=False, reported_at=timezone.now() - timedelta(days=1))
    heat, hatch, *_ = heatmap(stage)["data"]
    rows = dict(zip(["n1", "n2", "n3", "n4"], heat["z"], strict=True))
    tokens = heat["meta"]["tokens"]
    assert {tokens[value] for value in (*rows["n1"], rows["n4"][0])} == {"--unknown-tint"}
    assert len(hatch["x"]) == 3


def test_it_leads_to_the_node_or_to_the_reason(stage: Stage, victor: Client) -> None:
    urls = unpacked(heatmap(stage))["customdata"]
    n1, n2, n3, n4 = stage.nodes
    assert urls[0] == [f"/nodes/{n1.id}", f"/nodes/{n1.id}"]
    for line, node in zip(urls[1:], (n2, n3, n4), strict=True):
        assert line == [f"/models/llama/versions/v1?why={node.name}#why-{node.id}", f"/nodes/{node.id}"]
    page = victor.get(urls[2][0].partition("#")[0]).content.decode()
    assert re.search(rf'<details[^>]*id="why-{n3.id}" open>', page)
    assert not re.search(rf'<details[^>]*id="why-{n2.id}" open>', page)


def test_it_shows_progress_in_the_cell(stage: Stage) -> None:
    assert unpacked(heatmap(stage))["text"][1][0] == "↓ 25 %"


def test_it_has_a_sign_and_a_colour_for_every_state() -> None:
    assert set(charts._SCALE) == set(charts._TOKENS) == set(charts._SIGNS)


def test_it_draws_an_empty_pool(db: None) -> None:
    matrix = pool_matrix(factories.pool(), now=timezone.now())
    spec = charts.coverage_heatmap(matrix, links=HEATMAP_LINKS)
    go.Figure(spec)
    assert len(spec["data"]) == 1


def test_it_draws_a_disk_that_plotly_accepts() -> None:
    spec = disk()
    figure = go.Figure(spec)
    assert sum(trace.x[0] for trace in figure.data) == 400
    assert [trace.name for trace in figure.data][-1] == "Free"
    assert spec["layout"]["shapes"][0]["x0"] == pytest.approx(340)


def test_it_escapes_names_that_plotly_would_read_as_html() -> None:
    assert disk()["data"][1]["name"] == "&lt;b&gt;&amp;"


@pytest.mark.parametrize("changes", [{"parts": []}, {"other_bytes": 900}, {"capacity_bytes": 0}])
def test_it_draws_odd_disks(changes: dict[str, Any]) -> None:
    spec = disk(**changes)
    go.Figure(spec)
    assert all(trace["x"][0] > 0 for trace in spec["data"])


def test_it_puts_the_spec_and_its_table_into_the_page(stage: Stage, victor: Client) -> None:
    html = victor.get("/fleet/lab.gpu").content.decode()
    found = re.search(r'<script type="application/json">(.*?)</script>', html, re.S)
    assert found is not None
    go.Figure(json.loads(found[1]))
    table = html[html.index('id="heatmap-table"') :]
    assert table.count('<th scope="row">') >= 4 and "tone-unknown" in table


def test_it_allows_inline_style_on_chart_pages_only(stage: Stage, victor: Client) -> None:
    def policy(address: str) -> dict[str, str]:
        header = victor.get(address)["Content-Security-Policy"]
        return {name: rest for name, _, rest in (part.strip().partition(" ") for part in header.split(";"))}

    charts = ("/fleet/lab.gpu", "/launches", PAGES["routing"](stage))
    assert all("'unsafe-inline'" in policy(address)["style-src"] for address in charts)
    for address in ("/", "/fleet", "/pins", "/models/llama/versions/v1", "/login"):
        assert policy(address)["style-src"] == "'self'"
    for address in ("/", "/fleet/lab.gpu"):
        assert policy(address)["script-src"] == "'self'"
