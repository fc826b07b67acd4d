"""One endpoint's launches, and those that trials provoked: on every page and over REST, in the address."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.test import Client
from django.utils import timezone

from caches.models import Launch, LaunchCount, LaunchHour
from caches.services.launches.assembly import hour_of
from caches.services.launches.counts import hours_count
from controlplane.accounts.models import Scope, User
from tests import factories
from tests.api.conftest import api_for
from tests.selectors.test_launch_moves import Night
from tests.services.launches import put_launches
from tests.services.trials import launch_trial
from tests.views.conftest import Stage
from tests.views.test_launches import text_of

CHAT, TRIAL = "lab/chat", "local/trial-1a2b3c4d"


@pytest.fixture
def night(stage: Stage) -> Night:
    """20 hits of an endpoint, 5 misses of another, and 40 slow misses that a trial provoked."""
    Launch.objects.all().delete()
    LaunchCount.objects.all().delete()
    made = Night(stage.pool)
    named: dict[str, Any] = {"version_name": "llama v1", "digest": "sha256:a"}
    made.launches(20, fetch=1, weights="Hit", endpoint_name=CHAT, **named)
    made.launches(5, fetch=90, weights="Miss", endpoint_name="lab/code", **named)
    made.launches(40, fetch=900, weights="Miss", endpoint_name=TRIAL, **named)
    while hours_count():
        pass
    return made


def rows(client: Client, address: str, table: str) -> list[dict[str, Any]]:
    path, _, query = address.partition("?")
    found: list[dict[str, Any]] = json.loads(client.get(f"{path}.json?table={table}&{query}").content)["rows"]
    return found


SELECTED = [
    ("", 25, 5),
    ("trial=Without", 25, 5),
    ("trial=With", 65, 45),
    ("trial=Only", 40, 40),
    (f"endpoint={CHAT}", 20, 0),
    ("endpoint=lab/code&trial=With", 5, 5),
    (f"endpoint={TRIAL}", 40, 40),
    (f"endpoint={CHAT}&trial=Only", 0, 0),
    ("endpoint=lab/none", 0, 0),
]


def test_pages_exports_and_rest_count_the_same(night: Night, ada: Client, operator: User) -> None:
    api = api_for(operator, Scope.READ)
    for query, count, missed in SELECTED:
        classes = [row for row in rows(ada, f"/launches?{query}", "classes") if row["weights"] == ""]
        assert sum(row["launches"] for row in classes) == count, query
        listed = rows(ada, f"/launches?{query}", "launches")
        assert (len(listed), sum(row["weights"] == "Miss" for row in listed)) == (count, missed), query
        worth = rows(ada, f"/launches/report?{query}", "worth")
        assert (sum(row["launches"] for row in worth), sum(row["missed"] for row in worth)) == (count, missed), query
        told = api.get(f"launches/statistics?{query}").json()
        assert sum(one["launches"] for one in told["classes"] if one["weights"] == "") == count, query
        assert told["waiting_hours"] == 0
        report = api.get(f"launches/report?{query}").json()
        assert sum(one["launches"] for one in report["versions"]) == count, query
        second = "&".join(f"b_{part}" for part in query.split("&") if part)
        compared = api.get(f"launches/comparison?{second}").json()
        assert (compared["first"]["launches"], compared["second"]["launches"]) == (0, count), query
        assert api.get(f"launches/moves?{query}").status_code == 200


def test_the_list_over_rest_leaves_out_what_trials_provoke_unless_it_is_asked_for(night: Night, operator: User) -> None:
    api = api_for(operator, Scope.READ)
    pod = Launch.objects.filter(endpoint_name=TRIAL).values_list("pod_uid", flat=True)[0]
    asked = {
        "": (25, 0), "trial=With": (65, 40), "trial=Without": (25, 0), "trial=Only": (40, 40),
        f"endpoint={CHAT}": (20, 0), f"endpoint={TRIAL}": (40, 40), f"endpoint={TRIAL}&trial=Without": (0, 0),
        f"pod_uid={pod}": (1, 1),
    }  # fmt: skip
    for query, told in asked.items():
        found = [row["trial"] for row in api.get(f"launches?page_size=200&{query}").json()["items"]]
        assert (len(found), sum(found)) == told, query
    assert api.get("launches?trial=Maybe").status_code == 400
    assert api.get("launches/statistics?trial=Maybe").status_code == 400
    assert api.get("launches/moves?trial=Maybe").status_code == 400


def test_a_trial_moves_no_class(night: Night, ada: Client) -> None:
    """Its launches are the slowest there are, and came last."""
    night.launches(40, fetch=1, weights="Hit", endpoint_name=CHAT)
    Launch.objects.filter(endpoint_name=TRIAL).update(began_at=night.at(110))
    while hours_count():
        pass
    LaunchHour.objects.all().delete()
    assert "What moved" not in text_of(ada, "/launches")
    assert "What moved" in text_of(ada, "/launches?trial=With")


def test_the_page_says_that_trials_are_left_out_and_how_to_see_them(stage: Stage, night: Night, ada: Client) -> None:
    launch_trial(stage.pool.cluster, stage.llama)
    for page in ("/launches", "/launches/report"):
        shown, raw = text_of(ada, f"{page}?pool=lab.gpu"), ada.get(f"{page}?pool=lab.gpu").content.decode()
        assert "1 trial ran in this time; what trials provoke is left out: count it too , show it alone ." in shown
        found = re.findall(r'href="(\?[^"]*trial=[^"]*)"', raw.replace("&amp;", "&"))
        links = [parse_qs(urlsplit(one).query) for one in found]
        assert {("With", "lab.gpu"), ("Only", "lab.gpu")} <= {(one["trial"][0], one["pool"][0]) for one in links}
        assert "provoke is counted with the rest" in text_of(ada, f"{page}?trial=With")
        assert "provoke is all that is counted" in text_of(ada, f"{page}?trial=Only")


def test_the_selection_goes_along_to_the_comparison_and_the_report(night: Night, ada: Client) -> None:
    raw = ada.get(f"/launches?endpoint={CHAT}&trial=With").content.decode().replace("&amp;", "&")
    report = next(parse_qs(urlsplit(one).query) for one in re.findall(r'href="(/launches/report\?[^"]*)"', raw))
    assert (report["endpoint"], report["trial"]) == ([CHAT], ["With"])
    sides = next(parse_qs(urlsplit(one).query) for one in re.findall(r'href="(/launches/compare\?[^"]*)"', raw))
    assert sides["a_endpoint"] == sides["b_endpoint"] == [CHAT] and sides["a_trial"] == sides["b_trial"] == ["With"]
    assert re.search(r'<select name="endpoint">.*?<option selected>lab/chat</option>', raw, re.S)
    page = ada.get("/launches/compare?a_trial=Only&b_endpoint=lab/code").content.decode()
    assert re.search(r'<select name="a_trial">.*?<option value="Only" selected>', page, re.S)
    assert re.search(r'<select name="b_endpoint">.*?<option selected>lab/code</option>', page, re.S)
    file = ada.get(f"/launches/report.html?endpoint={CHAT}").content.decode()
    assert "endpoint lab/chat; what trials provoked is left out." in file


def test_hours_that_are_counted_again_are_said_while_that_goes_on(night: Night, ada: Client) -> None:
    cluster = night.pool.cluster
    marks = [LaunchHour(cluster=cluster, start=timezone.now() - timedelta(hours=one), dirty_at=timezone.now())
             for one in range(1, 21)]  # fmt: skip
    LaunchHour.objects.bulk_create(marks)
    assert "20 hours of this time are being counted again" in text_of(ada, "/launches")
    LaunchHour.objects.filter(pk__in=[one.pk for one in marks[3:]]).delete()
    assert "being counted again" not in text_of(ada, "/launches")


def test_namesakes_of_several_clusters_are_said_where_they_are_chosen(night: Night, ada: Client) -> None:
    for page in ("/launches?", "/launches/report?", "/launches/compare?b_"):
        assert "of several clusters" not in text_of(ada, f"{page}endpoint={CHAT}")
    put_launches(factories.cluster(), [10.0] * 2, at=night.began, endpoint_name=CHAT)
    for page in ("/launches?", "/launches/report?", "/launches/compare?b_"):
        raw = ada.get(f"{page}endpoint={CHAT}").content.decode()
        assert '<option value="lab/chat" selected>lab/chat, of several clusters</option>' in raw, page
        assert "lab/code, of" not in raw, page
    listed = rows(ada, f"/launches?endpoint={CHAT}", "classes")
    assert sum(row["launches"] for row in listed if row["weights"] == "") == 22


def test_what_was_counted_of_no_endpoint_is_said_and_not_shown_as_none(night: Night, ada: Client) -> None:
    asked = (f"endpoint={CHAT}", "trial=Only")
    assert not any("What was counted before" in text_of(ada, f"/launches?since=now-7d&{one}") for one in asked)
    cluster, long_ago = factories.cluster(), hour_of(timezone.now() - timedelta(days=5))
    put_launches(cluster, [10.0] * 4, at=long_ago)
    # As releases of before counted it, and its launches are gone.
    LaunchCount.objects.filter(cluster=cluster, by__in=("Digest", "Place", "Endpoint")).delete()
    began = LaunchCount.objects.filter(by="Endpoint", step="Hour").order_by("start")[0].start
    said = f"What was counted before {began:%Y-%m-%d %H:%M} is not in these figures"
    for one in asked:
        assert said in text_of(ada, f"/launches?since=now-7d&{one}"), one
        assert said not in text_of(ada, f"/launches?since=now-24h&{one}"), one
    assert said not in text_of(ada, "/launches?since=now-7d")


def test_an_endpoint_of_a_cluster_that_is_called_like_a_trials_is_somebody_s_own(
    night: Night, ada: Client, operator: User
) -> None:
    """Trials run in local fleets alone."""
    api = api_for(operator, Scope.READ)
    theirs = factories.cluster(type="Kubernetes")
    put_launches(theirs, [10.0] * 3, at=night.began, endpoint_name=TRIAL, version_name="llama v1", digest="sha256:a")
    for query, count in (("", 28), ("trial=Only", 40), ("trial=With", 68)):
        classes = [row for row in rows(ada, f"/launches?{query}", "classes") if row["weights"] == ""]
        assert sum(row["launches"] for row in classes) == count, query
        assert len(rows(ada, f"/launches?{query}", "launches")) == count, query
        worth = rows(ada, f"/launches/report?{query}", "worth")
        assert sum(row["launches"] for row in worth) == count, query
    for query, count in (("", 28), ("&trial=Without", 28), ("&trial=Only", 40)):
        listed = api.get(f"launches?page_size=200{query}").json()["items"]
        assert len(listed) == count and {row["trial"] for row in listed} == {"Only" in query}, query


def test_the_page_of_an_endpoint_leads_to_its_launches(night: Night, ada: Client) -> None:
    made = factories.endpoint(of=night.pool.cluster, namespace="lab", name="chat")
    (link,) = re.findall(r'href="(/launches\?[^"]*)"', ada.get(f"/endpoints/{made.pk}").content.decode())
    classes = [row for row in rows(ada, link.replace("&amp;", "&"), "classes") if row["weights"] == ""]
    assert sum(row["launches"] for row in classes) == 20
    address = factories.endpoint(of=night.pool.cluster, kind="StaticEndpoint", namespace="static", name="outside")
    assert "/launches?" not in ada.get(f"/endpoints/{address.pk}").content.decode(), "nothing is launched there"
