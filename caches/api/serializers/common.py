"""What every object carries, and small shapes that several of them share."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from caches.api.links import links_of


class Links(serializers.Serializer[Any]):
    self = serializers.URLField()
    ui = serializers.URLField(help_text="the page that a person would open")


@extend_schema_field(Links)
class LinksField(serializers.Field[Any, Any, Any, Any]):
    columns = ("self", "ui")  # of its CSV form

    def __init__(self) -> None:
        super().__init__(source="*", read_only=True)

    def to_representation(self, value: Any) -> dict[str, str]:
        return links_of(self.context["request"], value)


class ObjectSerializer(serializers.Serializer[Any]):
    """``id``, the two times and the links."""

    id = serializers.UUIDField()
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()
    links = LinksField()


class ConditionSerializer(serializers.Serializer[Any]):
    type = serializers.CharField()
    status = serializers.ChoiceField(choices=["True", "False", "Unknown"])
    reason = serializers.CharField()
    message = serializers.CharField()
    last_transition = serializers.DateTimeField(allow_null=True, help_text="null: unknown")


class NameField(serializers.SlugField):
    """A name in a body. A number is refused instead of becoming text: it is not what somebody called the thing."""

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            self.fail("invalid")
        return super().to_internal_value(data)


def labels_field(**kwargs: Any) -> serializers.DictField:
    """Label → value, both short text."""
    return serializers.DictField(child=serializers.CharField(max_length=253, allow_blank=True), **kwargs)
