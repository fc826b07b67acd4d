"""Page, CSV and JSON of a table are one list of rows, for every table that there is."""

from __future__ import annotations

import csv
import io
import json
import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from caches.models import EntryChange, ModelVersion
from controlplane.serving.models import Variant
from controlplane.web import tables
from routing.domain.dialects import Dialect, EngineReading
from routing.domain.engine_figures import EngineFigures
from routing.models import RoutingWindow
from tests import factories
from tests.factories import MIB
from tests.plugins.standing import standing
from tests.views.addresses import PAGES, TABLES
from tests.views.conftest import Stage, available, staged
from tests.views.reading import Page

SPELT_OUT = {"effects", "classes", "kinds"}  # a page has words, an export has the names that REST has
WITH_TABLES = [page for page, names in TABLES.items() if names]


def exported(client: Client, address: str, table: str) -> tuple[list[dict[str, str]], dict[str, Any]]:
    """The rows as CSV has them, and the JSON document."""
    base = f"{address}{'&' if '?' in address else '?'}table={table}&format="
    as_csv = csv.DictReader(io.StringIO(client.get(base + "csv").content.decode()))
    return list(as_csv), json.loads(client.get(base + "json").content)


def plain(value: Any) -> str:
    """A JSON value as CSV writes it."""
    if isinstance(value, list | dict):
        return json.dumps(value, sort_keys=True)
    return "" if value is None else str(value)


@standing
def furnished() -> Stage:
    """A stage that has rows everywhere, but for tokens."""
    stage = staged()
    EntryChange.objects.create(entry=stage.ready, at=timezone.now(), old_state="", new_state="Ready")
    ModelVersion.objects.filter(pk=stage.llama.pk).update(image=stage.image)
    factories.entry(on=stage.nodes[0], of=stage.image.artifact)
    for _ in range(2):  # with the stage's own they are a burst
        factories.launch(on=stage.nodes[0], endpoint=stage.endpoint, endpoint_name=stage.endpoint.full_name)
    said = EngineFigures()
    said.read(EngineReading(dialect=Dialect.VLLM, running=2, waiting=1, kv_usage=0.5), None)
    now = timezone.now() - timedelta(minutes=2)
    figures = {"requests": 1, "refusals": {"routing:queue:full": 1}, "engines": {"pod-uid-a": said.to_json()}}
    RoutingWindow.objects.create(variant=Variant.objects.get(), seconds=10, at=now, figures=figures)
    return stage


@pytest.fixture
def holder(ada: Client) -> Client:
    """Ada, who has a token."""
    ada.post("/tokens", {"name": "ci", "scopes": ["read"], "days": "7"})
    return ada


@pytest.mark.usefixtures("health_once")
@pytest.mark.parametrize("page", WITH_TABLES)
def test_it_exports_the_rows_that_the_page_shows(page: str, furnished: Stage, holder: Client) -> None:
    address = PAGES[page](furnished)
    drawn = Page(holder.get(address).content)
    for table in TABLES[page]:
        check_export(table, drawn.table(table), *exported(holder, address, table))


def check_export(table: str, shown: list[list[str]], rows: list[dict[str, str]], document: dict[str, Any]) -> None:
    """Page, CSV and JSON have the same rows, at least one."""
    assert document["table"] == table and document["complete"] is True and document["time_zone"] == "UTC"
    assert len(shown) == len(rows) == len(document["rows"]) > 0, table
    for cells, line in zip(rows, document["rows"], strict=True):
        assert {name: plain(value) for name, value in line.items()} == cells
    first = next(iter(document["rows"][0]))
    for seen, line in zip(shown, document["rows"], strict=True):
        value = line[first]
        if isinstance(value, str) and not re.match(r"\d{4}-", value):
            assert table in SPELT_OUT or value in seen[0] or seen[0] in value, (seen, value)


@pytest.mark.usefixtures("health_once")
@pytest.mark.parametrize("page", WITH_TABLES)
def test_it_links_each_table_to_its_own_exports(page: str, furnished: Stage, holder: Client) -> None:
    address = PAGES[page](furnished)
    drawn = Page(holder.get(address).content).page
    links = [one.attrs["href"] for one in drawn.all("a") if one.text in ("CSV", "JSON")]
    for table in TABLES[page]:
        mine = [link for link in links if link.endswith(f"table={table}")]
        assert len(mine) == 2, links
        for link, kind in zip(mine, ("csv", "json"), strict=True):
            response = holder.get(address.partition("?")[0] + link)
            named = re.fullmatch(rf'attachment; filename="hearth-{table}-\d{{8}}T\d{{6}}Z\.{kind}"',
                                 response["Content-Disposition"])  # fmt: skip
            assert named, response["Content-Disposition"]


def test_it_writes_times_bytes_and_unknowns_as_data(stage: Stage, victor: Client) -> None:
    _, document = exported(victor, "/entries?node=n2", "entries")
    [row] = document["rows"]
    assert row["bytes_done"] == 25 * 1024 * 1024
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", row["since"])
    assert row["verified_at"] is None and row["last_used_at"] is None
    _, document = exported(victor, "/audit", "audit")
    [pinned] = [row for row in document["rows"] if row["after"] == {"priority": 500}]
    assert pinned["before"] is None


def test_it_says_when_an_export_is_not_all(stage: Stage, victor: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    assert victor.get("/entries.csv")["X-Hearth-Complete"] == "yes"
    monkeypatch.setattr(tables, "EXPORT_LIMIT", 4)
    assert json.loads(victor.get("/entries.json").content)["complete"] is True
    monkeypatch.setattr(tables, "EXPORT_LIMIT", 3)
    response = victor.get("/entries.json")
    document = json.loads(response.content)
    assert document["complete"] is False and len(document["rows"]) == 3
    assert response["X-Hearth-Complete"] == "no: the first 3 rows"


def test_it_answers_an_unknown_format_with_the_page(stage: Stage, victor: Client) -> None:
    for query in ("format=xml", "format=", "format=CSV", "table=entries"):
        assert "text/html" in victor.get(f"/entries?{query}")["Content-Type"], query
    assert json.loads(victor.get("/entries?format=json&table=bogus").content)["table"] == "entries"


def test_it_shows_a_version_whose_name_ends_like_an_export(stage: Stage, victor: Client) -> None:
    available("llama", "v1.json", 10 * MIB)
    available("llama", "v2.csv", 20 * MIB)
    for label in ("v1.json", "v2.csv"):
        response = victor.get(f"/models/llama/versions/{label}")
        assert "text/html" in response["Content-Type"]
        assert f"llama {label}" in Page(response.content).title
    assert json.loads(victor.get("/models/llama/versions/v1.json?format=json").content)["table"] == "warm"
    assert json.loads(victor.get("/models/llama/versions/v1.json.json").content)["table"] == "warm"


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r", "\n"])
def test_it_gives_a_spreadsheet_no_formula(start: str) -> None:
    assert tables._csv_value(f"{start}1+1") == f"'{start}1+1"
    assert tables._csv_value(-5) == -5, "a number is no formula"
    assert tables._csv_value(f"1{start}") == f"1{start}"
