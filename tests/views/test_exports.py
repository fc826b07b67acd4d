"""CSV and JSON of exactly the filtered rows, from the same address."""

from __future__ import annotations

import csv
import io
import json

import pytest
from django.test import Client

from tests import factories
from tests.views.conftest import Stage

TABLES = ["", "fleet", "fleet/lab.gpu", "entries", "models", "models/llama", "models/llama/versions/v1", "pins",
          "operations", "audit", "tokens", "connections", "images"]  # fmt: skip


@pytest.mark.parametrize("address", TABLES)
def test_it_exports_each_table_as_csv_and_json(address: str, stage: Stage, victor: Client) -> None:
    as_csv = victor.get(f"/{address or 'overview'}.csv")
    as_json = victor.get(f"/{address or 'overview'}.json")
    assert as_csv["Content-Type"] == "text/csv; charset=utf-8"
    assert ".csv" in as_csv["Content-Disposition"]
    rows = list(csv.DictReader(io.StringIO(as_csv.content.decode())))
    document = json.loads(as_json.content)
    assert len(rows) == len(document["rows"])
    if rows:
        assert list(rows[0]) == list(document["rows"][0])


def test_it_exports_the_filtered_rows_with_exact_bytes_and_iso_times(stage: Stage, victor: Client) -> None:
    document = json.loads(victor.get("/entries.json?state=Failed").content)
    assert document["filters"] == {"state": ["Failed"]}
    [row] = document["rows"]
    assert (row["node"], row["state"], row["reason"]) == ("n3", "Failed", "AccessDenied")
    assert row["since"].endswith("Z") and "T" in row["since"]
    assert json.loads(victor.get("/entries?format=json&state=Failed").content)["rows"] == document["rows"]


def test_it_exports_all_pages(stage: Stage, victor: Client) -> None:
    for _ in range(60):
        factories.entry(on=factories.node(of=stage.pool))
    assert len(json.loads(victor.get("/entries.json").content)["rows"]) == 64
    assert "50 of 64" in victor.get("/entries").content.decode()
    assert "64 of 64" in victor.get("/entries?page=2").content.decode()


def test_it_exports_the_table_that_was_asked_for(stage: Stage, victor: Client) -> None:
    address = f"/nodes/{stage.nodes[0].id}"
    forecast = json.loads(victor.get(f"{address}?format=json&table=forecast").content)
    assert forecast["table"] == "forecast"
    assert {row["artifact"] for row in forecast["rows"]} == {"llama v1", "qwen v1"}
    assert json.loads(victor.get(f"{address}.json").content)["table"] == "entries"


def test_it_keeps_the_order_of_the_page(stage: Stage, victor: Client) -> None:
    rows = json.loads(victor.get("/entries.json?sort=-node").content)["rows"]
    assert [row["node"] for row in rows] == ["n3", "n2", "n1", "n1"]


def test_it_defuses_formulas_in_csv(victor: Client) -> None:
    factories.version(model="safe", version="=1+1")
    body = victor.get("/models/safe.csv").content.decode()
    assert ",=1+1" not in body and "\n=1+1" not in body
    assert "'=1+1" in body


def test_it_exports_only_what_the_person_may_see(stage: Stage, client: Client) -> None:
    factories.entry(on=factories.node(of=factories.pool(of=stage.pool.cluster, name="secret"), name="hidden"))
    client.force_login(factories.user(username="paula", role="Viewer", target="lab.gpu"))
    assert "hidden" not in client.get("/entries.csv").content.decode()


def test_it_sends_strangers_to_sign_in(client: Client, db: None) -> None:
    assert client.get("/entries.csv").status_code == 302
