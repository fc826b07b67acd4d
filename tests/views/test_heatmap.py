"""The heatmap's figure over every state, size and selector; and the chain of reasons that its cells lead to."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import plotly.graph_objects as go
import pytest
from django.test import Client
from django.utils import timezone

from caches import charts
from caches.models import CacheEntry, Pin
from caches.selectors.matrix import pool_matrix
from caches.views.fleet import HEATMAP_LINKS, state_cells
from controlplane.clusters.documents import EntryState
from controlplane.clusters.models import Node
from controlplane.web.tones import look_of
from tests import factories
from tests.factories import MIB
from tests.views.conftest import Stage
from tests.views.heatmap import unpacked
from tests.views.reading import Element, Page

SHOWN = [state for state in EntryState if state not in (EntryState.ABSENT, EntryState.LOST)]


def figure(stage: Stage) -> dict[str, Any]:
    matrix = pool_matrix(stage.pool, now=timezone.now())
    return charts.coverage_heatmap(matrix, links=HEATMAP_LINKS)


def first_cell(stage: Stage) -> tuple[str, str, str]:
    """Colour, sign and words of llama on n2."""
    heat = unpacked(figure(stage))
    return heat["meta"]["tokens"][heat["z"][1][0]], heat["text"][1][0], heat["hovertext"][1][0]


@pytest.mark.parametrize("state", SHOWN)
def test_it_gives_each_state_a_colour_a_sign_and_a_word(state: EntryState, stage: Stage) -> None:
    CacheEntry.objects.filter(pk=stage.downloading.pk).update(state=state)
    colour, sign, words = first_cell(stage)
    assert colour.startswith("--") and sign and f"<br>{state}<br>" in words
    tone = look_of(state).tone
    assert (colour == "--ok-solid") == (tone == "ok"), "only what is ready is green"
    go.Figure(figure(stage))


@pytest.mark.parametrize("state", [EntryState.ABSENT, EntryState.LOST])
def test_it_shows_what_is_not_there_as_absent(state: EntryState, stage: Stage) -> None:
    CacheEntry.objects.filter(pk=stage.downloading.pk).update(state=state)
    assert first_cell(stage)[2] == "<b>llama v1</b> on n2<br>Absent<br>0 of 104,857,600 bytes"


@pytest.mark.parametrize(("done", "sign"), [(0, "↓ 0 %"), (50 * MIB, "↓ 50 %"), (100 * MIB - 1, "↓ 99 %")])
def test_it_never_rounds_a_download_up_to_done(done: int, sign: str, stage: Stage) -> None:
    CacheEntry.objects.filter(pk=stage.downloading.pk).update(bytes_done=done)
    assert first_cell(stage)[1] == sign


def test_it_draws_one_node_one_version_and_many_of_both(stage: Stage) -> None:
    for node in stage.nodes[1:]:
        node.delete()
    stage.loose.delete()
    spec = figure(stage)
    go.Figure(spec)
    assert (len(spec["data"][0]["z"]), len(spec["data"][0]["z"][0]), spec["layout"]["height"]) == (1, 1, 106)
    for number in range(60):
        factories.node(of=stage.pool, name=f"m{number:02}")
    for number in range(20):
        factories.pin(of=factories.version(model=f"big-{number}"), pools=(stage.pool,))
    spec = figure(stage)
    go.Figure(spec)
    heat = spec["data"][0]
    assert (len(heat["z"]), {len(row) for row in heat["z"]}) == (61, {21})
    assert spec["layout"]["yaxis"]["range"] == [60.5, -0.5], "the first node stands on top"
    assert len(spec["layout"]["yaxis"]["ticktext"]) == 61
    assert spec["layout"]["height"] == 76 + 30 * 61


def test_it_draws_a_copy_that_no_pin_wants_apart_from_those_that_count(stage: Stage, victor: Client) -> None:
    heat, *_, frame = figure(stage)["data"]
    cells = [[charts._SCALE[z] for z in row] for row in heat["z"]]
    assert cells[0] == ["Ready", "Kept"], "llama is pinned, qwen is not"
    assert (frame["x"], frame["base"], frame["meta"]) == ([1], [-0.45], {"line": "--ok-solid"})
    drawn = unpacked(figure(stage))
    assert (drawn["text"][0][1], drawn["customdata"][0][1]) == ("✓ kept", f"/nodes/{stage.nodes[0].pk}")
    assert "no pin wants it<br>52,428,800 of 52,428,800 bytes" in drawn["hovertext"][0][1]
    page = Page(victor.get("/fleet/lab.gpu").content).page
    assert page.one("details", id="heatmap-table").one("table").rows()[0][1:] == ["Ready", "Kept"]
    assert "✓ kept" in page.one("ul", class_="legend").text
    factories.pin(of=stage.qwen, pools=(stage.pool,))
    assert [charts._SCALE[z] for z in figure(stage)["data"][0]["z"][0]] == ["Ready", "Ready"]


def test_it_hatches_exactly_the_cells_that_nobody_knows(stage: Stage) -> None:
    Node.objects.update(reported_at=timezone.now() - timedelta(days=1))
    heat, hatch = figure(stage)["data"]
    unknown = {(x, y) for y, row in enumerate(heat["z"]) for x, z in enumerate(row) if charts._SCALE[z] == "Unknown"}
    drawn = {(x, round(base + 0.45)) for x, base in zip(hatch["x"], hatch["base"], strict=True)}
    assert drawn == unknown and len(unknown) == 5
    assert hatch["text"] == "unknown", "the hatch says it in a word, too"
    Node.objects.update(reported_at=timezone.now(), observed_at=timezone.now())
    assert not any("text" in over for over in figure(stage)["data"][1:]), "nothing is hatched where all is known"


def test_it_leaves_out_what_a_pin_does_not_choose(stage: Stage) -> None:
    Pin.objects.update(node_selector={"zone": "b"})
    Node.objects.filter(name="n4").update(labels={"hearth.dev/pool": "gpu", "zone": "b"})
    for entry in (stage.downloading, stage.failed):
        entry.delete()
    heat = unpacked(figure(stage))
    assert [charts._SCALE[row[0]] for row in heat["z"]] == ["Kept", "", "", "Unknown"]
    assert heat["hovertext"][1][0] == "<b>llama v1</b> on n2<br>Not wanted here"


def test_it_stays_small_for_many_nodes_and_versions(stage: Stage, victor: Client) -> None:
    """Ready, absent and unknown cells alike: a refresh every few seconds must not cost megabytes."""
    versions = [factories.version(model=f"model-{number:02}") for number in range(30)]
    for version in versions:
        factories.pin(of=version, pools=(stage.pool,))
    stale = timezone.now() - timedelta(days=1)
    nodes = [factories.node(of=stage.pool, name=f"gpu-node-{number:03}") for number in range(40)]
    Node.objects.filter(pk__in=[node.pk for node in nodes[20:]]).update(reported_at=stale)
    CacheEntry.objects.bulk_create(
        CacheEntry(node=node, artifact=version.artifact, state="Ready", desired="Ensure", bytes_done=100 * MIB)
        for node in nodes[:10]
        for version in versions
    )
    before = len(victor.get("/fleet/lab.gpu?state=Lost").content)
    cells = 44 * 32
    Pin.objects.exclude(pk=stage.pin.pk).update(removed_at=timezone.now())
    CacheEntry.objects.filter(node__in=nodes).delete()
    without = len(victor.get("/fleet/lab.gpu?state=Lost").content)

    assert (before - without) / cells < 60, "bytes for each cell, in the figure and its table together"


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"ready": False}, "Not ready"),
        ({"terminating_at": timezone.now()}, "Terminating"),
        ({"schedulable": False}, "Cordoned"),
        ({}, ""),
    ],
)
def test_it_marks_nodes_of_which_more_is_to_be_said(
    fields: dict[str, Any], word: str, stage: Stage, victor: Client
) -> None:
    Node.objects.filter(name="n2").update(**fields)
    label = f"n2 {word}".strip()
    page = Page(victor.get("/fleet/lab.gpu").content)
    row = page.page.one("details", id="heatmap-table").one("table").rows()[1]
    assert (row[0], figure(stage)["layout"]["yaxis"]["ticktext"][1]) == (label, label)
    assert ("Its end was announced" in Page(victor.get(f"/nodes/{stage.nodes[1].pk}").content).text) is (
        word == "Terminating"
    )


def test_it_names_bytes_only_where_the_state_does_not_tell_them(stage: Stage) -> None:
    meta = figure(stage)["data"][0]["meta"]

    # n2 downloads llama, n3 failed on the way; what is Ready, absent or unknown needs no number.
    assert {(meta["rows"][y][0], meta["columns"][x][0]) for y, x, _ in meta["done"]} <= {
        ("n2", "llama v1"),
        ("n3", "llama v1"),
        ("n4", "llama v1"),
    }
    CacheEntry.objects.filter(pk=stage.ready.pk).update(bytes_done=7)
    assert "7 of 104,857,600 bytes" in unpacked(figure(stage))["hovertext"][0][0]


def test_it_says_the_same_in_the_table_below(stage: Stage, victor: Client) -> None:
    page = Page(victor.get("/fleet/lab.gpu").content)
    spec = json.loads(page.page.one("figure").one("script").text)
    heat = spec["data"][0]
    words = {"": "Not wanted"}
    rows = page.page.one("details", id="heatmap-table").one("table").rows()
    assert [row[0] for row in rows] == spec["layout"]["yaxis"]["ticktext"]
    for row, line in zip(rows, heat["z"], strict=True):
        assert row[1:] == [words.get(charts._SCALE[z], charts._SCALE[z]) for z in line]


def test_it_makes_cells_of_states_that_it_never_heard_of_look_idle() -> None:
    html = state_cells(["Ready", "", "Odd<b>", "Ready"])
    assert html.count('class="ok"') == 2 and "Not wanted" in html
    assert "<b>" not in html and 'class="idle">Odd' in html


def chain(client: Client, node: Node) -> Element:
    page = Page(client.get("/models/llama/versions/v1").content)
    return page.page.one("details", id=f"why-{node.id}")


def verdicts(found: Element) -> list[str]:
    return [one.attrs["class"].removeprefix("tone-") for one in found.one("ol").all("li")]


def test_it_explains_each_cold_node_by_its_own_chain(stage: Stage, victor: Client) -> None:
    _, downloading, failed, silent = stage.nodes
    assert "bad" in verdicts(chain(victor, failed)) and "AccessDenied after 2 attempts" in chain(victor, failed).text
    assert "bad" in verdicts(chain(victor, downloading)) or "unknown" in verdicts(chain(victor, downloading))
    assert verdicts(chain(victor, silent)) != [] and "tone-unknown" in str(chain(victor, silent).one("summary"))
    for node in (downloading, failed, silent):
        found = chain(victor, node)
        assert found.all("a", href=f"/nodes/{node.id}")
        for check in found.one("ol").all("li"):
            assert check.text.rstrip().count(": ") >= 1, "passed, failed or not known is said in words"


def test_it_explains_nothing_where_everything_is_warm(stage: Stage, victor: Client) -> None:
    CacheEntry.objects.update(state="Ready", desired="Ensure", bytes_done=100 * MIB, verified_at=timezone.now())
    factories.entry(on=stage.nodes[3], of=stage.llama.artifact)
    Node.objects.update(reported_at=timezone.now(), observed_at=timezone.now())
    page = Page(victor.get("/models/llama/versions/v1").content)
    assert "Why is it not warm there?" not in page.text and "No pin wants this version" not in page.text


def test_it_opens_the_only_chain_and_the_one_that_was_asked_for(stage: Stage, victor: Client) -> None:
    page = Page(victor.get("/models/llama/versions/v1?why=n3").content)
    opened = [one.attrs["id"] for one in page.page.all("details") if "open" in one.attrs]
    assert opened == [f"why-{stage.nodes[2].id}"]
    for node in (stage.nodes[1], stage.nodes[3]):
        node.delete()
    page = Page(victor.get("/models/llama/versions/v1").content)
    assert [one.attrs["id"] for one in page.page.all("details") if "open" in one.attrs] == opened
