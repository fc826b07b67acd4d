"""Filters, sorting and paging live in the address: kept by every link and form, honest about what they cannot read."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from django.test import Client

from caches.models import CacheEntry
from controlplane.clusters.documents import EntryState
from controlplane.operations.models import Operation
from tests import factories
from tests.views.addresses import PAGES, TABLES
from tests.views.conftest import Stage
from tests.views.reading import Page


def rows_of(client: Client, address: str) -> list[dict[str, Any]]:
    """The rows of the first table as its JSON says them."""
    rows: list[dict[str, Any]] = json.loads(client.get(address).content)["rows"]
    return rows


# (address, table, column, what is left). One line for each filter that a page offers or links to.
NARROWED = [
    ("/entries?state=Failed", "entries", "node", ["n3"]),
    ("/entries?state=Ready&state=Failed&sort=node", "entries", "node", ["n1", "n1", "n3"]),
    ("/entries?state=Unknown", "entries", "node", []),
    ("/entries?pool=lab.gpu&model=qwen", "entries", "node", ["n1"]),
    ("/entries?pool=gpu&version=v1&sort=node", "entries", "node", ["n1", "n1", "n2", "n3"]),
    ("/entries?pool=lab.none", "entries", "node", []),
    ("/entries?node=n2", "entries", "node", ["n2"]),
    ("/entries?reason=AccessDenied", "entries", "node", ["n3"]),
    ("/entries?desired=Ensure&sort=node", "entries", "node", ["n1", "n2", "n3"]),
    ("/models?q=LLA", "versions", "version", ["llama v1"]),
    ("/models?q=%20qwen%20", "versions", "version", ["qwen v1"]),
    ("/models?q=zebra", "versions", "version", []),
    ("/models?state=Refused", "versions", "version", []),
    ("/models?drift=Unchecked&sort=version", "versions", "version", ["llama v1", "qwen v1"]),
    ("/pins?pool=lab.gpu", "pins", "version", ["llama v1"]),
    ("/pins?suspended=true", "pins", "version", []),
    ("/pins?suspended=false", "pins", "version", ["llama v1"]),
    ("/operations?kind=PinWarm", "operations", "operation", ["Warm llama v1"]),
    ("/operations?state=Succeeded", "operations", "operation", []),
    ("/operations?started_by=ada", "operations", "operation", ["Warm llama v1"]),
    ("/audit?action=pin.create", "audit", "object_name", ["llama v1"]),
    ("/audit?object_name=LLAMA", "audit", "object_name", ["llama v1"]),
    ("/audit?via=Api", "audit", "object_name", []),
    ("/fleet/lab.gpu?state=Unknown", "nodes", "name", ["n4"]),
    ("/fleet/lab.gpu?state=Ready", "nodes", "name", ["n1", "n2", "n3"]),
]


@pytest.mark.parametrize(("address", "table", "column", "left"), NARROWED)
def test_it_shows_and_exports_what_the_filter_leaves(
    address: str, table: str, column: str, left: list[str], stage: Stage, victor: Client
) -> None:
    path, _, query = address.partition("?")
    assert [row[column] for row in rows_of(victor, f"{path}.json?{query}")] == left
    page = Page(victor.get(address).content)
    shown = page.table(table)
    assert len(shown) == len(left)
    for row, name in zip(shown, left, strict=True):
        assert any(cell.startswith(name) for cell in row), (name, row)
    if not left:
        assert "No row matches" in page.text or "No row matches." in page.text
        assert page.page.all("a", href="?"), "an empty filter offers the way back to everything"


NONSENSE = [
    "/entries?state=Bogus",
    "/entries?reason=Bogus",
    "/entries?node_id=no-uuid",
    "/models?state=Bogus",
    "/models?drift=Bogus",
    "/operations?kind=Bogus",
    "/operations?state=Ready",
    "/operations?created_after=yesterday",
    "/audit?via=Bogus",
    "/audit?after=never",
    "/audit?operation_id=x",
    "/fleet/lab.gpu?state=Bogus",
    "/connections?type=Bogus",
]


@pytest.mark.parametrize("address", NONSENSE)
def test_it_says_that_it_did_not_understand_and_exports_nothing_instead(
    address: str, stage: Stage, victor: Client
) -> None:
    page = victor.get(address)
    assert page.status_code == 200
    [notice] = Page(page.content).page.all("div", role="alert")
    assert notice.text.startswith("The filter is not understood, so nothing is filtered by it.")
    path, _, query = address.partition("?")
    for kind in ("csv", "json"):
        refused = victor.get(f"{path}.{kind}?{query}")
        assert refused.status_code == 400
        assert "page:user:filter" in refused.content.decode() and "Content-Disposition" not in refused


def test_it_says_nothing_of_the_kind_about_filters_that_it_understood(stage: Stage, victor: Client) -> None:
    for address, *_ in NARROWED:
        assert "The filter is not understood" not in victor.get(address).content.decode(), address


def sortable(page: Page) -> dict[str, str]:
    """Head → address that sorts by it."""
    heads = [head for table in page.page.all("table") for head in table.all("th", scope="col")]
    return {head.text: head.all("a")[0].attrs["href"] for head in heads if head.all("a")}


@pytest.mark.usefixtures("health_once")
def test_most_pages_have_tables_to_sort(stage: Stage, ada: Client) -> None:
    assert sum(len(sortable(Page(ada.get(make(stage)).content))) for make in PAGES.values()) > 60


@pytest.mark.usefixtures("health_once")
@pytest.mark.parametrize("name", PAGES)
def test_it_sorts_every_table_by_each_head_in_both_directions(stage: Stage, ada: Client, name: str) -> None:
    factories.node(of=stage.pool, name="n0", capacity_bytes=None, reported_at=None)
    ada.post("/tokens", {"name": "one", "scopes": ["read"], "days": "7"})
    ada.post("/tokens", {"name": "two", "scopes": ["read"], "days": "30"})
    address = PAGES[name](stage)
    path = address.partition("?")[0]
    for head, query in sortable(Page(ada.get(address).content)).items():
        first = Page(ada.get(path + query).content)
        marked = [one.text for one in first.page.all("th") if one.attrs.get("aria-sort")]
        assert head in marked, (head, query)
        other = sortable(first)[head]
        assert other != query and ada.get(path + other).status_code == 200, head


def test_it_orders_the_rows_as_the_head_says(stage: Stage, victor: Client) -> None:
    factories.version(model="alpaca", version="v9")
    for address, column in (
        ("/models.json?sort={}version", "version"),
        ("/entries.json?sort={}pool", "pool"),
        ("/entries.json?sort={}state", "state"),
        ("/fleet/lab.gpu.json?sort={}name", "name"),
        ("/connections.json?sort={}name", "name"),
        ("/models/llama/versions/v1.json?table=manifest&msort={}path", "path"),
        ("/models/llama/versions/v1.json?table=manifest&msort={}size_bytes", "size_bytes"),
    ):
        up = [row[column] for row in rows_of(victor, address.format(""))]
        down = [row[column] for row in rows_of(victor, address.format("-"))]
        assert up == sorted(up) and down == sorted(down, reverse=True) and len(up) > 1, address


NO_ORDERS = ("nonsense", "-nonsense", "--name", "digest", "pk", "node__cluster__name")


@pytest.mark.parametrize("name", [name for name in TABLES if name not in ("search", "pool", "node", "version")])
def test_it_falls_back_to_its_own_order_when_the_address_asks_for_none(name: str, stage: Stage, victor: Client) -> None:
    path = PAGES[name](stage)
    path += "&" if "?" in path else "?"
    for table in TABLES[name]:
        own = f"{path}format=json&table={table}"
        usual = json.loads(victor.get(own).content)["rows"]
        for asked in NO_ORDERS:
            odd = victor.get(f"{own}&sort={asked}&osort={asked}&esort={asked}&csort={asked}")
            assert json.loads(odd.content)["rows"] == usual, (table, asked)
        assert victor.get(f"{own}&sort=%00x&osort=%00x&esort=%00x&csort=%00x").status_code == 400, table


ODD_PAGES = ["0", "-1", "99999999999999999999", "x", "²", "1.5", "", "%F0%9F%94%A5"]


@pytest.mark.parametrize("asked", ODD_PAGES)
def test_it_shows_some_page_whatever_number_it_is_asked_for(asked: str, stage: Stage, victor: Client) -> None:
    for parameter in ("page", "page_size"):
        response = victor.get(f"/entries?{parameter}={asked}")
        assert response.status_code == 200
        assert len(Page(response.content).table("entries")) == 4


@pytest.fixture
def many(stage: Stage) -> Stage:
    """Over a hundred operations, so that there are pages of them."""
    Operation.objects.bulk_create(
        Operation(kind="ModelRecheck", state="Succeeded", subject_type="version", subject_id=str(stage.llama.pk),
                  subject_name=f"llama v1 no {number:03}", started_by="beat")
        for number in range(104)
    )  # fmt: skip
    return stage


def query_of(address: str) -> dict[str, str]:
    return dict(parse_qsl(urlsplit(address).query))


def test_it_leads_through_all_pages_without_losing_the_filter(many: Stage, victor: Client) -> None:
    address, seen = "/operations?state=Succeeded&sort=operation&page_size=50", []
    while address:
        page = Page(victor.get(address).content)
        seen += [row[0] for row in page.table("operations")]
        assert query_of(address)["state"] == "Succeeded" and query_of(address)["sort"] == "operation"
        further = page.page.all("a", rel="next")
        address = f"/operations{further[0].attrs['href']}" if further else ""
    assert len(seen) == 104 and seen == sorted(seen) and len(set(seen)) == 104
    back = page.page.one("a", rel="prev").attrs["href"]
    assert query_of(back) == {"state": "Succeeded", "sort": "operation", "page_size": "50", "page": "2"}


def test_it_starts_over_at_page_one_when_the_order_changes(many: Stage, victor: Client) -> None:
    page = Page(victor.get("/operations?page=2&page_size=50&kind=ModelRecheck").content)
    for head, query in sortable(page).items():
        assert "page" not in query_of(query) and query_of(query)["page_size"] == "50", head
        assert query_of(query)["kind"] == "ModelRecheck", head


def test_it_exports_from_a_page_what_its_filter_leaves_not_what_the_page_shows(many: Stage, victor: Client) -> None:
    page = Page(victor.get("/operations?page=2&kind=ModelRecheck").content)
    [link] = [one for one in page.page.all("a") if one.text == "JSON"]
    document = json.loads(victor.get(f"/operations{link.attrs['href']}").content)
    assert len(document["rows"]) == 104
    assert document["filters"] == {"kind": ["ModelRecheck"]}


def test_it_keeps_the_order_and_unseen_filters_when_a_filter_is_chosen(stage: Stage, victor: Client) -> None:
    page = Page(victor.get("/entries?node=n1&sort=-state&page_size=100&page=3&model=llama").content)
    [form] = page.page.all("form", data_auto="")
    hidden = {one.attrs["name"]: one.attrs["value"] for one in form.all("input", type="hidden")}
    assert hidden == {"node": "n1", "sort": "-state", "page_size": "100"}
    assert form.one("input", name="model").attrs["value"] == "llama"


def test_it_shows_in_the_form_what_the_address_asks_for(stage: Stage, victor: Client) -> None:
    for address, chosen in (
        ("/entries?state=Failed&pool=lab.gpu", {"state": "Failed", "pool": "lab.gpu"}),
        ("/models?state=Available&drift=Unchecked", {"state": "Available", "drift": "Unchecked"}),
        ("/operations?kind=PinWarm&state=Running", {"kind": "PinWarm", "state": "Running"}),
        ("/audit?via=Browser", {"via": "Browser"}),
        ("/fleet/lab.gpu?state=Ready", {"state": "Ready"}),
        ("/pins?pool=lab.gpu", {"pool": "lab.gpu"}),
    ):
        [form] = Page(victor.get(address).content).page.all("form", data_auto="")
        for name, value in chosen.items():
            [option] = form.one("select", name=name).all("option", selected="")
            assert option.text == value, address


def test_it_offers_every_state_that_a_row_can_have(stage: Stage, victor: Client) -> None:
    options = [one.text for one in Page(victor.get("/entries").content).page.one("select", name="state").all("option")]
    assert set(options) == {"all", "Unknown", *(state.value for state in EntryState)}
    for state in EntryState:
        CacheEntry.objects.filter(pk=stage.failed.pk).update(state=state)
        listed = [row["state"] for row in rows_of(victor, f"/entries.json?state={state}")]
        assert state in listed and set(listed) == {state}
