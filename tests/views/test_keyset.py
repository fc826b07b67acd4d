"""Pages by key: forwards and back again over equal and unknown values, whatever an address claims."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, quote
from uuid import UUID

import pytest
from django.db import connection
from django.test import RequestFactory
from django.test.utils import CaptureQueriesContext

from caches.models import Launch
from controlplane.web import keyset
from controlplane.web.keyset import KeysetTable
from controlplane.web.tables import Column
from tests import factories

pytestmark = pytest.mark.django_db
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
SIZE = 3
# Hours before noon, seconds until ready: equal ones beside each other, and launches that were never ready.
ROWS = [(0, 5.0), (1, None), (1, 5.0), (1, 7.5), (2, None), (2, 5.0), (3, 0.1), (3, None), (4, 9.0), (5, None)]
COLUMNS = [
    Column("began_at", "Began", lambda row: row.began_at, None, "began_at"),
    Column("ready_seconds", "Ready", lambda row: row.ready_seconds, None, "ready_seconds", numeric=True),
    Column("pod", "Pod", lambda row: row.pod_uid),
]
SORTS = ["", "began_at", "-ready_seconds", "ready_seconds"]


@pytest.fixture(autouse=True)
def stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyset, "PAGE_SIZES", (SIZE,))
    cluster = factories.cluster()
    Launch.objects.bulk_create(
        Launch(
            id=UUID(int=number * 7919 % 101), cluster=cluster, pod_uid=str(number), container="c", restart_count=0,
            began_at=NOON - timedelta(hours=hours), ready_seconds=seconds,
        )
        for number, (hours, seconds) in enumerate(ROWS)
    )  # fmt: skip


def table(query: str = "", *, total: int | None = len(ROWS)) -> KeysetTable:
    request = RequestFactory().get(f"/launches{query}")
    return KeysetTable(
        request, Launch.objects.all(), COLUMNS, total=total, name="x", caption="x", prefix="list_",
        default_sort="-began_at",
    )  # fmt: skip


def walk(start: str, step: str) -> list[list[str]]:
    """The pods of each page, from ``start`` on by next_query or previous_query."""
    pages, query = [], start
    while True:
        page = table(query)
        pages.append([row.pod_uid for row in page.page.object_list])
        query = getattr(page, step)
        if not query:
            return pages
        assert len(pages) < 20


def expected(sort: str) -> list[str]:
    field, down = (sort or "-began_at").removeprefix("-"), not sort or sort.startswith("-")
    rows = sorted(Launch.objects.all(), key=lambda row: row.pk, reverse=down)
    known = [row for row in rows if getattr(row, field) is not None]
    unknown = [row for row in rows if getattr(row, field) is None]
    known.sort(key=lambda row: getattr(row, field), reverse=down)
    return [row.pod_uid for row in [*known, *unknown]]


@pytest.mark.parametrize("sort", SORTS)
def test_pages_hold_every_row_once_in_order(sort: str) -> None:
    start = f"?list_sort={sort}" if sort else ""
    pages = walk(start, "next_query")
    assert [len(page) for page in pages] == [3, 3, 3, 1]
    assert [pod for page in pages for pod in page] == expected(sort)


@pytest.mark.parametrize("sort", SORTS)
def test_the_way_back_leads_over_the_same_rows(sort: str) -> None:
    query = f"?list_sort={sort}" if sort else ""
    queries = [query]
    while query := table(query).next_query:
        queries.append(query)
    back = walk(queries[-1], "previous_query")
    assert back[0] == expected(sort)[-1:]
    assert back[::-1][:-1] == [expected(sort)[at : at + SIZE] for at in (0, 3, 6)]
    assert table(queries[1]).previous_query and not table(queries[0]).previous_query


def test_rows_that_come_meanwhile_shift_no_page() -> None:
    following = table().next_query
    before = [row.pod_uid for row in table(following).page.object_list]
    cluster = Launch.objects.all()[0].cluster
    Launch.objects.create(id=UUID(int=1), cluster=cluster, pod_uid="new", container="c", restart_count=0, began_at=NOON)
    assert [row.pod_uid for row in table(following).page.object_list] == before


@pytest.mark.parametrize(
    "place",
    ["", "~", "x", "2026-05-01T12:00:00Z", "yesterday~" + str(UUID(int=1)), "2026-05-01~" + str(UUID(int=1)), "~~~"],
)
def test_a_place_that_nobody_gave_out_is_the_beginning(place: str) -> None:
    assert [row.pod_uid for row in table(f"?list_after={place}").page.object_list] == expected("")[:SIZE]


@pytest.mark.parametrize(
    "value", ["1e400", "-1e400", "nan", "1_0", "9" * 400, "0001-01-01T00:00:00+00:00", "5.0\0", "\ud800", " 5.0 "]
)
@pytest.mark.parametrize("side", ["after", "before"])
@pytest.mark.parametrize("sort", ["-ready_seconds", "-began_at"])
def test_whatever_value_an_address_claims_a_page_is_shown(value: str, side: str, sort: str) -> None:
    place = quote(f"{value}~{UUID(int=1)}", errors="replace")
    shown = table(f"?list_sort={sort}&list_{side}={place}")
    pods = [row.pod_uid for row in shown.page.object_list]
    assert set(pods) <= {*map(str, range(len(ROWS)))} and len(pods) <= SIZE
    assert shown.extent.endswith(("rows", f"of {len(ROWS)}", "row"))


def test_an_address_with_both_places_is_one_page_and_leads_on() -> None:
    """Edited by hand, or put together by a proxy: one of the two counts, and the ways on from there name one."""
    following, back = table().next_query, table(table().next_query).previous_query
    both = table(f"{following}&{back.removeprefix('?')}")
    assert [row.pod_uid for row in both.page.object_list] == expected("")[:SIZE]
    assert set(parse_qs(both.next_query.removeprefix("?"))) == {"list_after"}


def test_rows_that_are_gone_leave_a_page_from_which_one_finds_back() -> None:
    queries = [""]
    while query := table(queries[-1]).next_query:
        queries.append(query)
    Launch.objects.all().delete()
    last = table(queries[-1])
    assert (last.page.object_list, last.next_query, last.extent) == ([], "", "0 of 10")
    assert last.previous_query == "?" and table(last.previous_query).extent == "0 rows"


@pytest.mark.parametrize("size", ["", "0", "-3", "3", "2", "1000000", "x", "3.0", "٣"])
def test_a_page_has_no_other_sizes_than_those_there_are(size: str) -> None:
    assert len(table(f"?list_page_size={quote(size)}").page.object_list) == SIZE


def test_choosing_another_order_begins_again() -> None:
    following = table(table().next_query)
    queries = [head.query for head in following.heads if head.query]
    assert queries and not any("list_after" in query for query in queries)
    assert "list_after" not in following.csv_query
    assert set(parse_qs(following.previous_query.removeprefix("?"))) == {"list_before"}


def test_it_says_how_many_there_are_without_counting() -> None:
    with CaptureQueriesContext(connection) as queries:
        assert table(total=1_000_000).extent == "3 of 1,000,000"
    assert len(queries) == 1 and "COUNT" not in queries[0]["sql"]
    assert table(total=1).extent == "3 of 3"  # counts come a moment later
    assert table(total=None).extent == "3 rows"
    Launch.objects.all().delete()
    assert table(total=0).extent == "0 rows"


def test_a_page_reads_no_more_rows_than_it_shows_and_one(django_assert_num_queries: Any) -> None:
    with django_assert_num_queries(2):  # those with a value and those without
        list(table("?list_sort=-ready_seconds&list_after=5.0~" + str(UUID(int=0))).page.object_list)
