"""Models and their versions: register, read, compare with the source, delete."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from caches.api.base import WAIT, WORK, ApiRowsView, ApiView, one
from caches.api.serializers.catalogue import (
    ManifestSerializer,
    ModelInput,
    ModelSerializer,
    VersionInput,
    VersionSerializer,
    WhyNotWarmSerializer,
)
from caches.filters import ModelFilter, VersionFilter
from caches.models import Model, ModelVersion, SourceConnection
from caches.selectors.catalogue import manifest_files, models_list, version_get, versions_list
from caches.selectors.previews import why_not_warm
from caches.services.catalogue import version_delete, version_recheck, version_register
from controlplane.accounts.actors import actor_of
from controlplane.accounts.models import Scope
from controlplane.errors import FieldError, Invalid


class ModelList(ApiRowsView):
    """GET the models; POST registers one with its first version."""

    write_scope = Scope.MODELS_WRITE
    serializer_class = ModelSerializer
    filterset_class = ModelFilter
    ordering_fields = {"name": "name", "created_at": "created_at", "latest_at": "latest_at"}
    ordering = "name"
    parameters = {"POST": ("wait",)}

    def rows(self) -> QuerySet[Model]:
        return models_list()

    @extend_schema(request=ModelInput, parameters=[WAIT], responses=WORK)
    def post(self, request: Request) -> Response:
        body = self.read(ModelInput, request)
        return self.follow(register(request, body["name"], body))


class ModelDetail(ApiView):
    write_scope = Scope.MODELS_WRITE

    @extend_schema(responses=ModelSerializer)
    def get(self, request: Request, model: str) -> Response:
        return self.answer(ModelSerializer, one(models_list().filter(name=model)))

    @extend_schema(responses={204: None})
    def delete(self, request: Request, model: str) -> Response:
        """All of its versions or, when one of them is pinned, none."""
        with transaction.atomic():
            for version in versions_list(model=one(models_list().filter(name=model)).name):
                version_delete(actor=actor_of(request), version_id=version.id)
        return Response(status=204)


class VersionList(ApiRowsView):
    """GET the versions of a model; POST registers one: the answer is the operation that resolves it."""

    write_scope = Scope.MODELS_WRITE
    serializer_class = VersionSerializer
    filterset_class = VersionFilter
    ordering_fields = {"version": "version", "created_at": "created_at", "size_bytes": "artifact__size_bytes"}
    ordering = "-created_at"
    parameters = {"POST": ("wait",)}

    def rows(self) -> QuerySet[ModelVersion]:
        return versions_list(model=one(models_list().filter(name=self.kwargs["model"])).name)

    @extend_schema(request=VersionInput, parameters=[WAIT], responses=WORK)
    def post(self, request: Request, model: str) -> Response:
        return self.follow(register(request, model, self.read(VersionInput, request)))


class VersionDetail(ApiView):
    write_scope = Scope.MODELS_WRITE

    @extend_schema(responses=VersionSerializer)
    def get(self, request: Request, model: str, version: str) -> Response:
        return self.answer(VersionSerializer, version_get(model=model, version=version))

    @extend_schema(responses={204: None})
    def delete(self, request: Request, model: str, version: str) -> Response:
        """Refused while something pins it. What nodes hold of it becomes evictable."""
        version_delete(actor=actor_of(request), version_id=version_get(model=model, version=version).id)
        return Response(status=204)


class VersionManifest(ApiView):
    """Every file with its size and checksum."""

    @extend_schema(responses=ManifestSerializer)
    def get(self, request: Request, model: str, version: str) -> Response:
        found = version_get(model=model, version=version)
        files = manifest_files(found)
        assert found.artifact is not None  # it has a manifest
        manifest = {"digest": found.artifact.digest, "size_bytes": found.artifact.size_bytes, "files": files}
        return Response(ManifestSerializer(manifest).data)


class VersionWhyNotWarm(ApiView):
    """For each node of the pools that want it: the chain of rules that the planner asks, and where it stops."""

    @extend_schema(responses=WhyNotWarmSerializer)
    def get(self, request: Request, model: str, version: str) -> Response:
        items = why_not_warm(version_get(model=model, version=version), targets=self.targets)
        return Response(WhyNotWarmSerializer({"items": items, "next": None}).data)


class VersionRecheck(ApiView):
    """Compare the source with the manifest now; what differs shows in ``drift``, nothing is replaced."""

    write_scope = Scope.MODELS_WRITE
    parameters = {"POST": ("wait",)}
    bodies = ()

    @extend_schema(request=None, parameters=[WAIT], responses=WORK)
    def post(self, request: Request, model: str, version: str) -> Response:
        found = version_get(model=model, version=version)
        return self.follow(version_recheck(actor=actor_of(request), version_id=found.id).id)


def register(request: Request, model: str, body: Mapping[str, Any]) -> UUID:
    """Start a registration; the id of its operation."""
    source = body["source"]
    _, operation = version_register(
        actor=actor_of(request),
        model=model,
        version=body["version"],
        connection=_connection(source["connection"]),
        uri=source["uri"],
        allow_patterns=source["allow_patterns"],
        ignore_patterns=source["ignore_patterns"],
        accept_eula=source["accept_eula"],
    )
    return operation.id


def _connection(name: str) -> SourceConnection:
    found = SourceConnection.objects.filter(name=name, token=None).first()
    if found is None:
        detail = f"There is no source connection {name}."
        error = FieldError("source.connection", "unknown", detail)
        raise Invalid("version:user:no-such-connection", detail, next_step="List the connections.", errors=[error])
    return found
