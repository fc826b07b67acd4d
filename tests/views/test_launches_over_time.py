"""Cold starts over time: periods, zones, the hour that clocks repeat, and how an address leads from one to another."""

from __future__ import annotations

import html
import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs
from zoneinfo import ZoneInfo

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from caches import launch_charts
from caches.domain.launches.period import period_of
from caches.selectors.launches.stats import HeatCell
from controlplane.audit.models import AuditEvent
from tests import factories
from tests.services.launches import put_launches
from tests.views.conftest import Stage

ZURICH = ZoneInfo("Europe/Zurich")


def shown(client: Client, address: str) -> str:
    answer = client.get(address)
    assert answer.status_code == 200, answer.content[:500]
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", answer.content.decode())))


def links(client: Client, address: str) -> dict[str, dict[str, list[str]]]:
    """The queries of the page's links, by their words."""
    page = client.get(address).content.decode()
    found = re.findall(r'<a href="\?([^"]*)"[^>]*>(\w+)</a>', page)
    return {words: parse_qs(html.unescape(query)) for query, words in found}


def heat_of(client: Client, address: str) -> Any:
    page = client.get(address).content.decode()
    figure = page[page.index('id="launch-heat"') :]
    return json.loads(html.unescape(re.search(r'<script[^>]*type="application/json">(.*?)</script>', figure, re.S)[1]))  # type: ignore[index]


@pytest.mark.parametrize("query", ["", "since=now-30d", "since=now-30d&tz=Asia/Tokyo", "until=2199-01-01T00:00:00Z"])
def test_no_period_ends_in_the_future(stage: Stage, ada: Client, query: str) -> None:
    *edges, last = heat_of(ada, f"/launches?{query}")["layout"]["meta"]["edges"]
    moments = [datetime.fromisoformat(edge) for edge in edges]
    assert moments == sorted(moments) and moments[-1] <= timezone.now()
    assert last == "now" and "to now" in shown(ada, f"/launches?{query}")


def test_the_day_on_which_clocks_go_back_has_twenty_five_hours_and_its_changes_lie_where_they_were() -> None:
    now = datetime(2026, 11, 5, tzinfo=UTC)
    first = datetime(2026, 10, 25, tzinfo=ZURICH)
    period = period_of(first.isoformat(), datetime(2026, 10, 26, tzinfo=ZURICH).isoformat(), now, ZURICH)
    # 02:30 comes twice; the second one is an hour later.
    events = [
        AuditEvent(at=datetime(2026, 10, 25, 2, 30, tzinfo=ZURICH, fold=fold), actor="ada", action="pin.create")
        for fold in (0, 1)
    ]
    chart = launch_charts.heatmap([HeatCell(period.steps[3], 20, 7)], period, ZURICH, events)
    assert len(chart["data"][0]["x"]) == 25
    assert chart["data"][1]["x"] == [2.0, 3.0]
    assert chart["data"][0]["text"][0][2:4] == ["0 s to 5 s from 2026-10-25 02:00"] * 2


def test_changes_lie_in_days_that_are_not_equally_long() -> None:
    now = datetime(2026, 11, 5, 12, tzinfo=UTC)
    period = period_of("2026-10-24T10:00:00+00:00", "now", now, ZURICH)
    moments = [
        datetime(2026, 10, 24, 23, 0, tzinfo=UTC),  # an hour into the day of 25 hours
        datetime(2026, 10, 25, 22, 59, tzinfo=UTC),  # its last minute
        datetime(2026, 10, 25, 23, 0, tzinfo=UTC),  # the next midnight
    ]
    events = [AuditEvent(at=moment, actor="ada", action="pin.create") for moment in moments]
    places = launch_charts.heatmap([], period, ZURICH, events)["data"][1]["x"]
    assert places[0] == pytest.approx(0.5 + 1 / 25)
    assert 1.49 < places[1] < 1.5 == places[2]


def test_days_of_another_zone_hold_the_launches_of_those_days(stage: Stage, ada: Client) -> None:
    midnight = timezone.now().astimezone(ZURICH).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=5)
    for late in (timedelta(minutes=-30), timedelta(minutes=30)):
        put_launches(stage.pool.cluster, [70.0], at=(midnight + late).astimezone(UTC), pool_name="gpu")
    for zone, columns in (("Europe/Zurich", 2), ("UTC", 1)):
        rows = heat_of(ada, f"/launches?since=now-7d&tz={zone}")["data"][0]["z"]
        assert sum(count is not None for count in rows[5]) == columns, zone


def test_page_list_and_rest_hold_the_same_full_hours(stage: Stage, ada: Client) -> None:
    hour = timezone.now().replace(minute=0, second=0, microsecond=0) - timedelta(hours=5)
    for minute in (2, 57, 61):
        put_launches(stage.pool.cluster, [7.0], at=hour + timedelta(minutes=minute), pool_name="gpu")
    since, until = (f"{hour + timedelta(minutes=minute):%Y-%m-%dT%H:%M:%SZ}" for minute in (50, 56))
    asked = f"since={since}&until={until}"
    page = shown(ada, f"/launches?{asked}")
    end = hour + timedelta(hours=1)
    assert f"{hour:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC, by the hour; what is asked for is rounded" in page
    assert "2 launches" in page
    assert len(json.loads(ada.get(f"/launches.json?table=launches&{asked}").content)["rows"]) == 2
    told = ada.get(f"/api/v1/launches/statistics?{asked}").json()
    assert [datetime.fromisoformat(told[name]) for name in ("since", "until")] == [hour, end]
    assert sum(row["launches"] for row in told["classes"] if not row["weights"]) == 2
    whole = f"since={told['since']}&until={told['until']}"
    assert "is rounded" not in shown(ada, f"/launches?{whole}") and "is rounded" not in shown(ada, "/launches")


def test_it_leads_to_the_times_around(stage: Stage, ada: Client) -> None:
    found = links(ada, "/launches?since=now-6h&pool=lab.gpu&list_after=x~y")
    assert "Later" not in found and {"Earlier", "Wider"} <= set(found)
    for query in (found["Earlier"], found["Wider"]):
        assert query["pool"] == ["lab.gpu"] and "list_after" not in query
        period = period_of(query["since"][0], query["until"][0], timezone.now())
        assert period.since < timezone.now() - timedelta(hours=11)
    earlier = found["Earlier"]
    assert "Later" in links(ada, f"/launches?since={earlier['since'][0]}&until={earlier['until'][0]}")
    assert "Wider" not in links(ada, "/launches?since=now-300d")


def test_it_says_why_launches_missed_and_exports_it(stage: Stage, ada: Client) -> None:
    now = timezone.now()
    for reason, count in (("NewNode", 3), ("Gone", 1)):
        put_launches(
            stage.pool.cluster, [90.0] * count, at=now, pool_name="gpu", weights="Miss", miss_reason=reason,
            event_class="PodOnNewNode",
        )  # fmt: skip
    page = shown(ada, "/launches?event_class=PodOnNewNode")
    assert "Why 4 launches missed the cache" in page
    assert re.search(r"The node was new 3 75 % It had been on the node and was gone 1 25 %", page)
    rows = json.loads(ada.get("/launches.json?table=misses&event_class=PodOnNewNode").content)["rows"]
    assert rows == [
        {"reason": "NewNode", "launches": 3, "share": 0.75},
        {"reason": "Gone", "launches": 1, "share": 0.25},
    ]
    assert "missed the cache" not in shown(ada, "/launches?weights=Hit").partition("Classes")[2]


def test_launches_are_called_after_what_people_know(stage: Stage, ada: Client) -> None:
    launch = factories.launch(
        on=stage.nodes[0], endpoint_name="shop/chat", pod_name="shop/chat-7d9-x2x", restart_count=2
    )
    nameless = factories.launch(on=stage.nodes[0], endpoint_name="shop/chat", pod_name="", pod_uid="0123456789abcdef")
    assert "<title>" in ada.get(f"/launches/{launch.pk}").content.decode()
    assert "shop/chat, chat-7d9-x2x, restart 2" in shown(ada, f"/launches/{launch.pk}")
    page = shown(ada, "/launches")
    assert "shop/chat, chat-7d9-x2x, restart 2" in page and nameless.pod_uid not in page


def test_the_page_costs_the_same_statements_however_many_launches(stage: Stage, ada: Client) -> None:
    counts = []
    for more in (60, 300):
        put_launches(stage.pool.cluster, [40.0] * more, at=timezone.now() - timedelta(days=4), pool_name="gpu")
        with CaptureQueriesContext(connection) as queries:
            ada.get("/launches?since=now-30d")
        counts.append(len(queries))
    assert counts[0] == counts[1]


def test_the_list_goes_on_by_key_and_sorts_by_how_slow(stage: Stage, ada: Client) -> None:
    put_launches(
        stage.pool.cluster, [float(number) for number in range(60)], at=timezone.now(), pool_name="gpu",
        event_class="PodOnNewNode", weights="Hit",
    )  # fmt: skip
    address = "/launches?event_class=PodOnNewNode&list_sort=-ready_seconds"
    page = shown(ada, address)
    assert "50 of 60" in page
    following = links(ada, address)["Next"]["list_after"][0]
    assert following.startswith("10.0~")
    answer = ada.get(
        "/launches", {"event_class": "PodOnNewNode", "list_sort": "-ready_seconds", "list_after": following}
    )
    assert answer.content.decode().count('id="launches-') == 1 + 10  # its rows and their body
