"""Endpoints whose instances are addresses that somebody gives."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from caches.selectors.nodes import clusters_list
from controlplane.accounts.actors import actor_of
from controlplane.accounts.models import Scope
from controlplane.accounts.permissions import require_target
from controlplane.errors import FieldError, Invalid
from controlplane.rest.etags import etag_of, expected_version
from controlplane.rest.validation import Input
from controlplane.serving.models import Endpoint
from routing.api.base import RoutedObject, RoutingView
from routing.domain.addresses import DEFAULT_HEALTH_PATH, LONGEST_MODEL, LONGEST_PATH, MOST_ADDRESSES, StaticEndpoint
from routing.selectors.variants import routed_endpoint, static_document, static_endpoint
from routing.services.static_endpoints import (
    static_endpoint_change,
    static_endpoint_create,
    static_endpoint_remove,
    static_read,
)


class AddressInput(Input):
    name = serializers.CharField(max_length=63, help_text="of the instance, unlike all others of the endpoint")
    url = serializers.CharField(max_length=300, help_text="http://HOST:PORT, or https:// where it speaks TLS")


class StaticChangeInput(Input):
    model = serializers.CharField(
        max_length=LONGEST_MODEL, allow_blank=True, default="", help_text="what clients of /v1/… may call it, too"
    )
    health_path = serializers.CharField(
        max_length=LONGEST_PATH,
        allow_blank=True,
        default=DEFAULT_HEALTH_PATH,
        help_text="asked by every router every two seconds, well below 400; empty: nobody asks",
    )
    addresses = AddressInput(many=True, max_length=MOST_ADDRESSES)  # type: ignore[call-arg]  # the stubs lack it


class StaticInput(StaticChangeInput):
    cluster = serializers.CharField(max_length=63, help_text="whose operators may change it")
    name = serializers.CharField(max_length=63, help_text="by which clients ask for it; it stays")


class StaticEndpointSerializer(RoutedObject):
    cluster = serializers.CharField(source="cluster.name")
    name = serializers.CharField()
    model = serializers.CharField()
    health_path = serializers.CharField()
    addresses = AddressInput(many=True)


class StaticList(RoutingView):
    """Make one. It is listed among the endpoints, with the kind StaticEndpoint, and its instances among theirs."""

    write_scope = Scope.ROUTING_WRITE

    @extend_schema(request=StaticInput, responses={201: StaticEndpointSerializer})
    def post(self, request: Request) -> Response:
        given: Input = StaticInput(data=request.data)
        given.is_valid(raise_exception=True)
        asked = dict(given.validated_data)
        cluster = clusters_list(targets=self.targets).filter(name=asked.pop("cluster")).first()
        if cluster is None:
            wrong = FieldError("cluster", "endpoint:user:no-such-cluster", "There is no such cluster.")
            raise Invalid(wrong.code, wrong.detail, next_step="List the clusters.", errors=[wrong])
        require_target(request, Scope.ROUTING_WRITE, cluster.name)
        row = static_endpoint_create(actor=actor_of(request), cluster=cluster, given=static_read(**asked))
        response = _shown(request, row, 201)
        response["Location"] = response.data["links"]["self"]
        return response


class StaticDetail(RoutingView):
    write_scope = Scope.ROUTING_WRITE

    @extend_schema(responses=StaticEndpointSerializer)
    def get(self, request: Request, endpoint_id: UUID) -> Response:
        return _shown(request, static_endpoint(endpoint_id=endpoint_id, targets=self.targets))

    @extend_schema(request=StaticChangeInput, responses=StaticEndpointSerializer, extensions={"x-edited": True})
    def put(self, request: Request, endpoint_id: UUID) -> Response:
        row = self._row(request, endpoint_id)
        version = expected_version(request, row)
        given: Input = StaticChangeInput(data=request.data)
        given.is_valid(raise_exception=True)
        read: StaticEndpoint = static_read(name=row.name, **given.validated_data)
        static_endpoint_change(actor=actor_of(request), endpoint_id=row.pk, given=read, if_updated_at=version)
        return _shown(request, static_endpoint(endpoint_id=endpoint_id, targets=self.targets))

    @extend_schema(responses={204: None})
    def delete(self, request: Request, endpoint_id: UUID) -> Response:
        static_endpoint_remove(actor=actor_of(request), endpoint_id=self._row(request, endpoint_id).pk)
        return Response(status=204)

    def _row(self, request: Request, endpoint_id: UUID) -> Endpoint:
        row = routed_endpoint(endpoint_id=endpoint_id, targets=self.targets)
        require_target(request, Scope.ROUTING_WRITE, row.cluster.name)
        return static_endpoint(endpoint_id=endpoint_id, targets=self.targets)


def _shown(request: Request, row: Endpoint, status: int = 200) -> Response:
    document: dict[str, Any] = static_document(row)
    row.model, row.health_path, row.addresses = (  # type: ignore[attr-defined]
        document["model"], document["health_path"], document["addresses"],
    )  # fmt: skip
    response = Response(StaticEndpointSerializer(row, context={"request": request}).data, status=status)
    response["ETag"] = etag_of(row)
    return response
