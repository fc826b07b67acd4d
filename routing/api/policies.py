"""Policies: the one in force of a variant, and every version there was."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, PolymorphicProxySerializer, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.accounts.actors import actor_of
from controlplane.accounts.models import Scope
from controlplane.accounts.permissions import require_target
from controlplane.errors import FieldError, Invalid, Missing, Stale
from controlplane.rest.etags import etag_of, expected_version
from controlplane.rest.validation import flag
from controlplane.serving.models import Variant
from routing.api.base import RoutingRowsView, RoutingView
from routing.api.serializers import (
    STRATEGIES,
    PolicyInForceSerializer,
    PolicyPreviewSerializer,
    RoutingPolicyInput,
    RoutingPolicySerializer,
)
from routing.domain.policies import policy_document
from routing.filters import PolicyFilter
from routing.models import RoutingPolicy
from routing.selectors.policies import policies_list, policy_in_force, variant_get
from routing.selectors.routers import published_version
from routing.services.policies import policy_preview, policy_set

DRY_RUN = OpenApiParameter("dry_run", OpenApiTypes.BOOL, description="Write nothing; say what would be other")
_EITHER = PolymorphicProxySerializer(
    "PolicyInForceOrPreview",
    serializers=[PolicyInForceSerializer, PolicyPreviewSerializer],
    resource_type_field_name=None,
)
_SET = {200: OpenApiResponse(_EITHER, description="The policy in force, or what it would change (dry_run=true)")}


class VariantPolicy(RoutingView):
    """The policy of a variant. PUT puts another one in force in every router, within two seconds."""

    write_scope = Scope.ROUTING_WRITE
    parameters = {"PUT": ("dry_run",)}

    @extend_schema(responses=PolicyInForceSerializer)
    def get(self, request: Request, endpoint_id: UUID, variant: str) -> Response:
        return self._show(variant_get(endpoint_id=endpoint_id, name=variant, targets=self.targets))

    @extend_schema(request=RoutingPolicyInput, parameters=[DRY_RUN], responses=_SET, extensions={"x-edited": True})
    def put(self, request: Request, endpoint_id: UUID, variant: str) -> Response:
        row = variant_get(endpoint_id=endpoint_id, name=variant, targets=self.targets)
        require_target(request, Scope.ROUTING_WRITE, row.endpoint.cluster.name)
        document = _document(request.data)
        _, newest = policy_in_force(row)
        if newest is None and request.headers.get("If-Match", "*").strip() != "*":
            raise Stale(
                "request:user:stale",
                "No policy was set here yet, so no version of it can be meant.",
                next_step="Read it, and send the change without If-Match.",
            )
        version = expected_version(request, newest) if newest is not None else None
        if flag(request, "dry_run"):
            found = policy_preview(variant=row, document=document)
            shown = {
                "before": policy_document(found.before),
                "after": policy_document(found.after),
                "changes": found.changes,
                "differences": found.differences,
                "notes": found.notes,
            }
            return Response(shown)
        policy_set(actor=actor_of(request), variant_id=row.pk, document=document, if_updated_at=version)
        return self._show(row)

    def _show(self, row: Variant) -> Response:
        policy, newest = policy_in_force(row)
        shown = {
            "endpoint_id": row.endpoint_id,
            "variant": row.name,
            "version": newest.version if newest is not None else 0,
            "policy": policy_document(policy),
            "notes": newest.notes if newest is not None else list(policy.notes),
            "set_by": newest.set_by if newest is not None else "",
            "updated_at": newest.updated_at if newest is not None else None,
            "published_version": published_version(),
        }
        response = Response(PolicyInForceSerializer(shown).data)
        if newest is not None:
            response["ETag"] = etag_of(newest)
        return response


def _document(data: Any) -> Mapping[str, Any]:
    if isinstance(data, Mapping) and ("RoutingStrategy" in data or "routingStrategy" in data):
        return data
    detail = "A policy is an object with a RoutingStrategy."
    raise Invalid(
        "request:user:invalid",
        detail,
        next_step=f"Send one of {', '.join(STRATEGIES)}.",
        errors=[FieldError("RoutingStrategy", "required", detail)],
    )


class RoutingPolicyList(RoutingRowsView):
    """Every version of every variant's policy."""

    serializer_class = RoutingPolicySerializer
    filterset_class = PolicyFilter
    ordering_fields = {"created_at": "created_at", "version": "version", "strategy": "strategy"}
    ordering = "-created_at"

    def rows(self) -> QuerySet[RoutingPolicy]:
        return policies_list(targets=self.targets)


class RoutingPolicyDetail(RoutingView):
    @extend_schema(responses=RoutingPolicySerializer)
    def get(self, request: Request, policy_id: UUID) -> Response:
        row = policies_list(targets=self.targets).filter(pk=policy_id).first()
        if row is None:
            raise Missing("routing:policy:not-found", f"There is no policy {policy_id}.", next_step="List them.")
        return Response(RoutingPolicySerializer(row, context={"request": request}).data)
