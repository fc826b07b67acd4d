"""Pages of routing say what is so: what nobody knows, what is of too few, what is computed, and what was changed."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from controlplane.clusters.models import Cluster
from controlplane.serving.models import Variant
from routing.charts import ttft_chart
from routing.domain.figures import Figures
from routing.forms import PolicyForm
from routing.models import Configuration, RouterProcess, RoutingPolicy, RoutingWindow
from routing.selectors.policies import policy_in_force
from routing.selectors.telemetry import telemetry
from routing.services.explaining import NO_OBJECT
from routing.services.policies import policy_set
from routing.services.publishing import configuration_publish
from routing.services.replays import Asked
from routing.target_forms import VariantsForm
from routing.views import trial_columns
from tests import factories
from tests.services.routing_world import RECORDED, kept, ran, recording_variant, told, use_redis
from tests.services.test_routing_policies import ADA, PREFIX
from tests.views.reading import Page

pytestmark = pytest.mark.django_db


@pytest.fixture
def variant(settings: Any) -> Variant:
    settings.REDIS_URL = "redis://127.0.0.1:9/0"
    made = factories.variant(of=factories.endpoint(of=factories.cluster(name="lab"), name="chat"))
    factories.instance(of=made.endpoint, uid="pod-1", name="chat-a")
    return made


@pytest.fixture
def place(variant: Variant) -> str:
    return f"/endpoints/{variant.endpoint_id}/routing"


def text(client: Client, address: str, status: int = 200) -> str:
    answer = client.get(address)
    assert answer.status_code == status
    return " ".join(Page(answer.content).text.split())


def window(variant: Variant, answers: int, minutes: int = 2) -> None:
    figures = Figures(requests=answers)
    figures.instances["pod-1"] = answers
    for _ in range(answers):
        figures.first_byte("Primary", 0.2)
    at = timezone.now() - timedelta(minutes=minutes)
    RoutingWindow.objects.create(variant=variant, seconds=10, at=at, figures=figures.to_json())


# what nobody knows


def test_what_runs_in_a_silent_cluster_is_unknown_since_when(victor: Client, place: str) -> None:
    def row() -> dict[str, Any]:
        [found] = victor.get(f"{place}.json?table=instances").json()["rows"]
        return dict(found)

    assert (row()["state"], row()["unknown_since"]) == ("Ready", None)
    heard = timezone.now() - timedelta(minutes=10)
    Cluster.objects.update(observed_at=heard)
    shown = row()
    since = heard + timedelta(minutes=2)
    assert shown["state"] == "Unknown" and shown["unknown_since"].startswith(f"{since:%Y-%m-%dT%H:%M}")
    page = text(victor, place)
    assert "nothing is heard of lab; last known: ready" in page
    shares = json.loads(victor.get(f"{place}.json?table=shares").content)["rows"]
    assert [one["there"] for one in shares] == [None]
    assert "unknown of 1" in text(victor, f"{place}/variants")


# what is of too few


@pytest.mark.parametrize(
    ("answers", "p95", "p99"), [(1, False, False), (7, False, False), (20, True, False), (100, True, True)]
)
def test_exports_hold_no_percentile_that_the_page_has_not(
    victor: Client, place: str, variant: Variant, answers: int, p95: bool, p99: bool
) -> None:
    window(variant, answers)
    [row] = victor.get(f"{place}.json?table=windows").json()["rows"]
    assert (row["ttft_count"], row["requests"]) == (answers, answers) and row["ttft_p50"] == pytest.approx(
        0.2, rel=0.01
    )
    assert ((row["ttft_p95"] is not None), (row["ttft_p99"] is not None)) == (p95, p99)
    assert row["ttft_most"] == pytest.approx(0.2, rel=0.01)
    exported = victor.get(f"{place}.csv?table=windows").content.decode()
    [line] = csv.DictReader(line for line in io.StringIO(exported) if not line.startswith("#"))
    assert (line["ttft_p95"] != "", line["ttft_p99"] != "", line["ttft_count"]) == (p95, p99, str(answers))
    assert text(victor, place).count("most 200 ms") >= 2 - p95 - p99


@pytest.fixture
def recorded(settings: Any, monkeypatch: pytest.MonkeyPatch, valkey_url: str) -> Iterator[tuple[str, Variant]]:
    yield use_redis(settings, monkeypatch, valkey_url), recording_variant()


def test_a_replay_of_few_requests_says_so_where_the_page_would(recorded: tuple[str, Variant]) -> None:
    url, variant = recorded
    told(url, variant, [kept(60 - number, "x" * 3000, instance=f"pod-{number % 2}") for number in range(12)])
    result = ran(variant, Asked(15, instances=3))
    assert result["happened"]["ttft"]["p50"] is not None
    for column in (result["happened"], result["tried"]):
        assert (column["ttft"]["p95"], column["ttft"]["p99"], column["outside"]) == (None, None, None)
        assert {one["fair"] for one in column["shares"]} == {None}
    rows = {one.name: one for one in trial_columns.compared(result)}
    for name in ("TTFT p95", "TTFT p99", "Outside the fair band"):
        assert set(rows[name].words) == {"too few requests to tell"} and rows[name].change == "", name
    heads = [column.label for column in trial_columns.compared_columns()]
    assert heads[1:3] == ["As it happened, computed", "As it would have been, computed"]
    [fair] = [column for column in trial_columns.compared_share_columns() if column.name == "fair"]
    assert {fair.cell(one) for one in trial_columns.compared_shares(result)} == {"too few requests to tell"}


# what was changed


def fields(variant: Variant, **changes: Any) -> dict[str, Any]:
    values = PolicyForm.initial_of(policy_in_force(variant)[0]) | changes
    return {name: "on" if value is True else value for name, value in values.items() if value is not False}


def test_a_change_of_an_extension_alone_is_named_wherever_it_is_shown(
    olga: Client, ada: Client, place: str, variant: Variant
) -> None:
    configuration_publish()
    policy_set(actor=ADA, variant_id=variant.pk, document={"RoutingStrategy": "RANDOM"})
    configuration_publish()
    preview = olga.post(f"{place}/change", fields(variant, step="preview", record_keys=True, first_byte_seconds="90"))
    page = " ".join(Page(preview.content).text.split())
    assert "record_keys: off → on" in page and "first_byte_seconds: 600 → 90" in page
    assert "The same is in force already" not in page
    policy_set(actor=ADA, variant_id=variant.pk, document=RECORDED)
    configuration_publish()
    newest = Configuration.objects.first()
    assert newest is not None
    assert [one["detail"] for one in newest.changes if one["kind"] == "Policy"] == ["RANDOM; record_keys: off → on"]
    page = text(olga, place)
    assert "Policy: RANDOM; record_keys: off → on" in page and "record_keys on" in page
    assert "record_keys no → yes" in text(ada, "/audit?action=routing.policy")


def test_figures_stand_by_the_version_under_which_they_were_measured(
    victor: Client, place: str, variant: Variant
) -> None:
    window(variant, 30, minutes=10)
    made = policy_set(actor=ADA, variant_id=variant.pk, document=PREFIX)
    RoutingPolicy.objects.filter(pk=made.pk).update(created_at=timezone.now() - timedelta(minutes=5))
    window(variant, 4, minutes=3)
    rows = victor.get(f"{place}.json?table=under").json()["rows"]
    assert [(row["version"], row["policy"], row["requests"]) for row in rows] == [
        (1, "PREFIX_AWARE 4096/16", 4), (0, "RANDOM", 30),
    ]  # fmt: skip
    assert rows[0]["ttft_p95"] is None and rows[1]["ttft_p95"] is not None
    assert "By version of the policy" in text(victor, place)


# what was asked for


@pytest.mark.parametrize(
    ("asked", "shown"), [("7", 15), ("16", 60), ("99999", 10080), ("-1", 15), ("soon", 15), ("9" * 30, 15)]
)
def test_a_time_that_there_is_not_is_said_and_no_export_pretends_to_hold_it(
    victor: Client, place: str, asked: str, shown: int
) -> None:
    page = text(victor, f"{place}?minutes={asked}")
    assert f"minutes={asked[:20]}; there are 15, 60, 1440, 10080, and shown are {shown}." in page
    refused = victor.get(f"{place}.csv?table=windows&minutes={asked}")
    assert refused.status_code == 400 and "Must be one of" in refused.content.decode()
    assert "there are 15" not in text(victor, f"{place}?minutes={shown}")


def test_a_pasted_body_that_is_no_json_is_called_so(olga: Client, place: str) -> None:
    configuration_publish()
    for body, path, odd in (
        ("hello", "/v1/completions", True),
        ("[1]", "/v1/chat/completions", True),
        ('{"prompt": "x"}', "/v1/completions", False),
        ("{}", "/v1/completions", False),
        ("hello", "/invocations", False),
    ):
        page = olga.post(f"{place}/explain", {"path": path, "body": body}).content.decode()
        assert (NO_OBJECT in page) == odd, (body, path)


def test_a_taken_name_is_said_at_its_field(olga: Client, place: str) -> None:
    given = {"cluster": "lab", "name": "chat", "model": "", "health_path": "/live", "addresses": "one http://x:1"}
    answer = olga.post("/endpoints/static", given)
    page = " ".join(Page(answer.content).text.split())
    assert answer.status_code == 409 and "is reached as chat already. Choose another name, or make a variant" in page


def test_an_endpoint_of_a_trial_is_not_offered_to_shift_requests_to(variant: Variant) -> None:
    for name in ("trial-01a2b3c4", "trial-chat", "next"):
        factories.endpoint(of=variant.endpoint.cluster, namespace="local", name=name)
    form = VariantsForm(endpoint=variant.endpoint, shown=())
    offered = form.fields["new_endpoint"].queryset  # type: ignore[attr-defined]
    assert {one.name for one in offered} == {"trial-chat", "next"}, "what somebody else calls so is his"


def test_the_chart_has_a_legend_and_says_what_its_axes_are(variant: Variant) -> None:
    window(variant, 30)
    layout = ttft_chart(telemetry(variant=variant, minutes=15, now=timezone.now()))["layout"]
    assert layout["showlegend"] is True
    assert [layout[axis]["title"]["text"] for axis in ("yaxis", "yaxis2")] == [
        "Time to first token (ms)",
        "Hit rate (%)",
    ]
    assert [layout[axis]["ticksuffix"] for axis in ("yaxis", "yaxis2")] == [" ms", " %"]


def test_the_time_axis_is_in_seconds_once_an_answer_took_one(variant: Variant) -> None:
    figures = Figures(requests=2)
    figures.first_byte("Primary", 0.25)
    RoutingWindow.objects.create(variant=variant, seconds=10, at=timezone.now(), figures=figures.to_json())

    def longest() -> tuple[str, str, float, str]:
        spec = ttft_chart(telemetry(variant=variant, minutes=15, now=timezone.now()))
        [trace] = [one for one in spec["data"] if one["name"] == "longest"]
        axis = spec["layout"]["yaxis"]
        return axis["title"]["text"], axis["ticksuffix"], trace["y"][0], trace["hovertemplate"]

    title, ticks, value, hover = longest()
    assert (title, ticks) == ("Time to first token (ms)", " ms") and 245 < value < 255 and "%{y:.0f} ms" in hover
    figures.first_byte("Primary", 40.0)
    RoutingWindow.objects.update(figures=figures.to_json())
    title, ticks, value, hover = longest()
    assert (title, ticks) == ("Time to first token (s)", " s") and 39 < value < 41 and "%{y:.3f} s" in hover


def test_an_attempt_is_not_called_a_request_with_a_reason(victor: Client, place: str, variant: Variant) -> None:
    figures = Figures(requests=9, disconnected=1, truncated=2)
    figures.failures.update(Connect=4)
    RoutingWindow.objects.create(variant=variant, seconds=10, at=timezone.now(), figures=figures.to_json())
    page = text(victor, place).partition("From the last")[0]
    for words in ("truncated 2 no", "disconnected 1 yes", "attempts:Connect 4 an attempt, not a request"):
        assert words in page, words
    rows = victor.get(f"{place}.json?table=failed").json()["rows"]
    assert [(row["kind"], row["lost"]) for row in rows] == [
        ("truncated", True), ("attempts:Connect", False), ("disconnected", False),
    ]  # fmt: skip
    read = list(csv.DictReader(io.StringIO(victor.get(f"{place}.csv?table=failed").content.decode())))
    for row in (rows[1], read[1]):
        assert row["words"].startswith("attempts, not requests, that reached no instance")


def test_waiting_in_the_queue_is_said_to_be_none_of_routings(victor: Client, place: str, variant: Variant) -> None:
    window(variant, 30)
    assert "without waiting in the queue and the time to connect" in text(victor, place)


def test_the_rule_of_a_fair_share_stands_beside_it(victor: Client, place: str, variant: Variant) -> None:
    page = text(victor, place)
    assert "3 standard deviations" in page and "Below 50 requests due to it nothing is said" in page
    assert "fair for one that is there all the time" not in page, "of no requests there is no band"
    window(variant, 200)
    assert "fair for one that is there all the time" in text(victor, place)


# the pages of endpoints, which know no routing


def test_a_static_endpoint_is_as_its_addresses_are(olga: Client, variant: Variant) -> None:
    given = {"cluster": "lab", "name": "outside", "model": "", "health_path": "/live", "addresses": "one http://x:1"}
    place = olga.post("/endpoints/static", given)["Location"].removesuffix("/routing")
    page = text(olga, place)
    assert "Unknown no router says" in page and "http" not in page.partition("Instances")[0]
    for wrong in ("Deployment complete", "manage.py fleet", "Rollout", "Conditions", "Engines"):
        assert wrong not in page, wrong
    assert "/live , by every router" in page.replace("/live,", "/live ,") and "x:1" in page
    now = timezone.now()
    RouterProcess.objects.create(name="a", started_at=now, seen_at=now, figures={"in_flight": {}, "ejected": []})
    assert "Ready 1 of 1 address answers" in text(olga, place)
    states = {row["name"]: row["state"] for row in olga.get("/endpoints.json").json()["rows"]}
    assert states == {"default/chat": "Pending", "static/outside": "Ready"}


def test_the_endpoints_of_a_silent_cluster_are_unknown_since_when(olga: Client, variant: Variant) -> None:
    Cluster.objects.update(observed_at=timezone.now() - timedelta(minutes=10))
    [row] = olga.get("/endpoints.json").json()["rows"]
    assert row["state"] == "Unknown" and row["unknown_since"]
    assert "nothing is heard of lab; last known: pending" in text(olga, "/endpoints")
    page = text(olga, f"/endpoints/{variant.endpoint_id}")
    assert page.count("nothing is heard of lab") == 2 and "last known: ready" in page
    assert "Conditions when it was last seen" in page
