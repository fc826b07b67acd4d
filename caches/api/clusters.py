"""Clusters: registered here, watched by themselves from then on, adopted after a database was lost."""

from __future__ import annotations

from django.db.models import QuerySet
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from caches.api.base import ApiRowsView, ApiView, one
from caches.api.serializers.clusters import AdoptionSerializer, ClusterInput
from caches.api.serializers.fleet import ClusterSerializer
from caches.filters import ClusterFilter
from caches.selectors.nodes import clusters_list
from caches.services.adoption import cluster_adopt
from controlplane.accounts.actors import actor_of
from controlplane.accounts.models import Scope
from controlplane.accounts.permissions import require_target
from controlplane.clusters.models import Cluster
from controlplane.clusters.services import cluster_create, cluster_try
from controlplane.rest.validation import flag

DRY_RUN = OpenApiParameter("dry_run", OpenApiTypes.BOOL, description="Write nothing; say what would be adopted")


class ClusterList(ApiRowsView):
    """GET the clusters; POST one more. One that does not answer is taken all the same: its ``error`` says why."""

    write_scope = Scope.FLEET_WRITE
    serializer_class = ClusterSerializer
    filterset_class = ClusterFilter
    ordering_fields = {"name": "name", "created_at": "created_at"}
    ordering = "name"

    def rows(self) -> QuerySet[Cluster]:
        return clusters_list(targets=self.targets)

    @extend_schema(request=ClusterInput, responses={201: ClusterSerializer})
    def post(self, request: Request) -> Response:
        require_target(request, Scope.FLEET_WRITE, "")
        made = cluster_create(actor=actor_of(request), **self.read(ClusterInput, request))
        cluster_try(cluster_id=made.pk)
        return self.answer(ClusterSerializer, clusters_list().get(pk=made.pk), status=201)


class ClusterDetail(ApiView):
    @extend_schema(responses=ClusterSerializer)
    def get(self, request: Request, name: str) -> Response:
        return self.answer(ClusterSerializer, one(clusters_list(targets=self.targets).filter(name=name)))


class ClusterAdopt(ApiView):
    """Read versions, their sources and their copies back from a cluster. Nothing on the cluster is changed."""

    write_scope = Scope.FLEET_WRITE
    parameters = {"POST": ("dry_run",)}
    bodies = ()

    @extend_schema(request=None, parameters=[DRY_RUN], responses=AdoptionSerializer)
    def post(self, request: Request, name: str) -> Response:
        cluster = one(clusters_list(targets=self.targets).filter(name=name))
        # Versions and source connections are everybody's: who may change one cluster alone may not make them.
        require_target(request, Scope.FLEET_WRITE, "")
        found = cluster_adopt(actor=actor_of(request), cluster_id=cluster.pk, dry_run=flag(request, "dry_run"))
        return Response(AdoptionSerializer(found).data)
