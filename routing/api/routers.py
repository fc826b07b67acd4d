"""Instances and routers: who gets requests, and who gives them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.serving.models import Instance
from routing.api.base import RoutingRowsView, RoutingView
from routing.api.serializers import RoutedInstanceSerializer, RouterSerializer
from routing.filters import InstanceFilter, RouterFilter
from routing.models import RouterProcess
from routing.selectors.routers import (
    in_flight,
    instance_get,
    instances_list,
    is_heard_of,
    published_version,
    router_get,
    routers_list,
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
        return with_in_flight(rows)


class InstanceDetail(RoutingView):
    @extend_schema(responses=RoutedInstanceSerializer)
    def get(self, request: Request, instance_id: UUID) -> Response:
        [row] = with_in_flight([instance_get(instance_id=instance_id, targets=self.targets)])
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


def with_in_flight(rows: Sequence[Any]) -> Sequence[Any]:
    """The instances with ``in_flight`` set on each."""
    counts = in_flight()
    for row in rows:
        row.in_flight = counts.of(row.uid)
    return rows


def with_state(rows: Sequence[Any]) -> Sequence[Any]:
    """The routers with ``published_version``, ``current`` and ``in_flight`` set on each."""
    newest, now = published_version(), timezone.now()
    for row in rows:
        heard = is_heard_of(row, now)
        row.published_version = newest
        row.current = row.config_version >= (newest or 0) if heard else None
        row.in_flight = sum(row.figures.get("in_flight", {}).values()) if heard else None
    return rows
