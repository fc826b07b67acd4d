"""What was measured of a variant's requests, for programs."""

from __future__ import annotations

from uuid import UUID

from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.rest.validation import wrong_parameter
from routing.api.base import RoutingView
from routing.api.serializers import TelemetrySerializer
from routing.selectors.policies import variant_get
from routing.selectors.telemetry import SPANS, telemetry

DEFAULT_MINUTES = 15
_MINUTES = OpenApiParameter(
    "minutes",
    {"type": "integer", "enum": list(SPANS), "default": DEFAULT_MINUTES},
    description="How far back; longer times come in longer windows",
)


class VariantTelemetry(RoutingView):
    """Hit rate, time to first token, shares, spill and what routing adds, over the same time. Null is unknown."""

    parameters = {"GET": ("minutes",)}

    @extend_schema(parameters=[_MINUTES], responses=TelemetrySerializer)
    def get(self, request: Request, endpoint_id: UUID, variant: str) -> Response:
        row = variant_get(endpoint_id=endpoint_id, name=variant, targets=self.targets)
        asked = request.query_params.get("minutes", str(DEFAULT_MINUTES))
        minutes = next((one for one in SPANS if str(one) == asked), None)
        if minutes is None:
            raise wrong_parameter("minutes", f"Must be one of {', '.join(map(str, SPANS))}.")
        shown = telemetry(variant=row, minutes=minutes, now=timezone.now().replace(microsecond=0))
        return Response(TelemetrySerializer(shown).data)
