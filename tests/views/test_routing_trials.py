"""The pages on which somebody looks before anything is changed: explain, replay, advice, engines."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from controlplane.audit.models import AuditEvent
from controlplane.operations.models import Operation
from controlplane.operations.steps import operation_step
from controlplane.serving.models import Instance, Variant
from routing.api.telemetry_serializers import TelemetrySerializer
from routing.charts import ttft_chart
from routing.domain.dialects import Dialect, EngineReading
from routing.domain.figures import Figures
from routing.models import Configuration, RoutedEndpoint, RoutingWindow
from routing.selectors.telemetry import produced_by, telemetry
from routing.services.policies import policy_set
from routing.services.publishing import configuration_publish
from routing.views import trials
from tests import factories
from tests.services.routing_world import RECORDED_PREFIX, chats, recording_variant, told, use_redis
from tests.services.test_routing_policies import ADA, PREFIX

pytestmark = pytest.mark.django_db
SECRET = "the eagle lands at midnight"


@pytest.fixture
def variant(settings: Any, valkey_url: str, monkeypatch: pytest.MonkeyPatch) -> Variant:
    use_redis(settings, monkeypatch, valkey_url)
    made = recording_variant(RECORDED_PREFIX)
    made.endpoint.routed = RoutedEndpoint.objects.get(endpoint=made.endpoint)
    return made


@pytest.fixture
def place(variant: Variant) -> str:
    return f"/endpoints/{variant.endpoint_id}/routing"


def text(client: Client, address: str, status: int = 200) -> str:
    answer = client.get(address)
    assert answer.status_code == status, answer.content
    return answer.content.decode()


def window(variant: Variant, figures: Figures, minutes: float = 1) -> None:
    at = timezone.now() - timedelta(minutes=minutes)
    RoutingWindow.objects.create(variant=variant, seconds=10, at=at, figures=figures.to_json())


# explain


def test_a_pasted_request_is_explained_and_kept_nowhere(
    olga: Client, place: str, variant: Variant, caplog: pytest.LogCaptureFixture
) -> None:
    body = '{"messages": [{"role": "user", "content": "%s"}]}' % (SECRET * 100)
    answer = olga.post(f"{place}/explain", {"path": "/v1/chat/completions", "body": body})
    page = answer.content.decode()
    assert answer.status_code == 200 and answer["Cache-Control"] == "private, no-store"
    assert "The instance that its key belongs to has room" in page and "Its beginnings" in page
    assert re.search(r"<code>[0-9a-f]{8}</code> to 1024", page)
    assert Instance.objects.filter(name__in=re.findall(r"<strong>(chat-[\w-]+)</strong>", page)).count() == 1
    assert SECRET not in caplog.text and SECRET not in repr(list(AuditEvent.objects.values()))
    assert SECRET not in text(olga, f"{place}/explain"), "no address leads back to it"


def test_a_recorded_decision_is_explained_from_its_row(
    olga: Client, place: str, variant: Variant, valkey_url: str
) -> None:
    assert "Requests appear here" in text(olga, f"{place}/explain")
    told(valkey_url, variant, chats(3), passed=4)
    page = text(olga, f"{place}/explain")
    assert "4 more were not kept" in page
    [first, *_] = re.findall(r'href="(\?decision=[^"]+)"', page)
    page = text(olga, f"{place}/explain{first}")
    assert "What happened" in page and "10 of 100 prompt tokens from its cache" in page
    assert "There is no recorded decision" in text(olga, f"{place}/explain?decision=1-2", 404)
    rows = olga.get(f"{place}/explain.json?table=decisions").json()["rows"]
    assert len(rows) == 3 and set(rows[0]) >= {"id", "at", "outcome", "instance", "key", "depth", "ttft"}


@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({"path": "/v1/chat/completions", "body": ""}, 400, "This field is required"),
        ({"path": "/etc", "body": "x"}, 400, "Select a valid choice"),
        ({"path": "/v1/chat/completions", "body": "x", "tenant": "y" * 65}, 400, "at most 64"),
        ({"path": "/v1/completions", "body": "not json"}, 200, "nothing to make a key of"),
        ({"path": "/v1/completions", "body": '{"prompt": "x"}', "tenant": "ä"}, 200, "A router would answer itself"),
    ],
)
def test_what_is_wrong_with_a_pasted_request_is_said(
    olga: Client, place: str, fields: dict[str, str], status: int, words: str
) -> None:
    answer = olga.post(f"{place}/explain", fields)
    assert answer.status_code == status and words in answer.content.decode()


def test_before_any_publication_it_says_to_wait(olga: Client) -> None:
    made = factories.variant()
    place = f"/endpoints/{made.endpoint_id}/routing/explain"
    answer = olga.post(place, {"path": "/v1/completions", "body": "{}"})
    assert answer.status_code == 503 and "not told of this endpoint yet" in answer.content.decode()
    assert "nothing is recorded" in text(olga, place)


# replay


def test_the_form_is_filled_in_by_its_address_and_runs_when_asked(
    olga: Client, place: str, variant: Variant, valkey_url: str
) -> None:
    told(valkey_url, variant, chats(60, cached=None))
    query = "minutes=15&strategy=PREFIX_AWARE&prefix_length=8192&concurrency_threshold=8&instances=4"
    page = text(olga, f"{place}/replay?{query}")
    assert 'value="8192"' in page and "What happened, and what would have" not in page
    page = text(olga, f"{place}/replay?{query}&run=1")
    assert "PREFIX_AWARE 8192/8" in page and "4 instances" in page and "60 requests" in page
    assert "Prefix hit rate" in page and "Both columns are computed, not measured" in page and "new-1" in page
    rows = olga.get(f"{place}/replay.json?{query}&run=1").json()["rows"]
    assert [row["figure"] for row in rows][:4] == ["Prefix hit rate", "TTFT p50", "TTFT p95", "TTFT p99"]
    wanted = {"figure", "happened", "tried", "change", "happened_widest", "tried_widest"}
    assert all(set(row) == wanted for row in rows)
    shares = olga.get(f"{place}/replay.csv?{query}&run=1&table=shares").content.decode().splitlines()
    assert shares[0] == "instance,happened,tried,fair" and len(shares) == 5


def test_what_the_model_does_not_describe_is_no_figure_to_decide_by(
    olga: Client, place: str, variant: Variant, valkey_url: str
) -> None:
    told(valkey_url, variant, chats(60, cached=10))
    query = "run=1&minutes=15&strategy=RANDOM"
    page = text(olga, f"{place}/replay?{query}")
    assert "The model does not describe this traffic." in page and "Answers said 10 %" in page
    assert page.count("not told: the model does not describe this traffic") == 4
    rows = {row["figure"]: row for row in olga.get(f"{place}/replay.json?{query}").json()["rows"]}
    assert rows["Prefix hit rate"]["tried"] is None and rows["Greatest share"]["tried"] > 0


def test_as_it_is_now_tries_the_policy_in_force_on_other_numbers(
    olga: Client, place: str, variant: Variant, valkey_url: str
) -> None:
    told(valkey_url, variant, chats(20))
    page = text(olga, f"{place}/replay?run=1&minutes=15&strategy=&instances=2")
    assert "PREFIX_AWARE 4096/16" in page and "2 instances" in page


@pytest.mark.parametrize(
    ("query", "status", "words"),
    [
        ("run=1&minutes=7", 400, "Select a valid choice"),
        ("run=1&strategy=FASTEST", 400, "Select a valid choice"),
        ("run=1&instances=0", 400, "greater than or equal to 1"),
        ("run=1&instances=many", 400, "Enter a whole number"),
        ("run=1&strategy=PREFIX_AWARE&prefix_length=", 400, "PrefixLength"),
        ("run=1", 404, "No requests were recorded"),
        ("operation=x", 404, "There is no such replay"),
        ("operation=01a228ac-bd6d-7055-847c-9529d6e50fbf", 404, "There is no replay"),
    ],
)
def test_what_cannot_be_replayed_is_said(olga: Client, place: str, query: str, status: int, words: str) -> None:
    assert words in text(olga, f"{place}/replay?{query}", status)


def test_a_long_one_is_started_once_and_followed_on_the_page(
    olga: Client, place: str, variant: Variant, valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "AT_ONCE_SECONDS", 0.0)
    told(valkey_url, variant, chats(40))
    page = text(olga, f"{place}/replay?run=1&minutes=15&instances=3")
    assert "Start it" in page and "40 requests take about" in page
    sent = {"minutes": "15", "instances": "3", "form_key": "k-1"}
    first, again = olga.post(f"{place}/replay", sent), olga.post(f"{place}/replay", sent)
    assert first.status_code == 302 and first["Location"] == again["Location"]
    operation = Operation.objects.get()
    page = text(olga, first["Location"])
    assert "its result appears here by itself" in page and 'name="instances" value="3"' in page
    assert operation_step(operation_id=operation.pk)
    page = text(olga, first["Location"])
    assert "What happened, and what would have" in page and "appears here by itself" not in page


def test_one_of_another_variant_is_followed_where_it_was_started(
    olga: Client, place: str, variant: Variant, valkey_url: str
) -> None:
    other = factories.variant(of=variant.endpoint, name="other")
    policy_set(actor=ADA, variant_id=other.pk, document=RECORDED_PREFIX)
    assert "not of its variant other" in text(olga, f"{place}/replay?variant=other&run=1", 503)
    configuration_publish()
    other.endpoint.routed = variant.endpoint.routed
    told(valkey_url, other, chats(10))
    page = text(olga, f"{place}/replay?variant=other&run=1&minutes=15")
    assert "What happened, and what would have" in page and 'name="variant" value="other"' in page
    started = olga.post(f"{place}/replay?variant=other", {"minutes": "15", "form_key": "k-other"})
    assert started.status_code == 302
    assert "its result appears here by itself" in text(olga, started["Location"])
    assert "There is no replay" in text(olga, started["Location"].replace("variant=other", "variant=default"), 404)


def test_who_may_only_look_is_told_which_role_it_takes(victor: Client, place: str) -> None:
    for name in ("explain", "replay"):
        assert "Operator" in text(victor, f"{place}/{name}", 403)
        assert f"{place}/{name}" not in text(victor, place)
    far = Client()
    far.force_login(factories.user(role="Operator", target="elsewhere"))
    assert far.get(f"{place}/replay").status_code == far.get(f"{place}/explain").status_code == 404


# advice and engines


def test_the_page_says_what_is_odd_and_leads_to_a_replay_of_the_way_out(
    olga: Client, victor: Client, place: str, variant: Variant, valkey_url: str
) -> None:
    assert "too little traffic" in text(olga, place)
    figures = Figures(requests=500, told=500, prompt_tokens=1000, cached_tokens=100)
    figures.outcomes.update(Primary=500)
    window(variant, figures)
    told(valkey_url, variant, chats(60, groups=1))
    page = text(olga, place)
    assert "covers only the system prompt that every request shares" in page and "Costs now" in page
    [way] = re.findall(r'href="([^"]+/replay\?[^"]+)"', page)
    page = text(olga, way.replace("&amp;", "&"))
    assert "What happened, and what would have" in page
    assert "See what that would have done" not in text(victor, place), "a viewer may not run it"


def test_what_was_refused_and_failed_is_told_by_kind_on_the_page_in_exports_and_over_rest(
    victor: Client, place: str, variant: Variant
) -> None:
    assert "Nothing was refused, and nothing failed" in text(victor, place)
    figures = Figures(requests=5, queued=3, truncated=1)
    figures.refusals.update({"routing:instances:none": 2, "routing:queue:full": 4})
    window(variant, figures)
    Instance.objects.filter(endpoint=variant.endpoint).update(ready=False)
    page = text(victor, place)
    assert "<dt>Refused or failed</dt><dd>7<br>" in page and "refused with 503: no instance was ready" in page
    assert "No instance is ready. In 15 minutes 3 requests had to wait for one, and 6 were refused" in page
    rows = {row["kind"]: row["count"] for row in victor.get(f"{place}.json?table=failed").json()["rows"]}
    assert rows == {"routing:queue:full": 4, "routing:instances:none": 2, "truncated": 1}
    shown = telemetry(variant=variant, minutes=15, now=timezone.now())
    said = TelemetrySerializer(shown).data
    assert said["lost"] == 7 and {one["kind"]: one["count"] for one in said["failed"]} == rows


def test_where_redis_does_not_answer_the_page_is_there_all_the_same(olga: Client, place: str, settings: Any) -> None:
    settings.REDIS_URL = "redis://127.0.0.1:9/0"
    assert "Measured" in text(olga, place) and "Paste a request" in text(olga, f"{place}/explain")
    assert "Redis does not answer" in text(olga, f"{place}/replay?run=1", 503)


def said(kind: Dialect | None, *, stand_in: bool = False, **fields: Any) -> EngineReading:
    return EngineReading(dialect=kind, stand_in=stand_in, **fields)


def test_what_engines_say_is_shown_with_which_engine_said_it(victor: Client, place: str, variant: Variant) -> None:
    assert "No engine was asked in this time" in text(victor, place)
    figures = Figures(requests=1)
    figures.engine("pod-0").read(said(Dialect.LLAMA_CPP, running=1, waiting=3, kv_usage=0.5), None)
    figures.engine("pod-1").read(
        said(Dialect.VLLM, stand_in=True, running=0, waiting=0, kv_usage=0.25, prefix_caching=False), None
    )
    figures.engine("pod-2").unheard()
    window(variant, figures)
    page = text(victor, place)
    assert "Measured on llama.cpp and stand-in engines, which keep time and compute nothing; 1 did not say" in page
    rows = {row["instance"][-1]: row for row in victor.get(f"{place}.json?table=engines").json()["rows"]}
    assert rows["0"]["engine"] == "llama.cpp" and rows["1"]["engine"].startswith("stand-in")
    assert (rows["0"]["waiting"], rows["0"]["usage"], rows["0"]["utilisation"]) == (3, 0.5, 1)
    assert (rows["1"]["caching"], rows["2"]["waiting"], rows["2"]["answered"]) == (False, None, 0)
    assert "most 3" in page and "unknown" in page


def test_no_engine_is_called_real_that_did_not_say_what_it_is(variant: Variant) -> None:
    assert produced_by(()) == "Engines that did not say what they are."
    figures = Figures(requests=1)
    figures.engine("pod-0").read(said(None), None)
    window(variant, figures)
    shown = telemetry(variant=variant, minutes=15, now=timezone.now())
    assert shown.produced_by == "Engines that did not say what they are." and shown.engines[0].words == "unknown"


# shares, names, percentiles


def test_a_share_is_fair_for_the_time_that_an_instance_was_there(variant: Variant) -> None:
    """Three of which one came when half of the requests were through: half of the others' share is fair for it."""
    Configuration.objects.all().delete()
    name, now = variant.endpoint.routed.name, timezone.now()
    for version, minutes, uids in ((1, 20, ["a", "b"]), (2, 5, ["a", "b", "c"])):
        document = {"endpoints": [{"name": name, "variants": [
            {"name": "default", "instances": [{"id": uid, "weight": 1.0} for uid in uids]}]}]}  # fmt: skip
        changes = [{"endpoint": name, "variant": "default", "kind": "Membership", "detail": "x"}]
        made = Configuration.objects.create(version=version, digest=str(version), document=document, changes=changes)
        Configuration.objects.filter(pk=made.pk).update(created_at=now - timedelta(minutes=minutes))
    for minutes, counts in ((10, {"a": 300, "b": 300}), (2, {"a": 200, "b": 200, "c": 200})):
        figures = Figures(requests=sum(counts.values()))
        figures.instances.update(counts)
        window(variant, figures, minutes)
    shares = {one.uid: one for one in telemetry(variant=variant, minutes=15, now=now).shares}
    assert shares["a"].due == pytest.approx(500 / 1200) and shares["c"].due == pytest.approx(200 / 1200)
    assert [shares[uid].fair for uid in "abc"] == [True, True, True]
    RoutingWindow.objects.filter(at__gt=now - timedelta(minutes=3)).delete()
    figures = Figures(requests=600)
    figures.instances.update({"a": 250, "b": 250, "c": 100})
    window(variant, figures, 2)
    shares = {one.uid: one for one in telemetry(variant=variant, minutes=15, now=now).shares}
    assert shares["c"].fair is False and shares["c"].share == pytest.approx(100 / 1200)


def test_an_instance_that_is_gone_keeps_the_name_that_people_know(variant: Variant, victor: Client, place: str) -> None:
    there = factories.node(of=factories.pool(of=variant.endpoint.cluster))
    factories.launch(on=there, pod_uid="gone-1", pod_name="default/chat-old-7")
    figures = Figures(requests=4)
    figures.instances.update({"gone-1": 2, "gone-without-a-launch": 2})
    window(variant, figures)
    names = {
        one.uid: (one.name, one.there) for one in telemetry(variant=variant, minutes=15, now=timezone.now()).shares
    }
    assert names["gone-1"] == ("chat-old-7", False)
    assert names["gone-without-a-launch"] == ("gone (gone-wit)", False) and names["pod-0"][1]
    assert "chat-old-7" in text(victor, place)


def test_a_high_percentile_of_few_is_called_the_longest(variant: Variant, victor: Client, place: str) -> None:
    figures = Figures(requests=5)
    for seconds in (0.1, 0.1, 0.1, 0.1, 0.9):
        figures.first_byte("Primary", seconds)
    window(variant, figures)
    shown = telemetry(variant=variant, minutes=15, now=timezone.now())
    traces = {one["name"]: one for one in ttft_chart(shown)["data"]}
    assert traces["p50"]["y"] == [pytest.approx(100, rel=0.02)]
    assert traces["p95"]["y"] == traces["p99"]["y"] == [None] and traces["longest"]["y"] == [
        pytest.approx(900, rel=0.02)
    ]
    page = text(victor, place)
    assert re.search(r"p50 (9\d|10\d)(\.\d)? ms, most (89\d|9[01]\d)", page) and "p99 9" not in page
    for _ in range(200):
        figures.first_byte("Primary", 0.2)
    window(variant, figures, 2)
    longest = {
        one["name"]: one for one in ttft_chart(telemetry(variant=variant, minutes=15, now=timezone.now()))["data"]
    }
    assert longest["p99"]["y"][0] is not None and longest["longest"]["y"][0] is None


def test_changes_can_be_pointed_at(variant: Variant) -> None:
    configuration_publish()
    window(variant, Figures(requests=1))
    shown = telemetry(variant=variant, minutes=15, now=timezone.now())
    [change] = [one for one in ttft_chart(shown)["data"] if one["name"] == "change"]
    assert change["text"] and len(change["text"]) == len(change["x"]) == len(ttft_chart(shown)["layout"]["shapes"])
    assert PREFIX["RoutingStrategy"] == "PREFIX_AWARE"
