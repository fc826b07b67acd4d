"""What the pages of launches read: as many statements and as many rows of counts, however many launches there are."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import NAMESPACE_OID, uuid5

import time_machine
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from caches.domain.launches.period import hour_of
from caches.domain.launches.words import EventClass
from caches.models import Launch, LaunchCount
from caches.services.launches.assembly import hours_mark_dirty
from caches.services.launches.counts import hours_count
from caches.views.launch_moves import LOOKED_AT
from controlplane.clusters.models import Cluster
from tests import factories

PAGES = (
    "/launches?since=now-30d",
    "/launches?since=now-30d&compare=previous",
    "/launches?since=now-30d&pool=lab.gpu",
    "/launches/compare?a_since=now-30d&a_until=now-10d&b_since=now-10d&b_until=now",
    "/launches/report?since=now-30d",
)

DAYS = (0.5, 2, 12, 28)
LIVE = {"X-Hearth-Live": "1"}


def put(cluster: Cluster, each: int) -> None:
    """``each`` launches of each of four hours and of two classes, half of which hit."""
    now = timezone.now()
    Launch.objects.bulk_create(
        Launch(
            # Which of many are looked at follows from their ids.
            id=uuid5(NAMESPACE_OID, f"{days} {kind} {weights} {number} {each}"), cluster=cluster, pod_uid="u",
            container="c", restart_count=0, state="Ready", event_class=kind, weights=weights, phase_seconds=[None] * 7,
            began_at=hour_of(now - timedelta(days=days)) + timedelta(seconds=number), pool_name="gpu",
            version_name="llama v1", ready_seconds=30.0 + 7 * number % 40,
        )
        for days in DAYS
        for kind in (EventClass.COLD_POD, EventClass.NEW_NODE)
        for weights in ("Hit", "Miss")
        for number in range(each)
    )  # fmt: skip
    hours_mark_dirty(cluster_id=cluster.pk, moments=[now - timedelta(days=days) for days in DAYS])
    hours_count()
    with connection.cursor() as cursor:  # else PostgreSQL plans by what it knew of other tests' rows
        cursor.execute(f"ANALYZE {Launch._meta.db_table}, {LaunchCount._meta.db_table}")


def reads(client: Client, address: str) -> tuple[int, Counter[str]]:
    """How many statements the page takes, and how many rows PostgreSQL finds for them in each table of launches."""
    with CaptureQueriesContext(connection) as queries:
        assert client.get(address).status_code == 200
    statements = [str(one["sql"]) for one in queries.captured_queries]
    found: Counter[str] = Counter()
    for statement in statements:
        if statement.startswith("SELECT"):
            with connection.cursor() as cursor:
                cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}")
                (plan,) = cursor.fetchone()
            for node in nodes((json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"]):
                found[node.get("Relation Name", "")] += node["Actual Rows"] * node["Actual Loops"]
    return len(statements), found


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", ()):
        yield from nodes(part)


def test_pages_of_ten_times_as_many_launches_read_no_more_counts_and_ask_no_more_often(ada: Client) -> None:
    now = hour_of(timezone.now()) + timedelta(minutes=10)
    cluster = factories.cluster(name="lab", observed_at=now)
    with time_machine.travel(now, tick=False):
        put(cluster, 10)
        few = {address: reads(ada, address) for address in PAGES}
        put(cluster, 90)
        many = {address: reads(ada, address) for address in PAGES}
    counts, launches = LaunchCount._meta.db_table, Launch._meta.db_table
    for address in PAGES:
        assert many[address][0] == few[address][0], address
        assert many[address][1][counts] == few[address][1][counts], address
    cold = many["/launches?since=now-30d"][1]
    # 30 days and the hours of the first and of today, of a grain with two classes of two hits.
    assert 0 < cold[counts] <= 4 * (30 + 2 * 24) * 4
    assert cold[launches] <= 2 * LOOKED_AT * 1.5 + 200, "a part of each class, the list and the two at the quantiles"


def test_who_asks_again_within_the_hour_hears_that_nothing_changed(ada: Client) -> None:
    """Periods that end now end at another moment whenever somebody asks; what they hold does not change with it."""
    first = hour_of(timezone.now()) + timedelta(minutes=10, seconds=30)
    later = first + timedelta(minutes=30)
    cluster = factories.cluster(name="lab", observed_at=later)
    with time_machine.travel(first, tick=False):
        put(cluster, 25)
        tags = {address: ada.get(address, headers=LIVE)["ETag"] for address in PAGES}
    with time_machine.travel(later, tick=False):
        again = {address: ada.get(address, headers=LIVE | {"If-None-Match": tag}) for address, tag in tags.items()}
        assert {address: answer.status_code for address, answer in again.items()} == dict.fromkeys(PAGES, 304)
        put(cluster, 1)
        for address, tag in tags.items():
            assert ada.get(address, headers=LIVE | {"If-None-Match": tag}).status_code == 200, address
