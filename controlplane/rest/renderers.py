"""Lists as CSV: the same rows, flat, safe to open in a spreadsheet."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping
from typing import Any

from rest_framework import serializers
from rest_framework.renderers import BaseRenderer

# A spreadsheet runs a text that starts like this as a formula.
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


class CsvRenderer(BaseRenderer):
    """One line for each item, nested objects as ``outer.inner`` columns, lists as JSON, the header always there."""

    media_type = "text/csv"
    format = "csv"
    charset = "utf-8"

    def render(
        self, data: Any, accepted_media_type: str | None = None, renderer_context: Mapping[str, Any] | None = None
    ) -> bytes:
        view = (renderer_context or {})["view"]
        columns = list(columns_of(view.get_serializer_class()()))
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\r\n")
        writer.writerow(columns)
        for item in data["items"]:
            writer.writerow([cell(_dig(item, column)) for column in columns])
        return out.getvalue().encode()


def columns_of(serializer: serializers.BaseSerializer[Any], prefix: str = "") -> Iterator[str]:
    """The column names of a serializer, from its fields, so that an empty list has the same header."""
    for name, field in getattr(serializer, "fields", {}).items():
        if isinstance(field, serializers.Serializer):
            yield from columns_of(field, f"{prefix}{name}.")
        elif parts := getattr(field, "columns", ()):
            yield from (f"{prefix}{name}.{part}" for part in parts)
        else:
            yield f"{prefix}{name}"


def cell(value: Any) -> str | int | float:
    """One cell: nothing for null, true/false, JSON for lists and objects, text that cannot run as a formula."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return value
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text


def _dig(item: Any, column: str) -> Any:
    for part in column.split("."):
        item = item.get(part) if isinstance(item, Mapping) else None
    return item
