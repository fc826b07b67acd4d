"""A table of more rows than anybody counts: pages by key, each read through an index however deep it lies.

``?after=`` and ``?before=`` (with the table's prefix) hold the place of a page's last or first row. Rows that come and
go shift no page. Only columns whose order has an index should have one: the field descending with unknown values last,
then the key descending.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.core.exceptions import ValidationError
from django.db.models import F, Q, QuerySet
from django.http import HttpRequest

from controlplane.web.formats import plural
from controlplane.web.tables import PAGE_SIZES, Column, Table


class KeysetPage:
    """``rows`` in their order; whether there are some on either side of them."""

    def __init__(self, rows: list[Any], *, earlier: bool, later: bool) -> None:
        self.object_list, self.earlier, self.later = rows, earlier, later


class KeysetTable(Table):
    """``total`` is how many rows there are, as somebody else counted them; None where nobody did."""

    def __init__(
        self, request: HttpRequest, rows: QuerySet[Any], columns: Sequence[Column], *, total: int | None, **options: Any
    ) -> None:
        super().__init__(request, rows, columns, **options)
        self.total = total

    @property
    def _order(self) -> tuple[Column, bool]:
        column = self._sortable(self.sort)
        assert column is not None, "a table by key has a default order"
        return column, self.sort.startswith("-")

    @property
    def page(self) -> Any:
        if not hasattr(self, "_shown"):
            self._shown = self._read()
        return self._shown

    def _read(self) -> KeysetPage:
        size = self.size
        after, before = self._place("after"), self._place("before")
        if before is not None:
            rows = self._beyond(before, backwards=True, most=size + 1)
            earlier = len(rows) > size
            return KeysetPage(rows[:size][::-1], earlier=earlier, later=True)
        rows = self._beyond(after, backwards=False, most=size + 1)
        return KeysetPage(rows[:size], earlier=after is not None, later=len(rows) > size)

    @property
    def size(self) -> int:
        wanted = self.request.GET.get(f"{self.prefix}page_size", "")
        return next((allowed for allowed in PAGE_SIZES if str(allowed) == wanted), PAGE_SIZES[0])

    def _beyond(self, place: tuple[Any, str] | None, *, backwards: bool, most: int) -> list[Any]:
        """Rows on one side of ``place``, nearest first: those with a value and those without are read by themselves,
        so that each statement is a stretch of an index."""
        found: list[Any] = []
        for empty in (True, False) if backwards else (False, True):
            if place is not None and (place[0] is None) != empty and empty == backwards:
                continue  # wholly on the other side
            within = place if place is not None and (place[0] is None) == empty else None
            if len(found) < most:
                found += self._stretch(within, empty=empty, backwards=backwards)[: most - len(found)]
        return found

    def _stretch(self, place: tuple[Any, str] | None, *, empty: bool, backwards: bool) -> QuerySet[Any]:
        column, down = self._order
        rows: Any = self.rows
        field = column.order
        down = down != backwards
        side = "lt" if down else "gt"
        if rows.model._meta.get_field(field).null:
            rows = rows.filter(**{f"{field}__isnull": empty})
        elif empty:
            return rows.none()  # type: ignore[no-any-return]
        if place is not None:
            value, key = place
            if empty:
                rows = rows.filter(**{f"pk__{side}": key})
            else:
                rows = rows.filter(
                    Q(**{f"{field}__{side}": value}) | Q(**{f"pk__{side}": key}), **{f"{field}__{side}e": value}
                )
        order = F(field).desc(nulls_last=True) if down else F(field).asc(nulls_first=True)
        return rows.order_by(*([] if empty else [order]), "-pk" if down else "pk")  # type: ignore[no-any-return]

    def _place(self, name: str) -> tuple[Any, str] | None:
        """The row that the address names; None for one that it does not, or that nobody could have given out."""
        text, _, key = self.request.GET.get(f"{self.prefix}{name}", "").rpartition("~")
        meta = self.rows.model._meta  # type: ignore[union-attr]
        try:
            meta.pk.to_python(key or "-")
            value = meta.get_field(self._order[0].order).to_python(text) if text else None
        except (ValidationError, ValueError, TypeError, OverflowError):
            return None
        return None if isinstance(value, datetime) and value.tzinfo is None else (value, key)

    def _named(self, row: Any) -> str:
        value = getattr(row, self._order[0].order)
        return f"{value.isoformat() if isinstance(value, datetime) else '' if value is None else repr(value)}~{row.pk}"

    def _query(self, **changes: str) -> str:
        moves = {f"{self.prefix}after": "", f"{self.prefix}before": ""}
        return super()._query(**(changes if moves.keys() & changes.keys() else moves | changes))

    @property
    def previous_query(self) -> str:
        return self._moved("before", 0) if self.page.earlier else ""

    @property
    def next_query(self) -> str:
        return self._moved("after", -1) if self.page.later else ""

    def _moved(self, name: str, index: int) -> str:
        rows = self.page.object_list
        other = "after" if name == "before" else "before"
        return self._query(
            **{f"{self.prefix}{name}": self._named(rows[index]) if rows else "", f"{self.prefix}{other}": ""}
        )

    @property
    def extent(self) -> str:
        shown = len(self.page.object_list)
        if self.total is None or not (self.page.earlier or self.page.later):
            return plural(shown, "row")
        return f"{shown} of {max(self.total, shown):,}"
