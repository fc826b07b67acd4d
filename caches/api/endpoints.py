"""Endpoints and rollouts: read, preview and apply a document, open a gate, go back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from django.db.models import Prefetch, QuerySet, prefetch_related_objects
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, PolymorphicProxySerializer, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from caches.api.base import WAIT, WORK, ApiRowsView, ApiView
from caches.api.plans import plan_document
from caches.api.serializers.endpoints import (
    EndpointCacheInput,
    EndpointDetailSerializer,
    EndpointInput,
    EndpointPreviewSerializer,
    EndpointSerializer,
    RolloutDetailSerializer,
    RolloutHoldInput,
    RolloutSerializer,
)
from caches.api.serializers.operations import OperationDetailSerializer
from caches.filters import EndpointFilter, RolloutFilter
from caches.models import Rollout
from caches.selectors.endpoints import (
    endpoint_get,
    endpoints_list,
    nodes_seen,
    rollout_gate,
    rollout_get,
    rollout_nodes,
    rollout_warmth,
    rollouts_list,
)
from caches.selectors.nodes import clusters_list
from caches.services.endpoints.cache import endpoint_cache_set
from caches.services.endpoints.documents import (
    endpoint_apply,
    manifest_read,
    rollback_document,
    rollout_rollback,
)
from caches.services.endpoints.preview import endpoint_preview
from caches.services.endpoints.rollout_holds import rollout_hold
from caches.services.endpoints.rollouts import rollout_release
from controlplane.accounts.actors import actor_of
from controlplane.accounts.models import Scope
from controlplane.accounts.permissions import readable_targets, require_target
from controlplane.clusters.models import Cluster
from controlplane.errors import FieldError, Invalid
from controlplane.rest.validation import flag
from controlplane.serving.models import Endpoint, Instance
from controlplane.serving.withholding import with_places

PREVIEW = OpenApiParameter("dry_run", OpenApiTypes.BOOL, description="Write nothing; say what the document would do")
_EITHER = PolymorphicProxySerializer(
    "EndpointPreviewOrOperation",
    serializers=[EndpointPreviewSerializer, OperationDetailSerializer],
    resource_type_field_name=None,
)
PREVIEW_OR_ENDED = {
    **WORK,
    200: OpenApiResponse(_EITHER, description="What it would do (dry_run=true), or it ended within ?wait="),
}


class EndpointList(ApiRowsView):
    """GET the endpoints, those that trials made and took away again by their name alone; POST a document as ``kubectl
    apply`` would, but never by force."""

    write_scope = Scope.ROLLOUTS_WRITE
    serializer_class = EndpointSerializer
    filterset_class = EndpointFilter
    ordering_fields = {"name": "name", "namespace": "namespace", "created_at": "created_at"}
    ordering = "name"
    parameters = {"POST": ("dry_run", "wait")}

    def rows(self) -> QuerySet[Endpoint]:
        return endpoints_list(targets=self.targets)

    @extend_schema(request=EndpointInput, parameters=[PREVIEW, WAIT], responses=PREVIEW_OR_ENDED)
    def post(self, request: Request) -> Response:
        body = self.read(EndpointInput, request)
        cluster = clusters_list(targets=self.targets).filter(name=body["cluster"]).first()
        if cluster is None:
            wrong = FieldError("cluster", "endpoint:user:no-such-cluster", "There is no such cluster.")
            raise Invalid(wrong.code, wrong.detail, next_step="List the clusters.", errors=[wrong])
        require_target(request, Scope.ROLLOUTS_WRITE, cluster.name)
        document = manifest_read(body["manifest"])
        if flag(request, "dry_run"):
            return _previewed(cluster, document)
        return self.follow(endpoint_apply(actor=actor_of(request), cluster=cluster, document=document).id)


class EndpointDetail(ApiView):
    @extend_schema(responses=EndpointDetailSerializer)
    def get(self, request: Request, endpoint_id: UUID) -> Response:
        row = endpoint_get(endpoint_id=endpoint_id, targets=self.targets)
        prefetch_related_objects([row], Prefetch("instances", Instance.objects.select_related("node__pool")))
        with_places(list(row.instances.all()), self.targets)
        return self.answer(EndpointDetailSerializer, row)


class EndpointCache(ApiView):
    """Switch the caches of an endpoint that the vendor's operator reconciles; nothing else of it is ever changed."""

    write_scope = Scope.ROLLOUTS_WRITE
    parameters = {"POST": ("wait",)}

    @extend_schema(request=EndpointCacheInput, parameters=[WAIT], responses=WORK)
    def post(self, request: Request, endpoint_id: UUID) -> Response:
        row = endpoint_get(endpoint_id=endpoint_id, targets=self.targets)
        require_target(request, Scope.ROLLOUTS_WRITE, row.cluster.name)
        body = self.read(EndpointCacheInput, request)
        return self.follow(endpoint_cache_set(actor=actor_of(request), endpoint_id=row.pk, **body).id)


class RolloutList(ApiRowsView):
    serializer_class = RolloutSerializer
    filterset_class = RolloutFilter
    ordering_fields = {"created_at": "created_at", "state": "state", "number": "number"}
    ordering = "-created_at"

    def rows(self) -> QuerySet[Rollout]:
        return rollouts_list(targets=self.targets)


class RolloutDetail(ApiView):
    """With every target node: those that are not Ready are what its gate waits for."""

    @extend_schema(responses=RolloutDetailSerializer)
    def get(self, request: Request, rollout_id: UUID) -> Response:
        return _shown(request, rollout_get(rollout_id=rollout_id, targets=self.targets))


class RolloutRelease(ApiView):
    """Open the gate of one that waits; end the hold of one that is done."""

    write_scope = Scope.ROLLOUTS_WRITE
    bodies = ()

    @extend_schema(request=None, responses=RolloutDetailSerializer)
    def post(self, request: Request, rollout_id: UUID) -> Response:
        row = rollout_get(rollout_id=rollout_id, targets=self.targets)
        require_target(request, Scope.ROLLOUTS_WRITE, row.endpoint.cluster.name)
        rollout_release(actor=actor_of(request), rollout_id=row.pk)
        return _shown(request, rollout_get(rollout_id=rollout_id, targets=self.targets))


class RolloutHold(ApiView):
    """Keep the version before one that is held for longer, or for less; what the document says counts for the next."""

    write_scope = Scope.ROLLOUTS_WRITE

    @extend_schema(request=RolloutHoldInput, responses=RolloutDetailSerializer)
    def post(self, request: Request, rollout_id: UUID) -> Response:
        row = rollout_get(rollout_id=rollout_id, targets=self.targets)
        require_target(request, Scope.ROLLOUTS_WRITE, row.endpoint.cluster.name)
        rollout_hold(actor=actor_of(request), rollout_id=row.pk, **self.read(RolloutHoldInput, request))
        return _shown(request, rollout_get(rollout_id=rollout_id, targets=self.targets))


class RolloutRollback(ApiView):
    """Ask for what this rollout served. Its answer's operation says who holds the fields, where that is not Hearth;
    a dry run does so before."""

    write_scope = Scope.ROLLOUTS_WRITE
    parameters = {"POST": ("dry_run", "wait")}
    bodies = ()

    @extend_schema(request=None, parameters=[PREVIEW, WAIT], responses=PREVIEW_OR_ENDED)
    def post(self, request: Request, rollout_id: UUID) -> Response:
        row = rollout_get(rollout_id=rollout_id, targets=self.targets)
        require_target(request, Scope.ROLLOUTS_WRITE, row.endpoint.cluster.name)
        if flag(request, "dry_run"):
            return _previewed(row.endpoint.cluster, rollback_document(row))
        return self.follow(rollout_rollback(actor=actor_of(request), rollout_id=row.pk).id)


def _previewed(cluster: Cluster, document: Mapping[str, Any]) -> Response:
    found = endpoint_preview(cluster=cluster, document=document)
    context = {"plan": plan_document(found.plans) if found.plans else None}
    return Response(EndpointPreviewSerializer(found, context=context).data)


def _shown(request: Request, row: Rollout) -> Response:
    nodes = rollout_nodes(row)
    seen = nodes_seen(nodes, cluster=row.endpoint.cluster, targets=readable_targets(request))
    context = {"request": request, "nodes": seen, "gate": rollout_gate(row, nodes), "warm": rollout_warmth(row)}
    return Response(RolloutDetailSerializer(row, context=context).data)
