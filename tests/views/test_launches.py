"""Cold starts: what is there, what is not known, what an address asks for, and who may see it."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from uuid import uuid4
from zoneinfo import ZoneInfo

import plotly.graph_objects as go
import pytest
from django.test import Client
from django.utils import timezone

from caches import launch_charts
from caches.domain.launches.period import period_of
from caches.domain.launches.words import EventClass, Mark, Phase
from caches.models import Launch
from caches.selectors.launches.stats import EDGES, Example, HeatCell
from controlplane.audit.models import AuditEvent
from tests import factories
from tests.domain.launches import mark, span, whole
from tests.services.launches import put_launches, sighting, take_in
from tests.views.conftest import Stage


def text_of(client: Client, address: str) -> str:
    answer = client.get(address)
    assert answer.status_code == 200, answer.content[:500]
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", answer.content.decode()))


def test_it_says_how_to_begin_where_no_launch_was_seen(ada: Client) -> None:
    shown = text_of(ada, "/launches")
    assert "No launch was seen yet" in shown
    assert "/api/v1/launches/observations" in shown


def test_what_the_menu_calls_it_leads_there(client: Client) -> None:
    answer = client.get("/cold-starts?since=now-7d&trial=Only")
    assert (answer.status_code, answer["Location"]) == (302, "/launches?since=now-7d&trial=Only")


def test_it_says_that_none_is_in_this_time(stage: Stage, ada: Client) -> None:
    shown = text_of(ada, "/launches?since=now-40d&until=now-30d")
    assert "No launch in this time" in shown and "No launch was seen yet" not in shown


def test_few_launches_are_dots_with_their_number_and_no_percentile(stage: Stage, ada: Client) -> None:
    shown = text_of(ada, "/launches")
    assert "1 launch, 1 of 1 missed the cache." in shown
    assert "Too few for percentiles: 31 s" in shown
    assert "Not enough launches" in shown


def test_it_shows_the_tail_that_an_average_hides(stage: Stage, ada: Client) -> None:
    now = timezone.now()
    put_launches(stage.pool.cluster, [20.0] * 95, at=now, pool_name="gpu", weights="Hit", event_class="PodOnNewNode")
    put_launches(stage.pool.cluster, [900.0] * 5, at=now, pool_name="gpu", weights="Miss", event_class="PodOnNewNode")
    rows = json.loads(ada.get("/launches.json?table=classes&event_class=PodOnNewNode").content)["rows"]
    whole = next(row for row in rows if row["weights"] == "")
    assert (whole["launches"], whole["measured"], whole["missed"]) == (100, 100, 0.05)
    assert whole["p99_seconds"] == pytest.approx(900, rel=0.01)
    assert whole["p95_seconds"] == pytest.approx(20, rel=0.01)
    shown = text_of(ada, "/launches?event_class=PodOnNewNode")
    assert "5 of 100 (5 %)" in shown and "5 of 100 missed the cache" in shown


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("since=yesterday", "since and until are no period"),
        ("since=now&until=now-1h", "it ends before it begins"),
        ("since=now-900d", "it is longer than 400 days"),
        ("since=2199-01-01T00:00:00Z&until=2199-02-01T00:00:00Z", "it begins after now"),
        ("event_class=Nap", "event_class must be one of"),
        ("weights=hit", "weights must be one of"),
        ("tz=Mars/Olympus", "tz is no time zone"),
        ("tz=..%2F..%2Fetc%2Fpasswd", "tz is no time zone"),
        ("tz=Europe", "tz is no time zone"),
    ],
)
def test_it_says_what_of_an_address_it_does_not_understand(stage: Stage, ada: Client, query: str, words: str) -> None:
    assert words in text_of(ada, f"/launches?{query}")
    refused = ada.get(f"/launches.csv?{query}")
    assert refused.status_code == 400


def test_the_address_holds_everything_and_the_export_follows_it(stage: Stage, ada: Client) -> None:
    factories.launch(on=stage.nodes[1], weights="Hit", event_class="PodOnNewNode", version_name="qwen v1")
    for query, pods in (("weights=Hit", 1), ("pool=lab.gpu", 2), ("pool=far.gpu", 0), ("version=llama v1", 1)):
        rows = json.loads(ada.get(f"/launches.json?table=launches&{query}").content)["rows"]
        assert len(rows) == pods, query


def test_it_compares_with_the_period_before(stage: Stage, ada: Client) -> None:
    before = timezone.now() - timedelta(hours=30)
    put_launches(stage.pool.cluster, [50.0] * 20, at=before, pool_name="gpu", weights="Miss")
    put_launches(stage.pool.cluster, [90.0] * 20, at=timezone.now(), pool_name="gpu", weights="Miss")
    row = json.loads(ada.get("/launches.json?table=classes&compare=previous").content)["rows"][0]
    assert row["earlier_p95_seconds"] == pytest.approx(50, rel=0.01)
    assert row["p95_seconds"] == pytest.approx(90, rel=0.01)


def test_a_launch_shows_its_phases_and_its_evidence(stage: Stage, ada: Client) -> None:
    shown = text_of(ada, f"/launches/{stage.launch.pk}")
    assert "Cold pod on warm node" in shown and "Ready after 31 s" in shown
    assert re.search(r"Image pull\s+[Uu]nknown", shown)
    assert re.search(r"Weights load and shard\s+12 s\s+Cluster", shown)
    assert "node: n1" in shown


def test_a_launch_that_never_became_ready_says_how_far_it_got(stage: Stage, ada: Client) -> None:
    ended = factories.launch(
        on=stage.nodes[0], state="Ended", end_reason="OOMKilled", reached="WeightsLoad", ready_seconds=None,
        total_seconds=None, unknown_seconds=None, phase_seconds=[None] * 7, phases=[],
    )  # fmt: skip
    assert "It never became ready (OOMKilled)" in text_of(ada, f"/launches/{ended.pk}")
    assert "1 never became ready" in text_of(ada, "/launches")


def test_a_launch_that_nobody_saw_answer_is_no_more_than_ready(stage: Stage, ada: Client) -> None:
    assert "has served" not in text_of(ada, "/launches")
    Launch.objects.filter(pk=stage.launch.pk).update(served_at=timezone.now())
    assert "has served" in text_of(ada, "/launches")
    rows = json.loads(ada.get("/launches.json?table=launches").content)["rows"]
    assert [(row["reached"], row["id"], row["miss_reason"]) for row in rows] == [
        ("HealthChecks", str(stage.launch.pk), None)
    ]


def test_one_that_has_not_got_there_says_how_far_it_got(stage: Stage, ada: Client) -> None:
    factories.launch(on=stage.nodes[0], state="Starting", reached="WeightsFetch", ready_seconds=None)
    factories.launch(
        on=stage.nodes[0], state="Ended", reached="WeightsLoad", end_reason="OOMKilled", ready_seconds=None,
        weights="Miss", miss_reason="Gone",
    )  # fmt: skip
    shown = text_of(ada, "/launches")
    assert "Weights fetch" in shown and "Weights load and shard: OOMKilled" in shown and "gone again" in shown


def test_other_pools_launches_are_not_there(stage: Stage) -> None:
    client = Client()
    client.force_login(factories.user(role="Viewer", target="far.gpu"))
    assert client.get(f"/launches/{stage.launch.pk}").status_code == 404
    assert "No launch was seen yet of what you may see" in text_of(client, "/launches")
    assert client.get(f"/launches/{uuid4()}").status_code == 404


def test_its_charts_are_what_plotly_accepts(stage: Stage) -> None:
    now = timezone.now()
    period = period_of("now-24h", "now", now)
    cells = [HeatCell(period.steps[3], 20, 7), HeatCell(period.steps[-1], 7200, 1)]
    event = AuditEvent(at=now - timedelta(hours=2), actor="<b>ada", action="pin.create", object_name="llama & co")
    heat = launch_charts.heatmap(cells, period, ZoneInfo("Asia/Tokyo"), [event])
    bars = launch_charts.phase_bars([Example(EventClass.COLD_POD, 0.5, 31.0, stage.launch)], lambda one: f"/{one.pk}")
    fall = launch_charts.waterfall(stage.launch)
    for spec in (heat, bars, fall, launch_charts.heatmap([], period, ZoneInfo("UTC"), [])):
        go.Figure(spec)
        json.dumps(spec)
    assert heat["data"][0]["z"][EDGES.index(20)][3] == 7
    assert heat["data"][0]["z"][len(EDGES) - 1][-1] == 1
    assert len(heat["layout"]["meta"]["edges"]) == len(period.steps) + 1
    (marks,) = [trace for trace in heat["data"] if trace["type"] == "scatter"]
    assert marks["hovertext"] == ["pin.create llama &amp; co by &lt;b&gt;ada"]
    assert 0 < marks["x"][0] < len(period.steps)
    axis = heat["layout"]["xaxis"]
    at_tick = AuditEvent(at=period.steps[4], actor="ada", action="pin.create", object_name="llama")
    (marks,) = launch_charts.heatmap([], period, ZoneInfo("UTC"), [at_tick])["data"][1:]
    assert marks["x"][0] in axis["tickvals"], "a change at the full hour lies at its tick, where the cell begins"


def test_what_nobody_measured_is_hatched_and_has_no_phase_s_colour(stage: Stage) -> None:
    bars = launch_charts.phase_bars([Example(EventClass.COLD_POD, 0.5, 31.0, stage.launch)], lambda one: "/")
    unknown = bars["data"][-1]
    assert (unknown["name"], unknown["x"]) == ("Unknown", [2.0])
    assert unknown["marker"]["pattern"]["shape"] == "/"
    colours = [trace["marker"]["color"] for trace in bars["data"]]
    assert len(set(colours)) == len(colours)
    assert "Image pull" not in [trace["name"] for trace in bars["data"]]  # unknown is not a bar of zero


def test_a_waterfall_lies_on_the_launch_s_own_time(stage: Stage) -> None:
    late = stage.launch.began_at + timedelta(seconds=8)
    pieces = [[late.isoformat(), (late + timedelta(seconds=5)).isoformat()]]
    row = Launch(
        began_at=stage.launch.began_at, started_at=stage.launch.began_at, total_seconds=20.0,
        phases=[{"phase": "WeightsLoad", "state": "Measured", "seconds": 5.0, "observer": "Pushed", "pieces": pieces}],
    )  # fmt: skip
    (bar,) = launch_charts.waterfall(row)["data"]
    assert (bar["base"], bar["x"]) == ([8.0], [5.0])
    row.unknown_seconds = 15.0
    bar, gaps = launch_charts.waterfall(row)["data"]
    assert (gaps["name"], gaps["base"], gaps["x"]) == ("Unknown", [0.0, 13.0], [8.0, 7.0])
    assert gaps["marker"]["pattern"]["shape"] == "/" and bar["marker"]["color"] != gaps["marker"]["color"]
    go.Figure(launch_charts.waterfall(row))
    row.phases[0]["pieces"] = [[row.began_at.isoformat(), late.isoformat()]]
    row.total_seconds, row.unknown_seconds = 8.001, 0.001
    assert len(launch_charts.waterfall(row)["data"]) == 1, "what nobody could see is not drawn"


def test_a_launch_whose_request_nobody_saw_says_so_instead_of_seconds(stage: Stage, ada: Client) -> None:
    seen = factories.launch(on=stage.nodes[0], started_at=None, ready_seconds=None, total_seconds=None)
    shown = text_of(ada, f"/launches/{seen.pk}")
    assert "first seen" in shown and "How long it took is unknown. Its request was not seen" in shown
    assert "Ready after" not in shown and "Its request" not in text_of(ada, f"/launches/{stage.launch.pk}")


def test_a_crash_loop_says_what_its_seconds_went_into(stage: Stage, ada: Client) -> None:
    (made,) = take_in(sighting(stage.pool.cluster, "loops", mark(Mark.RESTARTED, 0), mark(Mark.ENDED, 40), restart=3))
    text = text_of(ada, f"/launches/{made.pk}")
    assert "of these 40 s waited to be started again after the run before it ended" in text
    assert "waited until the weights" not in text


def test_what_was_waited_for_weights_is_said_where_no_phase_is(stage: Stage, ada: Client) -> None:
    assert "waited until" not in text_of(ada, f"/launches/{stage.launch.pk}")
    (made,) = take_in(
        sighting(
            stage.pool.cluster, "waits", mark(Mark.CREATED, 0), mark(Mark.SCHEDULED, 1), mark(Mark.ENSURE_STARTED, 1),
            mark(Mark.ENSURE_ENDED, 2, found="waiting"), mark(Mark.ENSURE_STARTED, 10),
            mark(Mark.ENSURE_ENDED, 14, found="miss"), mark(Mark.READY, 20),
        )
    )  # fmt: skip
    assert "of these 9 s waited until the weights could be fetched" in text_of(ada, f"/launches/{made.pk}")


def test_what_the_weights_step_took_beside_its_fetch_is_said_where_no_phase_is(stage: Stage, ada: Client) -> None:
    """A hit is found in 20 ms; that its step took 2 s to start is no fetch."""
    (made,) = take_in(
        sighting(
            stage.pool.cluster, "quick", mark(Mark.CREATED, 0), mark(Mark.SCHEDULED, 1), mark(Mark.ENSURE_STARTED, 1),
            mark(Mark.ENSURE_ENDED, 3, seconds=0.02, found="hit"), mark(Mark.STARTED, 3), mark(Mark.READY, 20),
        )
    )  # fmt: skip
    text = text_of(ada, f"/launches/{made.pk}")
    assert re.search(r"Weights fetch\s+20 ms\s+Ensure", text)
    assert "of these 2 s the weights step took beside its fetch" in text
    assert made.phase_seconds[2] == 0.02 and made.reached == "HealthChecks" and made.weights == "Hit"


def test_a_phase_that_is_said_to_lie_outside_the_launch_is_shown_and_not_counted(stage: Stage, ada: Client) -> None:
    late, within = span(Phase.WEIGHTS_LOAD, 0.5, 300), span(Phase.IMAGE_PULL, 2.0, 4)
    (made,) = take_in(sighting(stage.pool.cluster, "late", *whole(), late, within))
    text = text_of(ada, f"/launches/{made.pk}")
    assert re.search(r"Weights load and shard\s+25 s\s+Runtime log", text), text
    assert text.count("outside the launch") == 1 and "Weights load and shard outside the launch" in text
