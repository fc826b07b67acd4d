"""One table, three forms: HTML with sorting and paging, CSV, and JSON of exactly the filtered rows.

A Column says what a row's value is (for exports and sorting) and, where it differs, how it looks. Rows are a queryset
or a list. The address holds everything: ``?sort=-bytes&page=2``; the exports live at the same address with ``.csv`` or
``.json`` (or ``?format=``).
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.core.paginator import Page, Paginator
from django.db.models import F, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from controlplane.web.cells import NOTHING
from controlplane.web.formats import iso_text, plural

PAGE_SIZES = (50, 100, 200)
EXPORT_LIMIT = 50_000
FORMATS = ("csv", "json")


@dataclass(frozen=True, slots=True)
class Column:
    """``value`` is plain data; ``html`` its look. ``order`` is a queryset field, or "" for not sortable."""

    name: str
    label: str
    value: Callable[[Any], Any]
    html: Callable[[Any], Any] | None = None
    order: str = ""
    numeric: bool = False
    heading: bool = False  # the cell that names the row
    shown: bool = True  # otherwise exports alone have it

    def cell(self, row: Any) -> Any:
        shown = self.html(row) if self.html else self.value(row)
        return NOTHING if shown is None or shown == "" else shown


@dataclass(frozen=True, slots=True)
class Head:
    column: Column
    query: str  # the address that sorts by it, "" when it cannot
    direction: str  # "", "ascending" or "descending"


class Table:
    """``actions`` renders the last, unexported cell; ``key`` is the DOM id that keeps a row itself over refreshes."""

    def __init__(
        self,
        request: HttpRequest,
        rows: QuerySet[Any] | Sequence[Any],
        columns: Sequence[Column],
        *,
        name: str,
        caption: str,
        key: Callable[[Any], str] = lambda row: str(row.pk),
        url: Callable[[Any], str] | None = None,
        actions: Callable[[Any], Any] | None = None,
        default_sort: str = "",
        prefix: str = "",
    ) -> None:
        self.request, self.columns, self.name, self.caption = request, columns, name, caption
        self.key, self.url, self.actions, self.prefix = key, url, actions, prefix
        asked = request.GET.get(f"{prefix}sort", "")
        self.sort = asked if self._sortable(asked) else default_sort
        self.rows = self._sorted(rows)

    def _sortable(self, sort: str) -> Column | None:
        """The column that ``sort`` names, None when an address asks for what is no order of this table."""
        return next((one for one in self.columns if one.name == sort.removeprefix("-") and one.order), None)

    def _sorted(self, rows: QuerySet[Any] | Sequence[Any]) -> QuerySet[Any] | Sequence[Any]:
        column, down = self._sortable(self.sort), self.sort.startswith("-")
        if column is None:
            return rows
        if isinstance(rows, QuerySet):
            field = F(column.order)
            return rows.order_by(field.desc(nulls_last=True) if down else field.asc(nulls_last=True), "pk")
        known = [row for row in rows if column.value(row) is not None]
        unknown = [row for row in rows if column.value(row) is None]
        return [*sorted(known, key=column.value, reverse=down), *unknown]

    @property
    def heads(self) -> list[Head]:
        shown = [column for column in self.columns if column.shown]
        return [Head(column, self._sort_query(column), self._direction(column)) for column in shown]

    def _direction(self, column: Column) -> str:
        if self.sort.removeprefix("-") != column.name or not column.order:
            return ""
        return "descending" if self.sort.startswith("-") else "ascending"

    def _sort_query(self, column: Column) -> str:
        if not column.order:
            return ""
        first_down = column.numeric != (self._direction(column) != "")
        down = self._direction(column) == "ascending" if self._direction(column) else first_down
        return self._query(
            **{f"{self.prefix}sort": f"-{column.name}" if down else column.name, f"{self.prefix}page": ""}
        )

    def _query(self, **changes: str) -> str:
        query = self.request.GET.copy()
        query.pop("format", None)
        for name, value in changes.items():
            query.pop(name, None)
            if value:
                query[name] = value
        return f"?{query.urlencode()}"

    @property
    def has_actions(self) -> bool:
        """Templates call what they look up, so they ask here."""
        return self.actions is not None

    @property
    def page(self) -> Page[Any]:
        if not hasattr(self, "_page"):
            wanted = self.request.GET.get(f"{self.prefix}page_size", "")
            size = next((allowed for allowed in PAGE_SIZES if str(allowed) == wanted), PAGE_SIZES[0])
            self._page = Paginator(self.rows, size).get_page(self.request.GET.get(f"{self.prefix}page"))
        return self._page

    @property
    def extent(self) -> str:
        """Which of the rows are shown, in words."""
        count = self.page.paginator.count
        if self.page.paginator.num_pages > 1:
            return f"{self.page.start_index()}\N{EN DASH}{self.page.end_index()} of {count}"
        return plural(count, "row")

    @property
    def previous_query(self) -> str:
        return self._query(**{f"{self.prefix}page": str(self.page.number - 1)}) if self.page.has_previous() else ""

    @property
    def next_query(self) -> str:
        return self._query(**{f"{self.prefix}page": str(self.page.number + 1)}) if self.page.has_next() else ""

    @property
    def csv_query(self) -> str:
        return self._query(format="csv", table=self.name)

    @property
    def json_query(self) -> str:
        return self._query(format="json", table=self.name)

    @property
    def body(self) -> list[dict[str, Any]]:
        return [
            {
                "key": f"{self.name}-{self.key(row)}",
                "url": self.url(row) if self.url else "",
                "cells": [(column, column.cell(row)) for column in self.columns if column.shown],
                "actions": self.actions(row) if self.actions else "",
            }
            for row in self.page.object_list
        ]


def wanted_format(request: HttpRequest, suffix: str = "") -> str:
    """The export asked for by the address or ``?format=``, or ""."""
    asked = suffix.removeprefix(".") or request.GET.get("format", "")
    return asked if asked in FORMATS else ""


def export(request: HttpRequest, tables: Sequence[Table], suffix: str = "") -> HttpResponse | None:
    """The answer when an export is asked for: of the table named by ``?table=``, otherwise of the first."""
    asked = wanted_format(request, suffix)
    if not asked:
        return None
    table = next((one for one in tables if one.name == request.GET.get("table")), tables[0])
    rows = list(table.rows[: EXPORT_LIMIT + 1])
    complete, rows = len(rows) <= EXPORT_LIMIT, rows[:EXPORT_LIMIT]
    response = _csv(table, rows) if asked == "csv" else _json(request, table, rows, complete=complete)
    response["X-Hearth-Complete"] = "yes" if complete else f"no: the first {EXPORT_LIMIT} rows"
    stamp = f"{timezone.now():%Y%m%dT%H%M%SZ}"
    response["Content-Disposition"] = f'attachment; filename="hearth-{table.name}-{stamp}.{asked}"'
    response["Cache-Control"] = "private, no-store"
    return response


def _csv(table: Table, rows: Iterable[Any]) -> HttpResponse:
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow([column.name for column in table.columns])
    writer.writerows([_csv_value(column.value(row)) for column in table.columns] for row in rows)
    return HttpResponse(out.getvalue(), content_type="text/csv; charset=utf-8")


def _csv_value(value: Any) -> Any:
    value = _plain(value)
    if isinstance(value, list | dict):
        return json.dumps(value, sort_keys=True)
    # A spreadsheet runs what starts like a formula; a quote makes it text.
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r", "\n") else value


def _json(request: HttpRequest, table: Table, rows: Iterable[Any], *, complete: bool) -> HttpResponse:
    filters = {name: request.GET.getlist(name) for name in request.GET if name not in ("format", "table", "page")}
    document = {
        "table": table.name,
        "generated_at": iso_text(timezone.now()),
        "time_zone": "UTC",
        "filters": filters,
        "complete": complete,
        "rows": [{column.name: _plain(column.value(row)) for column in table.columns} for row in rows],
    }
    return HttpResponse(json.dumps(document, indent=1), content_type="application/json")


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return iso_text(value)
    if value is None or isinstance(value, bool | int | float | list | dict):
        return value
    return list(value) if isinstance(value, tuple | set | frozenset) else str(value)
