"""Images: references, what they were resolved to, and what has happened to them since."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from caches.api.serializers.catalogue import RefusalSerializer
from caches.api.serializers.common import NameField, ObjectSerializer
from caches.models import Image, ImageState
from controlplane.rest.validation import Input


class TagSerializer(serializers.Serializer[Any]):
    """What the tag names now."""

    name = serializers.CharField(source="tag")
    moved_to = serializers.CharField(help_text="the digest that it names now; empty while it is this image's")
    checked_at = serializers.DateTimeField(allow_null=True)
    message = serializers.CharField(source="check_message", help_text="why the registry could not be asked")


class RevocationSerializer(serializers.Serializer[Any]):
    at = serializers.DateTimeField(source="revoked_at")
    by = serializers.CharField(source="revoked_by")
    reason = serializers.CharField(source="revoked_reason")
    withdrawn_at = serializers.DateTimeField(allow_null=True, help_text="since when no node is to keep it")


class ImageDetailSerializer(ObjectSerializer):
    reference = serializers.CharField()
    registry = serializers.CharField(help_text="empty: the reference names none")
    repository = serializers.CharField()
    connection = serializers.CharField(source="connection.name", allow_null=True, default=None)
    pull_secret = serializers.CharField(help_text="the name of the secret, never its content")
    state = serializers.ChoiceField(choices=ImageState.choices)
    refusal = serializers.SerializerMethodField()
    digest = serializers.CharField(source="artifact.digest", allow_null=True, default=None)
    size_bytes = serializers.IntegerField(
        source="artifact.size_bytes", allow_null=True, default=None, help_text="unpacked, as on a node's disk"
    )
    compressed_bytes = serializers.IntegerField(allow_null=True, help_text="what a pull moves")
    media_type = serializers.CharField()
    platforms = serializers.ListField(child=serializers.CharField())
    resolved_at = serializers.DateTimeField(allow_null=True)
    tag = TagSerializer(source="*")
    revocation = serializers.SerializerMethodField()
    versions_count = serializers.IntegerField(help_text="model versions that it serves")

    @extend_schema_field(RefusalSerializer(allow_null=True))
    def get_refusal(self, image: Image) -> dict[str, Any] | None:
        return RefusalSerializer(image).data if image.state == ImageState.REFUSED else None

    @extend_schema_field(RevocationSerializer(allow_null=True))
    def get_revocation(self, image: Image) -> dict[str, Any] | None:
        return RevocationSerializer(image).data if image.revoked_at is not None else None


class ImageInput(Input):
    reference = serializers.CharField(max_length=300, help_text="[registry/]repository[:tag][@digest]")
    connection = NameField(
        max_length=63, required=False, allow_null=True, default=None, help_text="of type Registry; null: anonymously"
    )
    pull_secret = serializers.CharField(
        max_length=253,
        required=False,
        allow_blank=True,
        default="",
        help_text="the name of a secret that the nodes' kubelets use",
    )


class VersionImageInput(Input):
    image_id = serializers.UUIDField(allow_null=True)


class RevokeInput(Input):
    reason = serializers.CharField(max_length=500)
