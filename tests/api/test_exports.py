"""CSV and JSON of every list: the same rows in the same columns, whatever the texts hold."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest
from rest_framework import serializers

from caches.models import CacheEntry
from controlplane.rest.renderers import cell, columns_of
from tests import factories
from tests.api.conftest import Api
from tests.api.rows import filled, lists, populate


def table(api: Api, path: str) -> tuple[list[str], list[list[str]]]:
    answer = api.get(path)
    assert (answer.status_code, answer["Content-Type"]) == (200, "text/csv; charset=utf-8"), answer.content
    head, *lines = csv.reader(io.StringIO(answer.content.decode(), newline=""))
    assert {len(line) for line in lines} <= {len(head)}
    return head, lines


def flat(item: Any, prefix: str = "") -> dict[str, Any]:
    """An item of a list as its columns."""
    made: dict[str, Any] = {}
    for name, value in item.items():
        if isinstance(value, dict):
            made |= flat(value, f"{prefix}{name}.")
        made[f"{prefix}{name}"] = value
    return made


@pytest.mark.parametrize("path", sorted(lists()))
def test_it_exports_the_rows_that_it_lists(admin_api: Api, path: str, populated: dict[str, str]) -> None:
    place = filled(path, populated)
    admin_api.get("me")  # the first call of a minute marks the token as used
    items = admin_api.get(place).json()["items"]

    head, lines = table(admin_api, f"{place}.csv")

    assert len(set(head)) == len(head) and len(lines) == len(items) >= 3
    for line, item in zip(lines, items, strict=True):
        shown = flat(item)
        for column, text in zip(head, line, strict=True):
            value = shown.get(column)
            if isinstance(value, list | dict):
                assert json.loads(text.removeprefix("'")) == value, column
            else:
                assert text == str(cell(value)), column
    # Nothing is left out: what has no column of its own is an object, or has none of its fields.
    missing = {name for item in items for name in flat(item)} - set(head)
    within = {name for name in missing for column in head if f"{name}.".startswith(f"{column}.")}
    outside = {name for name in missing for column in head if column.startswith(f"{name}.")}
    assert missing <= within | outside


@pytest.mark.parametrize("path", sorted(path for path in lists() if "{" not in path))
def test_it_gives_the_head_of_an_empty_export(admin_api: Api, path: str) -> None:
    empty, lines = table(admin_api, f"{path}.csv")
    if path not in ("tokens", "audit-events"):  # whoever asks has a token
        assert lines == []
    populate()

    assert table(admin_api, f"{path}.csv")[0] == empty


def test_it_exports_page_by_page_with_the_same_filters_and_order(admin_api: Api, populated: dict[str, str]) -> None:
    path, names = "nodes.csv?page_size=1&ordering=-name&state=Ready&state=NotReady&state=Cordoned", []
    while path:
        answer = admin_api.get(path)
        head, *lines = csv.reader(io.StringIO(answer.content.decode()))
        names += [dict(zip(head, line, strict=True))["name"] for line in lines]
        link = answer.get("Link", "")
        assert not link or "/api/v1/nodes.csv?" in link
        path = link.partition("<http://testserver")[2].partition(">")[0]

    assert names == ["nc", "nb", "na"]


NASTY = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", 'quote"', "comma,", "line\nfeed", "größe-日本-🔥", "", " "]


def test_it_carries_any_text_unharmed(viewer_api: Api) -> None:
    node = factories.node()
    for text in NASTY:
        factories.entry(on=node, message=text)

    head, lines = table(viewer_api, "cache-entries.csv")

    shown = {dict(zip(head, line, strict=True))["message"] for line in lines}
    assert shown == {f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") and text else text for text in NASTY}
    items = viewer_api.get("cache-entries").json()["items"]
    assert {item["message"] for item in items} == set(CacheEntry.objects.values_list("message", flat=True))


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, ""),
        (True, "true"),
        (False, "false"),
        (0, 0),
        (-1, -1),
        (-0.5, -0.5),
        (2**60, 2**60),
        ("-1", "'-1"),
        ([], "[]"),
        (["=1"], '["=1"]'),
        ({"a": None}, '{"a": null}'),
    ],
)
def test_it_writes_a_cell_that_cannot_run(value: Any, shown: Any) -> None:
    assert cell(value) == shown


def test_it_names_columns_by_the_path_to_the_field() -> None:
    class Inner(serializers.Serializer[Any]):
        b = serializers.CharField()

    class Outer(serializers.Serializer[Any]):
        a = serializers.CharField()
        one = Inner()
        several = Inner(many=True)

    assert list(columns_of(Outer())) == ["a", "one.b", "several"]
