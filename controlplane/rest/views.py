"""The base of every API class: strict parameters, idempotent POSTs and PUTs, pages, CSV."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from django.db.models import QuerySet
from django.http import Http404
from django_filters import FilterSet, MultipleChoiceFilter
from rest_framework.exceptions import NotAuthenticated
from rest_framework.generics import GenericAPIView
from rest_framework.renderers import BaseRenderer, JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from controlplane.accounts.models import Scope
from controlplane.rest import idempotency, paging
from controlplane.rest.parsers import StrictParser
from controlplane.rest.problems import request_id_of
from controlplane.rest.renderers import CsvRenderer
from controlplane.rest.validation import check_parameters, refuse_body, wrong_parameter

WRITING = ("POST", "PUT", "PATCH", "DELETE")


class HearthView(APIView):
    """``parameters`` names the query parameters that each method reads, ``bodies`` the methods that read a body,
    ``redacted`` the answer's one-time secrets."""

    read_scope: ClassVar[Scope | None] = Scope.READ
    write_scope: ClassVar[Scope | None] = Scope.ADMIN
    parameters: ClassVar[Mapping[str, Sequence[str]]] = {}
    bodies: ClassVar[Sequence[str]] = ("POST", "PUT", "PATCH")
    redacted: ClassVar[Sequence[str]] = ()
    parser_classes = [StrictParser]
    # No OPTIONS: it would say nothing that openapi.yaml does not, and no page of another origin calls.
    http_method_names = ["get", "head", "post", "put", "patch", "delete"]

    _claim: idempotency.Claim | None = None

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        method = "GET" if request.method == "HEAD" else request.method or "GET"
        check_parameters(request, self.known_parameters(method), self.repeatable_parameters())
        if method in WRITING and method not in self.bodies:
            refuse_body(request)
        if method in ("POST", "PUT"):
            self._claim = idempotency.claim(request)

    def known_parameters(self, method: str) -> set[str]:
        """What ``?…=`` may name for this method."""
        return {*self.parameters.get(method, ()), "format"}

    def repeatable_parameters(self) -> set[str]:
        """Of them, those that may be given several times."""
        return set()

    def perform_content_negotiation(self, request: Request, force: bool = False) -> Any:
        try:
            return super().perform_content_negotiation(request, force)
        except Http404:
            # The framework's word for ?format= with something else than the view's formats.
            formats = ", ".join(renderer.format for renderer in self.get_renderers())
            raise wrong_parameter("format", f"Must be one of {formats}.") from None

    def permission_denied(self, request: Request, message: str | None = None, code: str | None = None) -> Any:
        # The one permission class answers False only when nobody is signed in.
        raise NotAuthenticated

    def handle_exception(self, exc: Exception) -> Any:
        if isinstance(exc, idempotency.Replay):
            return exc.response(request_id_of(self.request))
        return super().handle_exception(exc)

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        response = super().finalize_response(request, response, *args, **kwargs)
        if (held := self._claim) is not None:
            if isinstance(response, Response):
                response.add_post_render_callback(lambda done: idempotency.settle(held, done, self.redacted))
            else:
                idempotency.settle(held, response, self.redacted)
        return response

    def still_working(self) -> None:
        """Called while a wait holds the answer: keeps the Idempotency-Key of this request from being taken over."""
        if self._claim is not None:
            idempotency.touch(self._claim)


class RowsView(HearthView, GenericAPIView[Any]):
    """GET is a filtered, ordered page of ``rows()``, as JSON or CSV. A subclass may add POST."""

    renderer_classes = [JSONRenderer, CsvRenderer]
    filterset_class: ClassVar[type[FilterSet] | None] = None
    ordering_fields: ClassVar[Mapping[str, Any]] = {}
    ordering: ClassVar[str] = ""
    tie_breaker: ClassVar[str] = "pk"  # a unique field that cursors may show

    def rows(self) -> QuerySet[Any]:
        """The selector's queryset for this request."""
        raise NotImplementedError

    def present(self, rows: Sequence[Any]) -> Sequence[Any]:
        """What the serializer gets for one page of rows: views that join further facts override it."""
        return rows

    def get_queryset(self) -> QuerySet[Any]:
        if getattr(self, "swagger_fake_view", False) and self.filterset_class is not None:
            none: QuerySet[Any] = self.filterset_class._meta.model.objects.none()
            return none
        return self.rows()

    def get(self, request: Request, **kwargs: Any) -> Response:
        found = self.paginate_queryset(self.filter_queryset(self.get_queryset()))
        serializer = self.get_serializer(self.present(found or []), many=True)
        return self.get_paginated_response(serializer.data)

    def get_renderers(self) -> list[BaseRenderer]:
        # Only lists have a CSV form.
        return super().get_renderers() if self.request.method in ("GET", "HEAD") else [JSONRenderer()]

    def known_parameters(self, method: str) -> set[str]:
        known = super().known_parameters(method)
        return known | {*self._filters(), *paging.PARAMETERS} if method == "GET" else known

    def repeatable_parameters(self) -> set[str]:
        return {name for name, one in self._filters().items() if isinstance(one, MultipleChoiceFilter)}

    def _filters(self) -> Mapping[str, Any]:
        return self.filterset_class.base_filters if self.filterset_class is not None else {}
