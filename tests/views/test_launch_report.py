"""Comparison and report as pages and as one file: what is said where there is nothing, little, and enough."""

from __future__ import annotations

import html
import json
import re
from typing import Any

import plotly.graph_objects as go
import pytest
from django.test import Client
from django.utils import timezone

from caches import launch_report_charts
from caches.domain.launches.comparison import Sample, compare
from caches.models import Launch, LaunchCount, LaunchTraffic, Pin, Transfer
from caches.services.launches.assembly import hours_mark_dirty
from caches.services.launches.counts import hours_count
from tests import factories
from tests.selectors.test_launch_moves import Night
from tests.views.conftest import Stage, stray_node
from tests.views.test_launches import text_of


@pytest.fixture
def night(stage: Stage) -> Night:
    """Launches of the stage's pool, and no others."""
    Launch.objects.all().delete()
    LaunchCount.objects.all().delete()
    return Night(stage.pool)


def test_two_selections_are_in_the_address(night: Night, ada: Client) -> None:
    night.launches(30, fetch=1, weights="Hit")
    night.launches(30, fetch=50, weights="Miss")
    query = "a_since=now-24h&a_until=now&a_weights=Hit&b_weights=Miss"
    shown = text_of(ada, f"/launches/compare?{query}")
    assert "slower than 33 s (+49 s)" in shown
    assert "Most of it is Weights fetch: +49 s." in shown
    rows = json.loads(ada.get(f"/launches/compare.json?{query}").content)["rows"]
    assert [row["phase"] for row in rows] == ["UntilReady", "WeightsFetch", "WeightsLoad"]
    assert (rows[0]["first_n"], rows[0]["verdict"], rows[2]["verdict"]) == (30, "Slower", "NoDifference")
    page = ada.get(f"/launches/compare?{query}").content.decode()
    assert re.search(r'<select name="a_weights">.*?<option value="Hit" selected>', page, re.S)
    assert re.search(r'<select name="b_weights">.*?<option value="Miss" selected>', page, re.S)


def test_too_few_to_compare_are_said_to_be_that(stage: Stage, ada: Client) -> None:
    assert "Not enough launches to compare: 0 and 1 became ready" in text_of(ada, "/launches/compare")


@pytest.mark.parametrize("page", ["/launches/compare", "/launches/report"])
def test_what_an_address_says_wrongly_is_named_and_exports_are_refused(stage: Stage, ada: Client, page: str) -> None:
    prefix = "a_" if page.endswith("compare") else ""
    assert f"{prefix}since: Not a period" in text_of(ada, f"{page}?{prefix}since=soon")
    assert ada.get(f"{page}.csv?{prefix}since=soon").status_code == 400


def pinned(stage: Stage, night: Night, place: float) -> Pin:
    Pin.objects.filter(pk=stage.pin.pk).update(created_at=night.at(place))
    return stage.pin


def test_the_report_answers_whether_it_was_worth_it(stage: Stage, night: Night, ada: Client) -> None:
    assert stage.llama.artifact is not None
    named: dict[str, Any] = {"version_name": "llama v1", "digest": stage.llama.artifact.digest}
    night.launches(30, fetch=100, weights="Miss", **named)
    pinned(stage, night, 29.5)
    Transfer.objects.create(
        entry=stage.ready, connection=stage.llama.connection, bytes_moved=100 * 2**20, seconds=150,
        ended_at=timezone.now(),
    )  # fmt: skip
    night.launches(40, fetch=1, weights="Hit", **named)
    night.launches(5, fetch=100, weights="Miss", **named)
    shown = text_of(ada, "/launches/report")
    hits = "40 of 75 launches hit (40 of 45 since it was pinned)"
    assert f"Worth it: {hits}; a hit is ready 1 min 39 s sooner than the launches before it was" in shown
    assert "It holds 100 MiB on 1 node; 100 MiB were moved in 2 min 30 s." in shown
    rows = json.loads(ada.get("/launches/report.json").content)["rows"]
    (row,) = [one for one in rows if one["version"] == "llama v1" and one["hits"]]
    assert (row["worth"], row["basis"], row["hits"], row["break_even_hits"]) == ("Yes", "Before", 40, 2)
    assert (row["missed"], row["saved_seconds"]) == (35, 40 * row["hit_saving_seconds"])


@pytest.mark.parametrize(
    ("trial", "copies", "moved"), [("", 1, 100 * 2**20), ("With", 2, 107 * 2**20), ("Only", 1, 7 * 2**20)]
)
def test_what_trials_hold_and_moved_is_counted_as_their_launches_are(
    stage: Stage, night: Night, ada: Client, trial: str, copies: int, moved: int
) -> None:
    artifact = stage.llama.artifact
    assert artifact is not None
    named: dict[str, Any] = {"version_name": "llama v1", "digest": artifact.digest, "weights": "Miss"}
    night.launches(2, fetch=1, endpoint_name="local/trial-1a2b3c4d", **named)
    night.launches(1, fetch=1, **named)
    entries = [stage.ready]
    for name, lost in (("trial-1a2b3c4d-1", None), ("trial-1a2b3c4d-2", timezone.now())):
        node = stray_node(stage.pool, name=name, lost_at=lost)
        entries.append(factories.entry(on=node, of=artifact))
    for entry, size in zip(entries, (100, 5, 2), strict=True):
        Transfer.objects.create(
            entry=entry, connection=stage.llama.connection, bytes_moved=size * 2**20, seconds=1, ended_at=timezone.now()
        )
    rows = json.loads(ada.get(f"/launches/report.json?trial={trial}").content)["rows"]
    (row,) = [one for one in rows if one["version"] == "llama v1"]
    assert (row["copies"], row["moved_bytes"]) == (copies, moved), "what a node held that is gone is not held"


def test_hits_that_take_longer_to_load_are_no_judgement_of_caching(stage: Stage, night: Night, ada: Client) -> None:
    assert stage.llama.artifact is not None
    named: dict[str, Any] = {"version_name": "llama v1", "digest": stage.llama.artifact.digest}
    night.launches(25, fetch=1, weights="Miss", **named)
    pinned(stage, night, 24.5)
    night.launches(25, fetch=1, load=42, weights="Hit", **named)
    shown = text_of(ada, "/launches/report")
    assert (
        "Not told by these launches: 25 of 50 launches hit (25 of 25 since it was pinned), and a hit is ready" in shown
    )
    assert "the difference is in Weights load and shard (+12 s in hits), which is not what caching does" in shown
    assert "Not worth it" not in shown and "differs elsewhere" in shown


def test_a_model_that_nobody_pinned_has_an_expected_saving(stage: Stage, night: Night, ada: Client) -> None:
    night.launches(25, fetch=100, weights="Miss", version_name="qwen v1", digest="sha256:other")
    shown = text_of(ada, "/launches/report")
    assert "Nobody pinned it. Its launches fetch their weights in 1 min 40 s (median)" in shown
    assert "41 min 40 s for the 25 of this time" in shown


def test_scaling_out_says_what_it_found_and_what_nobody_knows(stage: Stage, night: Night, ada: Client) -> None:
    assert "No launch in this time" in text_of(ada, "/launches/report")
    night.launches(4, fetch=10, weights="Miss", endpoint_name="local/trial-1a2b3c4d")
    night.launches(4, fetch=10, weights="Hit", endpoint_name="default/chat")
    Launch.objects.filter(endpoint_name="default/chat").update(began_at=night.at(8))  # asked for at once
    shown = text_of(ada, "/launches/report")
    assert "Bursts (3 or more within 30 s of the first) 1" in shown
    assert "Hits in bursts 4 of 4" in shown
    assert "Requests to instances that had missed unknown" in shown
    hit, missed = Launch.objects.filter(endpoint_name="default/chat").order_by("pod_uid")[:2]
    Launch.objects.filter(pk=missed.pk).update(weights="Miss")
    for launch, requests in ((hit, 90), (missed, 10)):
        LaunchTraffic.objects.create(launch=launch, requests=requests)
    assert "Requests to instances that had missed 10 % ( 10 )" in text_of(ada, "/launches/report")


def test_the_file_needs_nothing_else(stage: Stage, night: Night, ada: Client) -> None:
    night.launches(40, fetch=1, weights="Hit", version_name="</script><b>", digest="sha256:x")
    night.change(39.5)
    night.launches(40, fetch=200, weights="Miss", version_name="</script><b>", digest="sha256:x")
    answer = ada.get("/launches/report.html?since=now-24h")
    assert answer["Content-Disposition"].startswith('attachment; filename="hearth-launches-')
    text = answer.content.decode()
    assert "plotly.js v" in text[:2_000_000] and len(text) > 1_000_000
    assert re.findall(r'(?:src|href)="[^"]*"', text.partition("<script>")[0]) == []
    assert "&lt;/script&gt;&lt;b&gt;" in text and "</script><b>" not in text
    assert "it is Weights fetch (+3 min 19 s of a launch)" in text
    assert "pin.delete" in text
    assert ada.get("/launches/report.html?since=soon").status_code == 400


@pytest.mark.parametrize(("launches", "named"), [(19, False), (20, True)])
def test_the_file_has_no_p95_of_few(stage: Stage, night: Night, ada: Client, launches: int, named: bool) -> None:
    night.launches(launches, fetch=200, weights="Miss", version_name="m:v1", digest="sha256:x")
    text = ada.get("/launches/report.html?since=now-24h").content.decode().partition("<script>")[0]
    cells = [re.sub(r"<[^>]+>", "", cell) for cell in re.findall(r"<td>.*?</td>", text)]
    assert cells[:3] == [str(launches), "0", str(launches)]
    assert cells[4] == cells[6] == "—", "without a hit nothing is said of hits"
    assert cells[5].startswith("3 min") and cells[8].startswith("3 min") is named, cells
    assert "Classes with few launches are not judged" in text


FIRST, SECOND = "with the cache, misses included", "without: the launches before it was pinned"


@pytest.mark.parametrize(
    ("before", "after", "drawn"),
    [
        (0, 1, {}), (1, 0, {}), (1, 1, {}),
        (0, 2, {FIRST: "lines"}), (1, 2, {FIRST: "lines", SECOND: "markers"}),
        (2, 2, {FIRST: "lines", SECOND: "lines"}),
    ],
)  # fmt: skip
def test_too_little_to_draw_is_said_instead_of_axes_with_nothing_between_them(
    stage: Stage, night: Night, ada: Client, before: int, after: int, drawn: dict[str, str]
) -> None:
    assert stage.llama.artifact is not None
    named: dict[str, Any] = {"version_name": "llama v1", "digest": stage.llama.artifact.digest}
    night.launches(before, fetch=100, weights="Miss", **named)
    pinned(stage, night, before - 0.5)
    night.launches(after, fetch=1, weights="Hit", **named)
    pages = {address: ada.get(address).content.decode() for address in ("/launches/report", "/launches/report.html")}
    for address, page in pages.items():
        specs = [json.loads(one) for one in re.findall(r'<script[^>]*type="application/json">(.*?)</script>', page)]
        traces = [trace for spec in specs for trace in go.Figure(spec).data]
        assert {trace.name.partition(" (n")[0]: trace.mode for trace in traces} == drawn, address
        assert ('class="plot"' in page) == bool(drawn), address
        said = re.search(r"Too few launches to draw: (.*?)\.</p>", html.unescape(page))
        assert (said is None) == bool(drawn), address
        if said is not None:
            sides = [name for name, count in ((FIRST, after), (SECOND, before)) if count]
            assert re.findall(r"one launch (.*?), ready after \d+ ", said[1]) == sides


def counted(night: Night) -> None:
    """The hours of the launches, as the round counts them."""
    moments = list(Launch.objects.values_list("began_at", flat=True))
    hours_mark_dirty(cluster_id=night.pool.cluster_id, moments=moments)
    while hours_count():
        pass


def test_cold_starts_names_what_moved_and_leads_to_both_sides(stage: Stage, night: Night, ada: Client) -> None:
    night.launches(40, fetch=1, weights="Hit")
    for place in (39.5, 39.6, 39.7):
        night.change(place)
    night.launches(40, fetch=200, weights="Miss")
    counted(night)
    shown = text_of(ada, "/launches")
    assert "Cold pod on warm node: the p95 went from 34 s to 3 min 53 s, the median from" in shown
    assert "; it is Weights fetch (+3 min 19 s of" in shown
    assert "Before, 0 of 40 missed the cache; since then 40 of 40." in shown
    assert (
        "3 changes before it, the latest first" in shown
        and "3 \N{MULTIPLICATION SIGN} pin.delete llama v1 by ada" in shown
    )
    page = ada.get("/launches").content.decode()
    (compare,) = re.findall(r'<a href="(/launches/compare[^"]*)">Compare before and after', page)
    both = text_of(ada, html.unescape(compare))
    assert "slower than" in both and "Most of it is Weights fetch" in both
    (report,) = re.findall(r'href="(/launches/report[^"]*)"', page)
    assert "By model version" in text_of(ada, html.unescape(report))


def test_cold_starts_says_nothing_of_moves_where_there_are_none(stage: Stage, night: Night, ada: Client) -> None:
    night.launches(39, fetch=1)
    counted(night)
    assert "What moved" not in text_of(ada, "/launches")


def test_other_pools_are_in_neither(stage: Stage, night: Night) -> None:
    night.launches(40, fetch=1, version_name="secret v1", digest="sha256:x")
    client = Client()
    client.force_login(factories.user(role="Viewer", target="far.gpu"))
    for page in ("/launches/report", "/launches/report.html", "/launches/compare"):
        assert "secret" not in client.get(page).content.decode().partition("plotly.js v")[0]


def test_its_charts_are_what_plotly_accepts() -> None:
    phases = (None, None, 1.0, None, 2.0, None, None)
    first, second = [Sample(10.0 + n / 9, phases) for n in range(25)], [Sample(20.0, phases) for _ in range(25)]
    for spec in (
        launch_report_charts.effects(compare(first, second)),
        launch_report_charts.effects(compare(first, [])),
        launch_report_charts.effects(compare([], [])),
        launch_report_charts.distributions({"with <b>": [0.0, 3.0, 2.0], "without": [5.0] * 3000}),
        launch_report_charts.distributions({}),
    ):
        go.Figure(spec)
        json.dumps(spec)
    (line, many) = launch_report_charts.distributions({"with <b>": [0.0, 3.0, 2.0], "w": [5.0] * 3000})["data"]
    assert line["name"] == "with &lt;b&gt; (n = 3)" and line["y"][-1] == 100
    assert line["x"] == [0.001, 2.0, 3.0], "a log scale has no zero"
    assert len(many["x"]) < 500 and many["y"][-1] == 100
