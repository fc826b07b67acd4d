"""Operations and audit events."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from caches.api.serializers.common import LinksField, ObjectSerializer
from controlplane.audit.models import Via
from controlplane.operations.models import Operation, OperationKind, OperationState, TargetState


class SubjectSerializer(serializers.Serializer[Any]):
    type = serializers.CharField(source="subject_type")
    id = serializers.CharField(source="subject_id")
    name = serializers.CharField(source="subject_name")


class ProgressSerializer(serializers.Serializer[Any]):
    bytes_done = serializers.IntegerField()
    bytes_total = serializers.IntegerField()
    eta_seconds = serializers.FloatField(allow_null=True)
    message = serializers.CharField()


class OperationErrorSerializer(serializers.Serializer[Any]):
    """A problem document, as an answer with an error would carry it."""

    type = serializers.CharField()
    title = serializers.CharField()
    status = serializers.IntegerField()
    detail = serializers.CharField()
    code = serializers.CharField()
    next_step = serializers.CharField()
    request_id = serializers.CharField()
    errors = serializers.JSONField()  # type: ignore[assignment]  # the metaclass takes it off the class


class OperationSerializer(ObjectSerializer):
    kind = serializers.ChoiceField(choices=OperationKind.choices)
    state = serializers.ChoiceField(choices=OperationState.choices)
    subject = SubjectSerializer(source="*")
    progress = ProgressSerializer(source="*")
    result = serializers.JSONField(allow_null=True)
    error = serializers.SerializerMethodField()
    started_by = serializers.CharField()
    started_at = serializers.DateTimeField(allow_null=True)
    ended_at = serializers.DateTimeField(allow_null=True)
    retry_of = serializers.UUIDField(source="retry_of_id", allow_null=True)
    request_id = serializers.CharField()

    @extend_schema_field(OperationErrorSerializer(allow_null=True))
    def get_error(self, operation: Operation) -> dict[str, Any] | None:
        if operation.error is None:
            return None
        return {"errors": [], **operation.error, "request_id": operation.request_id}


class TargetSerializer(serializers.Serializer[Any]):
    key = serializers.CharField()
    name = serializers.CharField()
    state = serializers.ChoiceField(choices=TargetState.choices)
    detail = serializers.CharField()
    bytes_done = serializers.IntegerField()
    bytes_total = serializers.IntegerField()


class OperationDetailSerializer(OperationSerializer):
    targets = TargetSerializer(many=True, source="targets.all")


class ObjectNameSerializer(serializers.Serializer[Any]):
    type = serializers.CharField(source="object_type")
    id = serializers.CharField(source="object_id")
    name = serializers.CharField(source="object_name")


class AuditEventSerializer(serializers.Serializer[Any]):
    """Never changes once it is written, so its three times are one."""

    id = serializers.UUIDField()
    created_at = serializers.DateTimeField(source="at")
    updated_at = serializers.DateTimeField(source="at")
    links = LinksField()
    at = serializers.DateTimeField()
    actor = serializers.CharField()
    via = serializers.ChoiceField(choices=Via.choices)
    action = serializers.CharField()
    object = ObjectNameSerializer(source="*")
    before = serializers.JSONField(allow_null=True)
    after = serializers.JSONField(allow_null=True)
    message = serializers.CharField()
    request_id = serializers.CharField()
    operation_id = serializers.UUIDField(allow_null=True)
