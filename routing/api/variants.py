"""Variants of an endpoint: who serves each, and its share of the requests."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.accounts.actors import actor_of
from controlplane.accounts.models import Scope
from controlplane.accounts.permissions import require_target
from controlplane.errors import Stale
from controlplane.rest.validation import Input
from controlplane.serving.models import Endpoint
from routing.api.base import RoutingView
from routing.domain.shifting import LARGEST, MOST_VARIANTS, WantedVariant
from routing.selectors.variants import routed_endpoint, variants_shown, variants_tag
from routing.services.variants import variants_set


class VariantInput(Input):
    name = serializers.CharField(max_length=63)
    weight = serializers.FloatField(min_value=0, max_value=LARGEST, help_text="over the sum of all is its share")
    endpoint_id = serializers.UUIDField(
        required=False, allow_null=True, default=None, help_text="whose instances serve it; null: the endpoint's own"
    )


class VariantsInput(Input):
    """All variants: one that is not among them goes, once nobody is sent to it."""

    variants = VariantInput(many=True, max_length=MOST_VARIANTS)  # type: ignore[call-arg]  # the stubs lack it


class ShownVariantSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    weight = serializers.FloatField(help_text="in force")
    wanted_weight = serializers.FloatField(help_text="in force once what it waits for is there")
    share = serializers.FloatField(help_text="of the requests that name no variant, now")
    endpoint_id = serializers.UUIDField(allow_null=True, help_text="whose instances serve it; null: the endpoint's own")
    endpoint = serializers.CharField(help_text="its name; empty for the endpoint itself")
    ready = serializers.IntegerField(
        allow_null=True, help_text="instances that can take requests; null: nobody knows now"
    )
    instances = serializers.IntegerField()
    waits_for = serializers.CharField(help_text="why the wanted weight is not in force; empty when it is")


class VariantsSerializer(serializers.Serializer[Any]):
    variants = ShownVariantSerializer(many=True)
    shifting = serializers.BooleanField(help_text="another weight is wanted than the one in force")


class VariantList(RoutingView):
    """PUT shifts traffic between versions that are prepared. A variant that is to get more is waited for: its endpoint
    is warmed and started first, as its own document says, and requests go where they went until then. Whoever names a
    variant (X-Amzn-SageMaker-Target-Variant) gets it, whatever its weight."""

    write_scope = Scope.ROUTING_WRITE

    @extend_schema(responses=VariantsSerializer)
    def get(self, request: Request, endpoint_id: UUID) -> Response:
        return _shown(routed_endpoint(endpoint_id=endpoint_id, targets=self.targets))

    @extend_schema(request=VariantsInput, responses=VariantsSerializer, extensions={"x-edited": True})
    def put(self, request: Request, endpoint_id: UUID) -> Response:
        row = routed_endpoint(endpoint_id=endpoint_id, targets=self.targets)
        require_target(request, Scope.ROUTING_WRITE, row.cluster.name)
        given: Input = VariantsInput(data=request.data)
        given.is_valid(raise_exception=True)
        wanted = [
            WantedVariant(one["name"], one["weight"], one["endpoint_id"]) for one in given.validated_data["variants"]
        ]
        variants_set(actor=actor_of(request), endpoint_id=row.pk, wanted=wanted, if_tag=_expected(request, row))
        return _shown(row)


def _expected(request: Request, row: Endpoint) -> str | None:
    header = request.headers.get("If-Match", "*").strip()
    if header == "*":
        return None
    tag = variants_tag(row)
    if f'"{tag}"' not in [one.strip().removeprefix("W/") for one in header.split(",")]:
        raise Stale(
            "request:user:stale",
            "Somebody changed the variants since you read them.",
            next_step="Read them again, look at what changed, and send the change with the new ETag.",
        )
    return tag


def _shown(row: Endpoint) -> Response:
    shown = variants_shown(row)
    shifting = any(one.weight != one.wanted_weight for one in shown)
    response = Response(VariantsSerializer({"variants": shown, "shifting": shifting}).data)
    response["ETag"] = f'"{variants_tag(row)}"'
    return response
