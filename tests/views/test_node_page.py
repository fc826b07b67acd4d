"""The node's page: labels by what they say, the disk's parts in words, reasons beside what goes next."""

from __future__ import annotations

import json
from datetime import timedelta

from django.test import Client
from django.utils import timezone

from caches.domain.labels import ready_label
from controlplane.clusters.models import Node
from tests import factories
from tests.factories import MIB
from tests.views.conftest import Stage
from tests.views.reading import Page


def node_page(client: Client, node: Node) -> Page:
    return Page(client.get(f"/nodes/{node.pk}").content)


def test_it_names_ready_labels_by_the_versions_that_they_stand_for(stage: Stage, victor: Client) -> None:
    assert stage.llama.artifact is not None
    factories.version(model="twin", version="v9", artifact=stage.llama.artifact)
    known, stranger = ready_label(stage.llama.artifact.digest), ready_label("sha256:stranger")
    theirs = "inference.sagemaker.aws.amazon.com/weights-cache-ready.1b4e28ba-2fa1-41d2-883f-0016d3cca427"
    labels = {stranger: "true", known: "true", theirs: "true", "zone": "b"}
    Node.objects.filter(pk=stage.nodes[0].pk).update(labels=labels)
    page = node_page(victor, stage.nodes[0]).page
    facts = {one.one("dt").text: one.one("dd") for one in page.one("section", aria_labelledby="facts").all("div")}
    ready = facts["Labelled ready"]
    assert [one.text for one in ready.all("ul")[0].all("li")] == [
        "Ready llama v1, twin v9",
        "No version or image that is registered here",
    ]
    assert ready.all("a")[0].attrs["href"] == "/models/llama/versions/v1"
    raw = ready.one("details", id="raw-labels")
    assert [one.text for one in raw.all("code")] == [f"{known}=true", f"{stranger}=true"]
    assert "open" not in raw.attrs
    assert facts["Labels"].text == f"{theirs}=true zone=b", "another controller's label is no ready-label of ours"


def test_it_says_that_a_node_has_no_label(stage: Stage, victor: Client) -> None:
    Node.objects.update(labels={})
    page = node_page(victor, stage.nodes[0]).page.one("section", aria_labelledby="facts")
    assert "Labels none" in page.text and "Labelled ready" not in page.text


def test_it_writes_the_disks_legend_where_it_can_wrap(stage: Stage, victor: Client) -> None:
    sizes = {"capacity_bytes": 400 * MIB, "used_bytes": 150 * MIB, "other_bytes": 30 * MIB, "reserved_bytes": 0}
    Node.objects.filter(pk=stage.nodes[0].pk).update(**sizes)
    page = node_page(victor, stage.nodes[0]).page
    legend = page.one("ul", id="disk-legend")
    texts = [one.text for one in legend.all("li")]
    assert texts == ["llama v1 100 MiB", "qwen v1 50.0 MiB", "Other files 30.0 MiB", "Free 220 MiB"]
    fills = [one.attrs.get("fill", "") for one in legend.all("rect")]
    assert fills[:2] == ["#0072B2", "#E69F00"] and fills[2:] == ["", ""]
    spec = json.loads(page.one("figure", id="disk-chart").all("script")[0].text)
    assert spec["layout"]["showlegend"] is False
    assert "As last reported" not in page.text
    Node.objects.update(reported_at=timezone.now() - timedelta(hours=3))
    assert "As last reported 3 h ago" in node_page(victor, stage.nodes[0]).page.text


def test_it_says_below_the_word_why_a_copy_goes_or_stays(stage: Stage, victor: Client) -> None:
    rows = node_page(victor, stage.nodes[0]).page.one("tbody", id="forecast-rows").all("tr")
    assert [row.one("th").text for row in rows] == ["qwen v1", "llama v1"]
    assert all(row.one("span", class_="reason").text for row in rows)
    export = victor.get(f"/nodes/{stage.nodes[0].pk}?format=json&table=forecast").json()
    assert all(row["detail"] for row in export["rows"]), "an export keeps it as a column"
