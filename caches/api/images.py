"""Images: register a reference, read, revoke and restore a digest, delete."""

from __future__ import annotations

from uuid import UUID

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from caches.api.base import DRY_RUN, WAIT, WORK, ApiRowsView, ApiView, plan_or
from caches.api.plans import plan_response
from caches.api.serializers.catalogue import VersionSerializer
from caches.api.serializers.images import ImageDetailSerializer, ImageInput, RevokeInput, VersionImageInput
from caches.filters import ImageFilter
from caches.models import Image, SourceConnection
from caches.selectors.catalogue import version_get
from caches.selectors.images import image_get, image_pools, images_list, withdraw_preview
from caches.services.images.catalogue import image_delete, image_register, image_restore, image_revoke
from caches.services.images.of_version import version_image_set
from controlplane.accounts.actors import actor_of
from controlplane.accounts.models import Scope
from controlplane.accounts.permissions import require_target
from controlplane.clusters.documents import SourceType
from controlplane.errors import FieldError, Invalid
from controlplane.rest.validation import flag


class ImageList(ApiRowsView):
    """GET the images; POST registers a reference: the answer is the operation that asks its registry.

    The same reference again looks whether its tag has moved; then it becomes another image beside the first.
    """

    write_scope = Scope.MODELS_WRITE
    serializer_class = ImageDetailSerializer
    filterset_class = ImageFilter
    ordering_fields = {"reference": "reference", "created_at": "created_at", "size_bytes": "artifact__size_bytes"}
    ordering = "reference"
    parameters = {"POST": ("wait",)}

    def rows(self) -> QuerySet[Image]:
        return images_list()

    @extend_schema(request=ImageInput, parameters=[WAIT], responses=WORK)
    def post(self, request: Request) -> Response:
        body = self.read(ImageInput, request)
        _, operation = image_register(
            actor=actor_of(request),
            reference=body["reference"],
            connection=_connection(body["connection"]),
            pull_secret=body["pull_secret"],
        )
        return self.follow(operation.id)


class ImageDetail(ApiView):
    write_scope = Scope.MODELS_WRITE

    @extend_schema(responses=ImageDetailSerializer)
    def get(self, request: Request, image_id: UUID) -> Response:
        return self.answer(ImageDetailSerializer, image_get(image_id=image_id))

    @extend_schema(responses={204: None})
    def delete(self, request: Request, image_id: UUID) -> Response:
        """Refused while it serves a model version, and while it is revoked."""
        image_delete(actor=actor_of(request), image_id=image_id)
        return Response(status=204)


class ImageRevoke(ApiView):
    """Refuse its digest for new pins from now on, whatever reference names it."""

    write_scope = Scope.MODELS_WRITE

    @extend_schema(request=RevokeInput, responses=ImageDetailSerializer)
    def post(self, request: Request, image_id: UUID) -> Response:
        image_get(image_id=image_id)
        body = self.read(RevokeInput, request)
        image_revoke(actor=actor_of(request), image_id=image_id, reason=body["reason"])
        return self.answer(ImageDetailSerializer, image_get(image_id=image_id))


class ImageWithdraw(ApiView):
    """Revoke its digest and let go of it on every node, whatever pin wants it there. Who runs it is not disturbed."""

    write_scope = Scope.EVICT
    parameters = {"POST": ("dry_run",)}

    @extend_schema(request=RevokeInput, parameters=[DRY_RUN], responses=plan_or(ImageDetailSerializer))
    def post(self, request: Request, image_id: UUID) -> Response:
        image = image_get(image_id=image_id)
        body = self.read(RevokeInput, request)
        require_target(request, Scope.EVICT, *(pool.full_name for pool in image_pools(image)))
        if flag(request, "dry_run"):
            return plan_response(withdraw_preview(image))
        image_revoke(actor=actor_of(request), image_id=image_id, reason=body["reason"], withdraw=True)
        return self.answer(ImageDetailSerializer, image_get(image_id=image_id))


class VersionImage(ApiView):
    """Say which image serves a model version; pins that warm the version's image follow. ``null``: none is known."""

    write_scope = Scope.MODELS_WRITE

    @extend_schema(request=VersionImageInput, responses=VersionSerializer)
    def post(self, request: Request, model: str, version: str) -> Response:
        found = version_get(model=model, version=version)
        body = self.read(VersionImageInput, request)
        version_image_set(actor=actor_of(request), version_id=found.id, image_id=body["image_id"])
        return self.answer(VersionSerializer, version_get(model=model, version=version))


class ImageRestore(ApiView):
    """Take its revocation back."""

    write_scope = Scope.MODELS_WRITE
    bodies = ()

    @extend_schema(request=None, responses=ImageDetailSerializer)
    def post(self, request: Request, image_id: UUID) -> Response:
        image_restore(actor=actor_of(request), image_id=image_id)
        return self.answer(ImageDetailSerializer, image_get(image_id=image_id))


def _connection(name: str | None) -> SourceConnection | None:
    if name is None:
        return None
    found = SourceConnection.objects.filter(name=name, type=SourceType.REGISTRY).first()
    if found is None:
        detail = f"There is no connection {name} of type Registry."
        error = FieldError("connection", "unknown", detail)
        raise Invalid("image:user:no-such-connection", detail, next_step="List the connections.", errors=[error])
    return found
