"""What the API classes share: the caller's reach, answers with an Operation, and parameters for the schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar
from uuid import UUID

from django.db.models import Model, QuerySet
from django.http import Http404
from drf_spectacular.plumbing import get_lib_doc_excludes
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, PolymorphicProxySerializer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import Serializer

from caches.api.links import location_of
from caches.api.names import RULES, NameRule, check_names
from caches.api.serializers.common import ObjectSerializer
from caches.api.serializers.operations import OperationDetailSerializer
from caches.api.serializers.plans import PlanSerializer
from caches.selectors.operations import operation_get
from controlplane.accounts.permissions import readable_targets
from controlplane.models_base import Row
from controlplane.rest.etags import etag_of
from controlplane.rest.validation import LONGEST_WAIT_SECONDS, Input, wait_seconds
from controlplane.rest.views import HearthView, RowsView
from controlplane.rest.waiting import wait_for_end

DRY_RUN = OpenApiParameter("dry_run", OpenApiTypes.BOOL, description="Write nothing; answer 200 with the Plan")
WAIT = OpenApiParameter(
    "wait",
    {"type": "integer", "minimum": 0, "maximum": LONGEST_WAIT_SECONDS, "default": 0},
    description="Seconds to hold the answer until the operation has ended",
)
POLL_AGAIN_SECONDS = 2
Found = TypeVar("Found", bound=Model)


def plan_or(kind: type[Serializer[Any]], status: int = 200) -> dict[int, OpenApiResponse]:
    """The answers of a call that changes the fleet: the object, or the Plan with ``dry_run=true``."""
    if status == 200:
        name = kind.__name__.removesuffix("Serializer")
        either = PolymorphicProxySerializer(
            f"{name}OrPlan", serializers=[kind, PlanSerializer], resource_type_field_name=None
        )
        return {200: OpenApiResponse(either, description="The object, or the Plan (dry_run=true)")}
    return {
        status: OpenApiResponse(kind, description="Done"),
        200: OpenApiResponse(PlanSerializer, description="The Plan (dry_run=true)"),
    }


WORK: Mapping[int, OpenApiResponse] = {
    200: OpenApiResponse(OperationDetailSerializer, description="It ended within ?wait="),
    202: OpenApiResponse(OperationDetailSerializer, description="Work goes on; Location says where"),
}
PLAN_OR_WORK: Mapping[int, OpenApiResponse] = {**WORK, **plan_or(OperationDetailSerializer)}


def one(rows: QuerySet[Found]) -> Found:
    """The only row, 404 when there is none (or none that the caller may see)."""
    found = rows.first()
    if found is None:
        raise Http404
    return found


class ApiView(HearthView):
    """A HearthView that reads bodies, answers with rows and with operations. ``names`` are the address's."""

    names: ClassVar[Mapping[str, NameRule]] = RULES

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        check_names(kwargs, self.names)

    def read(self, kind: type[Serializer[Any]], request: Request, **kwargs: Any) -> dict[str, Any]:
        """The validated body. Raises ValidationError with every wrong field."""
        serializer = kind(data=request.data, context={"request": request}, **kwargs)
        serializer.is_valid(raise_exception=True)
        data: dict[str, Any] = serializer.validated_data
        return data

    def answer(
        self, kind: type[Serializer[Any]], row: Any, *, status: int = 200, edited: bool = False, **context: Any
    ) -> Response:
        """One object; 201 brings its Location, ``edited`` its ETag."""
        response = Response(kind(row, context={"request": self.request, **context}).data, status=status)
        if status == 201:
            response["Location"] = location_of(self.request, row)
        if edited and isinstance(row, Row):
            response["ETag"] = etag_of(row)
        return response

    def follow(self, operation_id: UUID, *, status_when_ended: int = 200) -> Response:
        """The operation, after ``?wait=``: 200 when it has ended, 202 and when to ask again when it has not."""
        seconds = wait_seconds(self.request)
        ended = wait_for_end(operation_id, seconds, self.still_working)
        operation = operation_get(operation_id=operation_id, targets=self.targets)
        data = OperationDetailSerializer(operation, context={"request": self.request}).data
        response = Response(data, status=status_when_ended if ended else 202)
        response["Location"] = location_of(self.request, operation)
        if not ended:
            response["Retry-After"] = str(POLL_AGAIN_SECONDS)
        return response

    @property
    def targets(self) -> frozenset[str] | None:
        """What this caller may see of the fleet; None: everything."""
        return readable_targets(self.request)


class ApiRowsView(ApiView, RowsView):
    """An ApiView whose GET is a list."""


def undocumented_bases() -> list[type]:
    """Classes whose docstrings speak to programmers: the schema takes only those of what derives from them."""
    theirs = get_lib_doc_excludes()  # type: ignore[no-untyped-call]
    return [*theirs, HearthView, RowsView, ApiView, ApiRowsView, Input, ObjectSerializer]
