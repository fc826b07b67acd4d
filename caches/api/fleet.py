"""Node pools and nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.db.models import Case, QuerySet, TextField, Value, When
from django.db.models.functions import Concat
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from caches.api.base import DRY_RUN, PLAN_OR_WORK, WAIT, ApiRowsView, ApiView, one, plan_or
from caches.api.names import POOL
from caches.api.plans import plan_response
from caches.api.serializers.entries import EntrySerializer
from caches.api.serializers.fleet import (
    ForecastListSerializer,
    NodePoolChanges,
    NodePoolInput,
    NodePoolSerializer,
    NodeSerializer,
)
from caches.domain.plans import Plan
from caches.filters import NodeEntryFilter, NodeFilter, NodePoolFilter
from caches.models import CacheEntry
from caches.selectors.entries import entries_list
from caches.selectors.nodes import clusters_list, node_coverage, nodes_list, pools_list
from caches.selectors.previews import node_forecast, pool_update_preview
from caches.services.pool_deletion import pool_delete, pool_delete_preview
from controlplane.accounts.actors import actor_of
from controlplane.accounts.models import Scope
from controlplane.accounts.permissions import require_target
from controlplane.clusters.models import Node, NodePool
from controlplane.clusters.services import pool_create, pool_create_check, pool_update, pool_update_check
from controlplane.errors import FieldError, Invalid
from controlplane.rest.etags import expected_version
from controlplane.rest.validation import flag


def full_name(prefix: str = "") -> Concat:
    """A pool's name as it is shown, ``cluster.pool``; ``prefix`` leads from the row to the pool."""
    return Concat(f"{prefix}cluster__name", Value("."), f"{prefix}name", output_field=TextField())


class NodePoolList(ApiRowsView):
    """GET the pools; POST one more."""

    write_scope = Scope.FLEET_WRITE
    serializer_class = NodePoolSerializer
    filterset_class = NodePoolFilter
    ordering_fields = {"name": full_name(), "cluster": "cluster__name", "created_at": "created_at"}
    ordering = "name"
    parameters = {"POST": ("dry_run",)}

    def rows(self) -> QuerySet[NodePool]:
        return pools_list(targets=self.targets)

    @extend_schema(request=NodePoolInput, parameters=[DRY_RUN], responses=plan_or(NodePoolSerializer, 201))
    def post(self, request: Request) -> Response:
        body = self.read(NodePoolInput, request)
        name, cluster_name, selector = body.pop("name"), body.pop("cluster"), body.pop("selector")
        cluster = clusters_list(targets=self.targets).filter(name=cluster_name).first()
        if cluster is None:
            detail = f"There is no cluster {cluster_name}."
            error = FieldError("cluster", "unknown", detail)
            raise Invalid("pool:user:no-such-cluster", detail, next_step="List the clusters.", errors=[error])
        require_target(request, Scope.FLEET_WRITE, cluster.name)
        if flag(request, "dry_run"):
            pool_create_check(cluster=cluster, name=name, given={**body, "selector": selector})
            return plan_response([Plan(pool=name)], notes=["No pin names the new pool: nothing moves."])
        made = pool_create(actor=actor_of(request), cluster_id=cluster.id, name=name, selector=selector, settings=body)
        pool = pools_list().get(pk=made.pk)
        return self.answer(NodePoolSerializer, pool, status=201, edited=True)


class NodePoolDetail(ApiView):
    """GET, PATCH, DELETE one pool by ``cluster.pool``."""

    names = {"name": POOL}
    write_scope = Scope.FLEET_WRITE
    parameters = {"PATCH": ("dry_run",), "DELETE": ("dry_run", "wait")}

    @extend_schema(responses=NodePoolSerializer)
    def get(self, request: Request, name: str) -> Response:
        return self.answer(NodePoolSerializer, self._pool(name), edited=True)

    @extend_schema(
        request=NodePoolChanges,
        parameters=[DRY_RUN],
        responses=plan_or(NodePoolSerializer),
        extensions={"x-edited": True},
    )
    def patch(self, request: Request, name: str) -> Response:
        pool = self._pool(name)
        require_target(request, Scope.FLEET_WRITE, pool.full_name)
        changes = self.read(NodePoolChanges, request)
        version = expected_version(request, pool)
        if flag(request, "dry_run"):
            pool_update_check(pool=pool, changes=changes, if_updated_at=version)
            notes = ["Planned for the nodes that the pool has now."] if "selector" in changes else []
            return plan_response([pool_update_preview(pool, changes)], notes=notes)
        pool_update(actor=actor_of(request), pool_id=pool.id, changes=changes, if_updated_at=version)
        return self.answer(NodePoolSerializer, self._pool(name), edited=True)

    @extend_schema(parameters=[DRY_RUN, WAIT], responses=PLAN_OR_WORK)
    def delete(self, request: Request, name: str) -> Response:
        pool = self._pool(name)
        require_target(request, Scope.FLEET_WRITE, pool.full_name)
        if flag(request, "dry_run"):
            return plan_response([pool_delete_preview(pool_id=pool.id)])
        return self.follow(pool_delete(actor=actor_of(request), pool_id=pool.id).id)

    def _pool(self, name: str) -> NodePool:
        cluster, _, pool = name.partition(".")
        return one(pools_list(targets=self.targets).filter(cluster__name=cluster, name=pool))


class NodeList(ApiRowsView):
    """Nodes; those that are gone for good only with ``state=Lost`` or ``uid=``."""

    serializer_class = NodeSerializer
    filterset_class = NodeFilter
    ordering_fields = {
        "name": "name",
        "pool": Case(When(pool__isnull=False, then=full_name("pool__"))),
        "state": "shown_state",
        "capacity_bytes": "capacity_bytes",
        "joined_at": "joined_at",
    }
    ordering = "name"

    def rows(self) -> QuerySet[Node]:
        return nodes_list(targets=self.targets)

    def present(self, rows: Sequence[Any]) -> Sequence[Any]:
        return _with_coverage(rows)


class NodeDetail(ApiView):
    @extend_schema(responses=NodeSerializer)
    def get(self, request: Request, node_id: UUID) -> Response:
        [node] = _with_coverage([one(nodes_list(targets=self.targets).filter(pk=node_id))])
        return self.answer(NodeSerializer, node)


class NodeEntryList(ApiRowsView):
    """What one node holds and should hold."""

    serializer_class = EntrySerializer
    filterset_class = NodeEntryFilter
    ordering_fields = {"created_at": "created_at", "state": "shown_state", "bytes_total": "bytes_total"}
    ordering = "-created_at"

    def rows(self) -> QuerySet[CacheEntry]:
        node = one(nodes_list(targets=self.targets).filter(pk=self.kwargs["node_id"]))
        return entries_list(targets=self.targets).filter(node=node)


class NodeForecast(ApiView):
    """What would go next from this node if room were needed, in order."""

    @extend_schema(responses=ForecastListSerializer)
    def get(self, request: Request, node_id: UUID) -> Response:
        node = one(nodes_list(targets=self.targets).filter(pk=node_id))
        return Response(ForecastListSerializer({"items": node_forecast(node), "next": None}).data)


def _with_coverage(nodes: Sequence[Node]) -> Sequence[Node]:
    coverage = node_coverage(nodes)
    for node in nodes:
        node.coverage = coverage[node.id]  # type: ignore[attr-defined]  # read by NodeSerializer
    return nodes
