"""Pages by key, not by number: rows that come and go never shift what the next page shows."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from django.core import signing
from django.db.models import F, Model, Q, QuerySet
from rest_framework.pagination import BasePagination
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from controlplane.errors import FieldError, Invalid

LARGEST_PAGE = 500
DEFAULT_PAGE = 100
PARAMETERS = ("page_size", "cursor", "ordering")


class Paging(BasePagination):
    """``{"items": […], "next": cursor or null}``. Views give ``ordering_fields`` and ``ordering``.

    The fields are names as clients see them, each with the lookup or expression that sorts rows as the name shows them.
    """

    next_cursor: str | None = None
    request: Request

    def paginate_queryset(  # type: ignore[override]  # lists are querysets here
        self, queryset: QuerySet[Any], request: Request, view: APIView | None = None
    ) -> list[Any] | None:
        self.request = request
        size = page_size(request)
        ordering = ordering_of(request, view.ordering_fields, view.ordering)  # type: ignore[union-attr]
        tie = getattr(view, "tie_breaker", "pk")
        rows = ordered(queryset, ordering, view.ordering_fields, tie)  # type: ignore[union-attr]
        # A cursor leads on in the list that gave it out, whichever filters and format that had.
        made_by = type(view).__qualname__
        if cursor := request.query_params.get("cursor"):
            rows = rows.filter(_after(cursor, made_by, ordering, tie, known=_always_known(queryset, ordering, view)))
        found: list[Any] = list(rows[: size + 1])
        if len(found) > size:
            found.pop()
            self.next_cursor = _cursor(found[-1], made_by, ordering, tie)
        return found

    def get_paginated_response(self, data: Any) -> Response:
        response = Response({"items": data, "next": self.next_cursor})
        if self.next_cursor:
            query = self.request.query_params.copy()
            query["cursor"] = self.next_cursor
            response["Link"] = f'<{self.request.build_absolute_uri(self.request.path)}?{query.urlencode()}>; rel="next"'
        return response

    def get_paginated_response_schema(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "type": "object",
            "required": ["items", "next"],
            "properties": {
                "items": {"type": "array", "items": schema.get("items", schema)},
                "next": {"type": "string", "nullable": True, "description": "Cursor of the next page; null at the end"},
            },
        }

    def get_schema_operation_parameters(self, view: Any) -> list[dict[str, Any]]:
        choices = [sign + name for name in view.ordering_fields for sign in ("", "-")]
        sizes = {"type": "integer", "minimum": 1, "maximum": LARGEST_PAGE, "default": DEFAULT_PAGE}
        return [
            {"name": "page_size", "in": "query", "schema": sizes, "description": "Rows on a page"},
            {"name": "cursor", "in": "query", "schema": {"type": "string"}, "description": "`next` of the last page"},
            {
                "name": "ordering",
                "in": "query",
                "schema": {"type": "string", "enum": choices, "default": view.ordering},
                "description": "Field to sort by, with - in front to turn it round",
            },
        ]


def page_size(request: Request) -> int:
    """``?page_size=``, 1 to 500."""
    text = request.query_params.get("page_size", str(DEFAULT_PAGE))
    size = int(text) if text.isascii() and text.isdigit() and len(text) <= 3 else 0
    if not 1 <= size <= LARGEST_PAGE:
        raise _wrong("page_size", f"Must be a whole number between 1 and {LARGEST_PAGE}.")
    return size


def ordering_of(request: Request, fields: Mapping[str, Any], default: str) -> str:
    """``?ordering=name`` or ``-name``."""
    ordering = request.query_params.get("ordering") or default
    if ordering.removeprefix("-") not in fields:
        raise _wrong("ordering", f"Must be one of {', '.join(fields)}, with - in front to turn it round.")
    return ordering


def ordered(queryset: QuerySet[Any], ordering: str, fields: Mapping[str, Any], tie: str = "pk") -> QuerySet[Any]:
    """Rows in a total order: by the field (unknown values last), then by the unique field ``tie``."""
    lookup = fields[ordering.removeprefix("-")]
    queryset = queryset.annotate(_order=F(lookup) if isinstance(lookup, str) else lookup)
    if ordering.startswith("-"):
        return queryset.order_by(F("_order").desc(nulls_last=True), f"-{tie}")
    return queryset.order_by(F("_order").asc(nulls_last=True), tie)


def _cursor(row: Model, made_by: str, ordering: str, tie: str) -> str:
    value: Any = row._order  # type: ignore[attr-defined]  # annotated by ordered()
    if isinstance(value, datetime):
        value = value.isoformat()
    elif isinstance(value, UUID):
        value = str(value)
    return signing.dumps([ordering, value, str(getattr(row, tie))], salt=f"paging.{made_by}", compress=True)


def _always_known(queryset: QuerySet[Any], ordering: str, view: APIView | None) -> bool:
    """Whether what rows are sorted by is a column of theirs that is never null."""
    lookup = view.ordering_fields[ordering.removeprefix("-")]  # type: ignore[union-attr]
    fields = {field.name: field for field in queryset.model._meta.concrete_fields}
    return isinstance(lookup, str) and lookup in fields and not fields[lookup].null


def _after(cursor: str, made_by: str, ordering: str, tie: str, *, known: bool) -> Q:
    """Rows beyond the cursor's. Where the value is ``known`` of every row they are one stretch of an index."""
    try:
        made_for, value, key = signing.loads(cursor, salt=f"paging.{made_by}")
    except (signing.BadSignature, ValueError, TypeError):
        raise _wrong("cursor", "Is not one that Hearth gave out.") from None
    if made_for != ordering:
        raise _wrong("cursor", f"Belongs to a list with ordering={made_for}.")
    side = "lt" if ordering.startswith("-") else "gt"
    if value is None:
        return Q(_order__isnull=True, **{f"{tie}__{side}": key})
    if known:
        beyond = Q(**{f"_order__{side}": value}) | Q(**{f"{tie}__{side}": key})
        return Q(**{f"_order__{side}e": value}) & beyond
    same = Q(_order=value, **{f"{tie}__{side}": key})
    return Q(**{f"_order__{side}": value}) | same | Q(_order__isnull=True)


def _wrong(name: str, detail: str) -> Invalid:
    return Invalid(
        f"paging:user:{name.replace('_', '-')}",
        f"{name}: {detail}",
        next_step="Leave it out to start at the first page.",
        errors=[FieldError(name, "invalid", detail)],
    )
