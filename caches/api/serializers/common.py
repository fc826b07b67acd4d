"""What every object carries, and small shapes that several of them share."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any, ClassVar

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from caches.api.links import links_of

_OFFSET = re.compile(r"[T ].*(Z|[+-][0-9]{2}(:?[0-9]{2})?)$", re.IGNORECASE)
LONGEST_LABEL = 317  # a DNS name of 253, a slash, a name of 63


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

    default_error_messages: ClassVar[dict[str, Any]] = {
        "invalid": "A name has letters, digits, dashes and underscores, and nothing else."
    }

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            self.fail("invalid")
        return super().to_internal_value(data)


class PartNameField(NameField):
    """The name of something that is shown as ``cluster.name``, in a body that has the cluster as a field of its own."""

    def to_internal_value(self, data: Any) -> str:
        cluster, dot, name = data.partition(".") if isinstance(data, str) else ("", "", "")
        if dot and name and cluster == self.parent.initial_data.get("cluster", cluster):
            raise serializers.ValidationError(f"Leave out the cluster, which has a field of its own: {name}", "invalid")
        return super().to_internal_value(data)


class MomentField(serializers.DateTimeField):
    """A time in a body. It says its offset: hours of difference must not hang on where Hearth runs."""

    def to_internal_value(self, value: Any) -> datetime:
        moment = super().to_internal_value(value)
        if isinstance(value, str) and not _OFFSET.search(value):
            raise serializers.ValidationError("Say the offset from UTC, for example 2030-01-31T08:00:00Z.", "no-offset")
        return moment


class LabelsField(serializers.DictField):
    """Label → value, both short text; unlike in the framework's field the names are looked at as well."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(child=serializers.CharField(max_length=253, allow_blank=True), **kwargs)

    def to_internal_value(self, data: Any) -> Any:
        for name in data if isinstance(data, dict) else ():
            if not 0 < len(name) <= LONGEST_LABEL or not name.isprintable():
                detail = f"The name of a label is 1 to {LONGEST_LABEL} printable characters."
                raise serializers.ValidationError(detail, "label")
        return super().to_internal_value(data)
