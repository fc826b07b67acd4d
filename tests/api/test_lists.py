"""Pages, orders, filters and CSV: the same for every collection."""

from __future__ import annotations

import csv
import io
import itertools
from datetime import timedelta

import pytest
from django.utils import timezone

from caches.selectors.nodes import nodes_list
from controlplane.clusters.freshness import node_state
from tests import factories
from tests.api.conftest import Api

LISTS = (
    "clusters",
    "node-pools",
    "nodes",
    "pins",
    "cache-entries",
    "operations",
    "audit-events",
    "tokens",
    "webhooks",
    "models",
    "source-connections",
)


@pytest.mark.parametrize("name", LISTS)
def test_it_lists_each_collection_as_json_and_csv(admin_api: Api, name: str) -> None:
    pool = factories.pool()
    factories.node(of=pool)
    factories.pin(pools=(pool,))

    items = admin_api.get(name).json()["items"]
    table = list(csv.reader(io.StringIO(admin_api.get(f"{name}.csv").content.decode())))

    assert len(table) == len(items) + 1
    assert {"id", "created_at", "updated_at", "links.self", "links.ui"} <= set(table[0])
    for item in items:
        assert admin_api.get(item["links"]["self"].removeprefix("http://testserver")).json()["id"] == item["id"]


def test_it_walks_every_row_once_whatever_comes_and_goes_meanwhile(viewer_api: Api) -> None:
    pool = factories.pool()
    nodes = [factories.node(of=pool, capacity_bytes=size) for size in (5, 5, 5, None, 7, None, 1)]
    seen: list[str] = []
    path = "nodes?page_size=2&ordering=-capacity_bytes"
    while True:
        answer = viewer_api.get(path)
        seen += [item["name"] for item in answer.json()["items"]]
        cursor = answer.json()["next"]
        if cursor is None:
            break
        assert f"cursor={cursor.replace(':', '%3A')}" in answer["Link"]
        path = f"nodes?page_size=2&ordering=-capacity_bytes&cursor={cursor}"
        # A row before the cursor does not push anything onto the next page.
        factories.node(of=pool, capacity_bytes=99)

    sizes = {node.name: node.capacity_bytes for node in nodes}
    walked = [name for name in seen if name in sizes]
    assert sorted(walked) == sorted(sizes)
    assert [sizes[name] for name in walked] == [7, 5, 5, 5, 1, None, None]


def test_it_refuses_a_cursor_of_another_order(viewer_api: Api) -> None:
    pool = factories.pool()
    for _ in range(2):
        factories.node(of=pool)
    cursor = viewer_api.get("nodes?page_size=1").json()["next"]

    assert viewer_api.get(f"nodes?page_size=1&cursor={cursor}").status_code == 200
    assert viewer_api.get(f"nodes?page_size=1&ordering=-name&cursor={cursor}").status_code == 400
    assert viewer_api.get(f"nodes?cursor={cursor[:-2]}xx").json()["code"] == "paging:user:cursor"


def test_it_writes_csv_that_no_spreadsheet_runs(viewer_api: Api) -> None:
    entry = factories.entry(message="=HYPERLINK(1)", damaged=["a,b", 'c"d'], bytes_moved=-5)

    [row] = csv.DictReader(io.StringIO(viewer_api.get("cache-entries?format=csv").content.decode()))

    assert row["message"] == "'=HYPERLINK(1)"
    assert row["damaged"] == '["a,b", "c\\"d"]'
    assert row["bytes_moved"] == "-5"  # a number is a number
    assert row["artifact.digest"] == entry.artifact.digest
    assert row["ready_at"].endswith("Z") and row["retry_at"] == ""


def test_it_filters_entries_by_what_they_are_known_to_be(viewer_api: Api) -> None:
    pool = factories.pool(freshness_seconds=60)
    silent = factories.node(of=pool, reported_at=timezone.now() - timedelta(seconds=61))
    fresh = factories.node(of=pool)
    gone = factories.node(of=pool, lost_at=timezone.now())
    one = factories.entry(on=silent)
    two = factories.entry(on=fresh, state="Failed", reason="AccessDenied")
    lost = factories.entry(on=gone, state="Lost")

    def ids(query: str) -> set[str]:
        return {item["id"] for item in viewer_api.get(f"cache-entries?{query}").json()["items"]}

    assert ids("") == {str(one.id), str(two.id)}
    assert ids("state=Ready") == set()
    assert ids("state=Unknown&state=Failed") == {str(one.id), str(two.id)}
    assert ids("state=Failed&reason=AccessDenied") == {str(two.id)}
    assert ids("state=Lost") == {str(lost.id)}
    assert ids(f"pool={pool.full_name}&node={fresh.name}") == {str(two.id)}
    assert ids(f"pool={pool.name}&cluster=elsewhere") == set()
    shown = viewer_api.get(f"cache-entries/{one.id}").json()
    assert (shown["state"], shown["last_known"]) == ("Unknown", "Ready")
    assert shown["observed_at"]


def test_it_derives_in_sql_the_state_that_the_pages_derive(db: None) -> None:
    now = timezone.now()
    times = (now, now - timedelta(seconds=121), None)
    facts = itertools.product((True, False, None), (True, False), times, times, (None, now))
    names = ("ready", "schedulable", "observed_at", "reported_at", "lost_at")
    pool = factories.pool(freshness_seconds=120)
    for values in facts:
        factories.node(of=pool, **dict(zip(names, values, strict=True)))

    rows = list(nodes_list(now=now))

    assert len(rows) == 108
    for row in rows:
        stored = {name: getattr(row, name) for name in names}
        assert row.shown_state == node_state(freshness_seconds=120, now=now, **stored), stored  # type: ignore[attr-defined]
