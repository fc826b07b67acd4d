"""Instances and routers: who gets requests, and who gives them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.serving.models import Instance
from controlplane.serving.withholding import with_places
from routing.api.base import RoutingRowsView, RoutingView
from routing.api.serializers import RoutedInstanceSerializer, RouterSerializer
from routing.filters import InstanceFilter, RouterFilter
from routing.models import RouterProcess
from routing.selectors.routers import (
    instance_get,
    instances_list,
    router_get,
    routers_list,
    with_in_flight,
    with_state,
)


class InstanceList(RoutingRowsView):
    """Every copy of every endpoint, with what is in flight on it."""

    serializer_class = RoutedInstanceSerializer
    filterset_class = InstanceFilter
    ordering_fields = {"name": "name", "created_at": "created_at"}
    ordering = "name"

    def rows(self) -> QuerySet[Instance]:
        return instances_list(targets=self.targets)

    def present(self, rows: Sequence[Any]) -> Sequence[Any]:
        return with_in_flight(with_places(rows, self.targets))


class InstanceDetail(RoutingView):
    @extend_schema(responses=RoutedInstanceSerializer)
    def get(self, request: Request, instance_id: UUID) -> Response:
        found = [instance_get(instance_id=instance_id, targets=self.targets)]
        [row] = with_in_flight(with_places(found, self.targets))
        return Response(RoutedInstanceSerializer(row, context={"request": request}).data)


class RouterList(RoutingRowsView):
    """Every router process, with the configuration that it runs."""

    serializer_class = RouterSerializer
    filterset_class = RouterFilter
    ordering_fields = {"name": "name", "host": "host", "seen_at": "seen_at"}
    ordering = "name"

    def rows(self) -> QuerySet[RouterProcess]:
        return routers_list()

    def present(self, rows: Sequence[Any]) -> Sequence[Any]:
        return with_state(rows)


class RouterDetail(RoutingView):
    @extend_schema(responses=RouterSerializer)
    def get(self, request: Request, router_id: UUID) -> Response:
        [row] = with_state([router_get(router_id=router_id)])
        return Response(RouterSerializer(row, context={"request": request}).data)
