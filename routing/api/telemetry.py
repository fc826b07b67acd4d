"""What was measured of a variant's requests, and what follows from it, for programs."""

from __future__ import annotations

from uuid import UUID

from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.rest.validation import wrong_parameter
from routing.api.base import RoutingView
from routing.api.telemetry_serializers import AdvicesSerializer, TelemetrySerializer
from routing.selectors.policies import variant_get
from routing.selectors.telemetry import SPANS, telemetry
from routing.services.advising import variant_advise

DEFAULT_MINUTES = 15
_MINUTES = OpenApiParameter(
    "minutes",
    {"type": "integer", "enum": list(SPANS), "default": DEFAULT_MINUTES},
    description="How far back; longer times come in longer windows",
)


class VariantTelemetry(RoutingView):
    """Hit rate, time to first token, shares, spill, engines and what routing adds, over the same time. Null is
    unknown."""

    parameters = {"GET": ("minutes",)}

    @extend_schema(parameters=[_MINUTES], responses=TelemetrySerializer)
    def get(self, request: Request, endpoint_id: UUID, variant: str) -> Response:
        row = variant_get(endpoint_id=endpoint_id, name=variant, targets=self.targets)
        shown = telemetry(variant=row, minutes=_minutes(request), now=timezone.now().replace(microsecond=0))
        return Response(TelemetrySerializer(shown).data)


class VariantAdvice(RoutingView):
    """What is odd about how requests are routed, each with its figures and what to do next."""

    parameters = {"GET": ("minutes",)}

    @extend_schema(parameters=[_MINUTES], responses=AdvicesSerializer)
    def get(self, request: Request, endpoint_id: UUID, variant: str) -> Response:
        row = variant_get(endpoint_id=endpoint_id, name=variant, targets=self.targets)
        minutes, now = _minutes(request), timezone.now().replace(microsecond=0)
        shown = telemetry(variant=row, minutes=minutes, now=now)
        answer = {
            "since": shown.since,
            "until": shown.until,
            "requests": shown.requests,
            "produced_by": shown.produced_by,
            "items": variant_advise(variant=row, minutes=minutes, now=now, shown=shown),
        }
        return Response(AdvicesSerializer(answer).data)


def _minutes(request: Request) -> int:
    asked = request.query_params.get("minutes", str(DEFAULT_MINUTES))
    minutes = next((one for one in SPANS if str(one) == asked), None)
    if minutes is None:
        raise wrong_parameter("minutes", f"Must be one of {', '.join(map(str, SPANS))}.")
    return minutes
