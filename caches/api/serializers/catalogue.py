"""Connections, models, versions, manifests and the why-not-warm chain."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from caches.api.serializers.common import NameField, ObjectSerializer
from caches.models import DriftState, ModelVersion, VersionState
from controlplane.clusters.documents import Algorithm, FileRecord, SourceType
from controlplane.rest.validation import Input

TYPES = [kind.value for kind in SourceType]


class ConnectionSerializer(ObjectSerializer):
    name = serializers.CharField()
    type = serializers.ChoiceField(choices=TYPES)
    endpoint = serializers.CharField()
    region = serializers.CharField()
    addressing = serializers.CharField()
    ca_bundle = serializers.CharField()
    secret_name = serializers.CharField(help_text="the name of the secret, never its content")
    allowed = serializers.ListField(child=serializers.CharField())
    namespaces = serializers.ListField(child=serializers.CharField())
    manifest = serializers.CharField()
    hub_endpoint = serializers.CharField()
    max_downloads = serializers.IntegerField(allow_null=True)
    bytes_per_second = serializers.IntegerField(allow_null=True)
    state = serializers.CharField(help_text="Unchecked, Reachable, Unreachable or AccessDenied")
    message = serializers.CharField()
    observed_at = serializers.DateTimeField(allow_null=True)
    versions_count = serializers.IntegerField()


class ConnectionChanges(Input):
    """What may be changed of a connection; only the fields that are sent."""

    endpoint = serializers.CharField(required=False, allow_blank=True, max_length=500)
    region = serializers.CharField(required=False, allow_blank=True, max_length=64)
    addressing = serializers.ChoiceField(required=False, choices=["path", "virtual"])
    ca_bundle = serializers.CharField(required=False, allow_blank=True, max_length=200_000)
    secret_name = serializers.CharField(required=False, allow_blank=True, max_length=100)
    allowed = serializers.ListField(
        required=False, child=serializers.CharField(max_length=500), min_length=1, max_length=100
    )
    namespaces = serializers.ListField(
        required=False,
        child=serializers.CharField(max_length=63),
        max_length=1000,
        help_text="whose endpoints may have it read for them; empty: every namespace",
    )
    manifest = serializers.CharField(
        required=False, allow_blank=True, max_length=1100, help_text="JumpStart: s3://bucket/key; empty: the region's"
    )
    hub_endpoint = serializers.CharField(
        required=False, allow_blank=True, max_length=500, help_text="JumpStart: for gated models; empty: the region's"
    )
    max_downloads = serializers.IntegerField(
        required=False, allow_null=True, min_value=1, max_value=10_000, help_text="running at once over all pools"
    )
    bytes_per_second = serializers.IntegerField(
        required=False,
        allow_null=True,
        min_value=1024,
        max_value=10**15,
        help_text="read at most, by all nodes together",
    )


class ConnectionInput(ConnectionChanges):
    name = NameField(max_length=63)
    type = serializers.ChoiceField(choices=TYPES)
    allowed = serializers.ListField(
        child=serializers.CharField(max_length=500),
        min_length=1,
        max_length=100,
        help_text="buckets (S3), root folders (Filesystem), repositories (HuggingFace, Registry), models (JumpStart)",
    )


class ModelSerializer(ObjectSerializer):
    name = serializers.CharField()
    versions_count = serializers.IntegerField()
    latest_at = serializers.DateTimeField(allow_null=True, help_text="when its last version was registered")


class SourceSerializer(serializers.Serializer[Any]):
    connection = serializers.CharField(source="connection.name")
    uri = serializers.CharField()
    revision = serializers.CharField()
    allow_patterns = serializers.ListField(child=serializers.CharField())
    ignore_patterns = serializers.ListField(child=serializers.CharField())


class DriftChange(serializers.Serializer[Any]):
    path = serializers.CharField()
    change = serializers.CharField(help_text="Added, Removed or Changed")


class DriftSerializer(serializers.Serializer[Any]):
    state = serializers.ChoiceField(choices=DriftState.choices, source="drift")
    changed = DriftChange(many=True, source="drift_changed")
    checked_at = serializers.DateTimeField(source="drift_checked_at", allow_null=True)


class ImageSerializer(serializers.Serializer[Any]):
    reference = serializers.CharField()
    digest = serializers.CharField()


class RefusalSerializer(serializers.Serializer[Any]):
    code = serializers.CharField()
    detail = serializers.CharField(source="message")
    next_step = serializers.CharField()


class VersionSerializer(ObjectSerializer):
    model = serializers.CharField(source="model.name")
    version = serializers.CharField()
    state = serializers.ChoiceField(choices=VersionState.choices)
    refusal = serializers.SerializerMethodField()
    source = SourceSerializer(source="*")  # type: ignore[assignment]  # the metaclass takes it off the class
    digest = serializers.CharField(source="artifact.digest", allow_null=True, default=None)
    files_count = serializers.IntegerField(source="artifact.files_count", allow_null=True, default=None)
    size_bytes = serializers.IntegerField(source="artifact.size_bytes", allow_null=True, default=None)
    anchored = serializers.BooleanField(source="artifact.anchored", allow_null=True, default=None)
    drift = DriftSerializer(source="*")
    image = serializers.SerializerMethodField()
    metadata = serializers.JSONField()

    @extend_schema_field(RefusalSerializer(allow_null=True))
    def get_refusal(self, version: ModelVersion) -> dict[str, Any] | None:
        return RefusalSerializer(version).data if version.state == VersionState.REFUSED else None

    @extend_schema_field(ImageSerializer(allow_null=True))
    def get_image(self, version: ModelVersion) -> dict[str, Any] | None:
        image = version.image
        if image is None or image.artifact is None:
            return None
        return {"reference": image.reference, "digest": image.artifact.digest}


class SourceInput(Input):
    connection = NameField(max_length=63)
    uri = serializers.CharField(max_length=1500)
    accept_eula = serializers.BooleanField(
        required=False, default=False, help_text="true accepts the model's terms in the name of whoever sends this"
    )
    allow_patterns = serializers.ListField(
        child=serializers.CharField(max_length=200), required=False, default=list, max_length=100
    )
    ignore_patterns = serializers.ListField(
        child=serializers.CharField(max_length=200), required=False, default=list, max_length=100
    )


class VersionInput(Input):
    # Part of addresses, so only what needs no quoting there.
    version = serializers.RegexField(r"^[A-Za-z0-9][A-Za-z0-9._+-]*$", max_length=120)
    source = SourceInput()  # type: ignore[assignment]  # the metaclass takes it off the class


class ModelInput(VersionInput):
    """A model comes into being with its first version."""

    name = NameField(max_length=120)


class ChecksumSerializer(serializers.Serializer[FileRecord]):
    algorithm = serializers.ChoiceField(choices=[algorithm.value for algorithm in Algorithm])
    value = serializers.CharField(source="checksum")
    anchor = serializers.BooleanField(
        source="algorithm.is_content", help_text="true: a checksum of the content; false: only a revision's name"
    )


class FileSerializer(serializers.Serializer[FileRecord]):
    path = serializers.CharField()
    size_bytes = serializers.IntegerField()
    checksum = ChecksumSerializer(source="*")


class ManifestSerializer(serializers.Serializer[Any]):
    digest = serializers.CharField()
    size_bytes = serializers.IntegerField()
    files = FileSerializer(many=True)


class CheckSerializer(serializers.Serializer[Any]):
    check = serializers.CharField()
    passed = serializers.BooleanField(allow_null=True, help_text="null: not reached, or unknown")
    detail = serializers.CharField()


class NodeChecksSerializer(serializers.Serializer[Any]):
    node = serializers.CharField()
    node_id = serializers.UUIDField()
    pool = serializers.CharField()
    warm = serializers.BooleanField(allow_null=True, help_text="true when every check passed; null: unknown")
    checks = CheckSerializer(many=True)


class WhyNotWarmSerializer(serializers.Serializer[Any]):
    items = NodeChecksSerializer(many=True)
    next = serializers.CharField(allow_null=True)
