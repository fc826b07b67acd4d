"""One decision, explained."""

from __future__ import annotations

from uuid import UUID

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.accounts.models import Scope
from controlplane.accounts.permissions import require_target
from controlplane.errors import FieldError, Invalid
from controlplane.rest.validation import Input
from routing.api.base import RoutingView
from routing.api.explain_serializers import DecisionsSerializer, ExplainInput, ExplanationSerializer
from routing.selectors.policies import policy_in_force, variant_get
from routing.services.explaining import decision_explain, decisions_list, recorded_explain


class VariantExplain(RoutingView):
    """Which instance a request would get now, and why. The request is read as a router reads it, and forgotten."""

    write_scope = Scope.ROUTING_WRITE

    @extend_schema(request=ExplainInput, responses=ExplanationSerializer)
    def post(self, request: Request, endpoint_id: UUID, variant: str) -> Response:
        row = variant_get(endpoint_id=endpoint_id, name=variant, targets=self.targets)
        require_target(request, Scope.ROUTING_WRITE, row.endpoint.cluster.name)
        read: Input = ExplainInput(data=request.data)
        read.is_valid(raise_exception=True)
        given = dict(read.validated_data)
        decision = given.pop("decision", None)
        if (decision is None) == ("body" not in given):
            detail = "Send a body or the id of a decision: one of the two."
            raise Invalid(
                "request:user:invalid",
                detail,
                next_step="The ids are at …/decisions.",
                errors=[FieldError("body", "required" if decision is None else "invalid", detail)],
            )
        if decision is not None:
            return Response(ExplanationSerializer(recorded_explain(variant=row, decision_id=decision)).data)
        return Response(ExplanationSerializer(decision_explain(variant=row, **given)).data)


class VariantDecisions(RoutingView):
    """The newest requests that were recorded: no text, and no more than half of a digest."""

    @extend_schema(responses=DecisionsSerializer)
    def get(self, request: Request, endpoint_id: UUID, variant: str) -> Response:
        row = variant_get(endpoint_id=endpoint_id, name=variant, targets=self.targets)
        items, passed = decisions_list(variant=row)
        policy, _ = policy_in_force(row)
        shown = {"recording": policy.extensions.record_keys, "passed": passed, "items": items}
        return Response(DecisionsSerializer(shown).data)
