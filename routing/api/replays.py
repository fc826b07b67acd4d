"""Recorded requests against another policy or membership, for programs."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.accounts.actors import actor_of
from controlplane.accounts.models import Scope
from controlplane.accounts.permissions import require_target
from controlplane.operations.models import Operation, OperationState
from controlplane.rest.validation import LONGEST_WAIT_SECONDS, Input, wait_seconds
from controlplane.rest.waiting import wait_for_end
from routing.api.base import ROOT, RoutingView
from routing.api.replay_serializers import ReplayInput, ReplaySerializer
from routing.selectors.policies import variant_get
from routing.services.replays import AT_ONCE_SECONDS, Asked, replay_get, replay_prepare, replay_run, replay_start

WAIT = OpenApiParameter(
    "wait",
    {"type": "integer", "minimum": 0, "maximum": LONGEST_WAIT_SECONDS, "default": 0},
    description="Seconds to hold the answer until the operation has ended",
)
_ANSWERS = {
    200: OpenApiResponse(ReplaySerializer, description="It was answered at once, or ended within ?wait="),
    202: OpenApiResponse(ReplaySerializer, description="Work goes on; Location says where"),
}


class VariantReplays(RoutingView):
    """Try a policy or a number of instances on the recorded requests, beside what happened. Nothing is changed."""

    write_scope = Scope.ROUTING_WRITE
    parameters = {"POST": ("wait",)}

    @extend_schema(request=ReplayInput, parameters=[WAIT], responses=_ANSWERS)
    def post(self, request: Request, endpoint_id: UUID, variant: str) -> Response:
        row = variant_get(endpoint_id=endpoint_id, name=variant, targets=self.targets)
        require_target(request, Scope.ROUTING_WRITE, row.endpoint.cluster.name)
        wait_seconds(request)
        # The policy goes to the service as it came: it is the one that knows what may stand there.
        read: Input = ReplayInput(data=request.data)
        read.is_valid(raise_exception=True)
        given, body = read.validated_data, request.data
        asked = Asked(
            given["minutes"],
            body.get("policy") if isinstance(body, Mapping) else None,
            given.get("instances", 0),
            given.get("routers", 0),
        )
        prepared = replay_prepare(variant=row, asked=asked)
        if prepared.seconds > AT_ONCE_SECONDS:
            return follow(self, request, replay_start(actor=actor_of(request), variant=row, asked=asked))
        result = replay_run(variant=row, prepared=prepared)
        answer = {"state": OperationState.SUCCEEDED, "operation_id": None, "error": None, "result": result}
        return Response(ReplaySerializer(answer).data)


class VariantReplay(RoutingView):
    """One that became an Operation: 200 when it has ended, 202 when not yet."""

    parameters = {"GET": ("wait",)}

    @extend_schema(parameters=[WAIT], responses=_ANSWERS)
    def get(self, request: Request, endpoint_id: UUID, variant: str, operation_id: UUID) -> Response:
        row = variant_get(endpoint_id=endpoint_id, name=variant, targets=self.targets)
        return follow(self, request, replay_get(variant=row, operation_id=operation_id))


def follow(view: RoutingView, request: Request, operation: Operation) -> Response:
    """The operation, after ``?wait=``."""
    ended = wait_for_end(operation.pk, wait_seconds(request), view.still_working)
    operation.refresh_from_db()
    answer = {
        "state": operation.state,
        "operation_id": operation.pk,
        "error": operation.error,
        "result": operation.result,
    }
    response = Response(ReplaySerializer(answer).data, status=200 if ended else 202)
    response["Location"] = request.build_absolute_uri(f"{ROOT}operations/{operation.pk}")
    if not ended:
        response["Retry-After"] = "2"
    return response
