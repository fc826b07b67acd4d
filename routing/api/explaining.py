"""One decision, explained."""

from __future__ import annotations

from uuid import UUID

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.accounts.models import Scope
from controlplane.accounts.permissions import require_target
from controlplane.rest.validation import Input
from routing.api.base import RoutingView
from routing.api.serializers import ExplainInput, ExplanationSerializer
from routing.selectors.policies import variant_get
from routing.services.explaining import decision_explain


class VariantExplain(RoutingView):
    """Which instance a request would get now, and why. The request is read as a router reads it, and forgotten."""

    write_scope = Scope.ROUTING_WRITE

    @extend_schema(request=ExplainInput, responses=ExplanationSerializer)
    def post(self, request: Request, endpoint_id: UUID, variant: str) -> Response:
        row = variant_get(endpoint_id=endpoint_id, name=variant, targets=self.targets)
        require_target(request, Scope.ROUTING_WRITE, row.endpoint.cluster.name)
        given: Input = ExplainInput(data=request.data)
        given.is_valid(raise_exception=True)
        return Response(ExplanationSerializer(decision_explain(variant=row, **given.validated_data)).data)
