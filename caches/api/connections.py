"""Source connections: where stores are."""

from __future__ import annotations

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from caches.api.base import ApiRowsView, ApiView, one
from caches.api.serializers.catalogue import ConnectionChanges, ConnectionInput, ConnectionSerializer
from caches.filters import ConnectionFilter
from caches.models import SourceConnection
from caches.selectors.catalogue import connections_list
from caches.services.connections import connection_create, connection_delete, connection_update
from controlplane.accounts.actors import actor_of
from controlplane.accounts.models import Scope
from controlplane.accounts.permissions import require_target
from controlplane.rest.etags import expected_version


class ConnectionList(ApiRowsView):
    """GET the connections; POST one more. Its access is checked in the background."""

    write_scope = Scope.FLEET_WRITE
    serializer_class = ConnectionSerializer
    filterset_class = ConnectionFilter
    ordering_fields = {"name": "name", "created_at": "created_at", "state": "state"}
    ordering = "name"

    def rows(self) -> QuerySet[SourceConnection]:
        return connections_list()

    @extend_schema(request=ConnectionInput, responses={201: ConnectionSerializer})
    def post(self, request: Request) -> Response:
        require_target(request, Scope.FLEET_WRITE, "")
        made = connection_create(actor=actor_of(request), **self.read(ConnectionInput, request))
        return self.answer(ConnectionSerializer, _connection(made.name), status=201, edited=True)


class ConnectionDetail(ApiView):
    write_scope = Scope.FLEET_WRITE

    @extend_schema(responses=ConnectionSerializer)
    def get(self, request: Request, name: str) -> Response:
        return self.answer(ConnectionSerializer, _connection(name), edited=True)

    @extend_schema(request=ConnectionChanges, responses=ConnectionSerializer, extensions={"x-edited": True})
    def patch(self, request: Request, name: str) -> Response:
        require_target(request, Scope.FLEET_WRITE, "")
        connection = _connection(name)
        version = expected_version(request, connection)
        connection_update(
            actor=actor_of(request),
            connection_id=connection.id,
            changes=self.read(ConnectionChanges, request),
            if_updated_at=version,
        )
        return self.answer(ConnectionSerializer, _connection(name), edited=True)

    @extend_schema(responses={204: None}, extensions={"x-edited": True})
    def delete(self, request: Request, name: str) -> Response:
        require_target(request, Scope.FLEET_WRITE, "")
        connection = _connection(name)
        version = expected_version(request, connection)
        connection_delete(actor=actor_of(request), connection_id=connection.id, if_updated_at=version)
        return Response(status=204)


def _connection(name: str) -> SourceConnection:
    return one(connections_list().filter(name=name))
