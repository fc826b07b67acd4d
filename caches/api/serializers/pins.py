"""Pins as people send and read them."""

from __future__ import annotations

import re
from datetime import time
from functools import cache
from typing import Any
from zoneinfo import available_timezones

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from caches.api.serializers.common import ConditionSerializer, LabelsField, MomentField, ObjectSerializer
from caches.domain.pool_view import PlacementType
from caches.models import GateType, Pin
from caches.selectors.pin_artifacts import image_named
from caches.selectors.pins import pin_pools
from controlplane.accounts.permissions import readable_targets
from controlplane.clusters.documents import ArtifactKind
from controlplane.rest.validation import Input

KINDS = [kind.value for kind in ArtifactKind]
PLACEMENTS = [kind.value for kind in PlacementType]
# PositiveIntegerField's end; also about 68 years.
MOST = 2_147_483_647
_LOCAL_TIME = re.compile(r"[0-9]{1,2}:[0-9]{2}(:[0-9]{2}([.,][0-9]{1,6})?)?")


class LocalTimeField(serializers.TimeField):
    """A time of day in the window's own zone. An offset is refused: the framework would drop it."""

    def to_internal_value(self, value: Any) -> time:
        if isinstance(value, str) and not _LOCAL_TIME.fullmatch(value):
            self.fail("invalid", format="hh:mm[:ss[.uuuuuu]]")
        return super().to_internal_value(value)


class WindowInput(Input):
    """Local times of day; an end before the start wraps midnight."""

    start = LocalTimeField()
    end = LocalTimeField()
    time_zone = serializers.CharField(max_length=64)

    def validate_time_zone(self, value: str) -> str:
        if value not in _time_zones():
            raise serializers.ValidationError("There is no such time zone; an example is Europe/Berlin.", "unknown")
        return value


class GateInput(Input):
    type = serializers.ChoiceField(choices=GateType.choices, default=GateType.ALL)
    value = serializers.IntegerField(
        min_value=0,
        max_value=MOST,
        required=False,
        help_text="nodes (Count), percent (Percent, by default 100) or seconds (Timeout)",
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        return _with_value(attrs)


class PlacementInput(Input):
    type = serializers.ChoiceField(choices=PLACEMENTS, default=PlacementType.ALL.value)
    value = serializers.IntegerField(
        min_value=1, max_value=MOST, required=False, help_text="nodes (Count) or percent (Percent, by default 100)"
    )
    spread_label = serializers.CharField(max_length=200, allow_blank=True, default="")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        return _with_value(attrs)


class RetentionInput(Input):
    seconds = serializers.IntegerField(min_value=0, max_value=MOST, help_text="kept after the pin is removed")


class PinChanges(Input):
    """What may be changed of a pin; only the fields that are sent."""

    pools = serializers.ListField(
        child=serializers.CharField(max_length=200), required=False, min_length=1, max_length=200
    )
    artifacts = serializers.ListField(
        child=serializers.ChoiceField(choices=KINDS), required=False, min_length=1, max_length=len(KINDS)
    )
    priority = serializers.IntegerField(required=False, min_value=0, max_value=1000)
    placement = PlacementInput(required=False)
    node_selector = LabelsField(required=False)
    window = WindowInput(required=False, allow_null=True)
    needed_at = MomentField(required=False, allow_null=True)
    suspended = serializers.BooleanField(required=False)
    retention = RetentionInput(required=False)
    gate = GateInput(required=False)


class PinInput(PinChanges):
    model = serializers.CharField(max_length=120)
    version = serializers.CharField(max_length=120)
    pools = serializers.ListField(child=serializers.CharField(max_length=200), min_length=1, max_length=200)


class WindowSerializer(serializers.Serializer[Any]):
    start = serializers.TimeField(source="window_start")
    end = serializers.TimeField(source="window_end")
    time_zone = serializers.CharField(source="window_time_zone")


class GateSerializer(serializers.Serializer[Any]):
    type = serializers.ChoiceField(choices=GateType.choices, source="gate_type")
    value = serializers.IntegerField(source="gate_value")


class PlacementSerializer(serializers.Serializer[Any]):
    type = serializers.ChoiceField(choices=PLACEMENTS, source="placement_type")
    value = serializers.IntegerField(source="placement_value")
    spread_label = serializers.CharField()


class RetentionSerializer(serializers.Serializer[Any]):
    seconds = serializers.IntegerField(source="retention_seconds")


class PinStatusSerializer(serializers.Serializer[Any]):
    target = serializers.IntegerField()
    ready = serializers.IntegerField()
    failed = serializers.IntegerField()
    eta_seconds = serializers.FloatField(allow_null=True)
    conditions = ConditionSerializer(many=True)


class PinImageSerializer(serializers.Serializer[Any]):
    reference = serializers.CharField()
    digest = serializers.CharField(source="artifact.digest", allow_null=True, default=None)


class PinSerializer(ObjectSerializer):
    """A pin as pins_list() gives it, with ``status`` set on the row."""

    model = serializers.CharField(
        source="version.model.name", allow_null=True, default=None, help_text="null: an endpoint's image alone"
    )
    version = serializers.CharField(source="version.version", allow_null=True, default=None)
    digest = serializers.CharField(source="version.artifact.digest", allow_null=True, default=None)
    pools = serializers.SerializerMethodField()
    artifacts = serializers.ListField(child=serializers.ChoiceField(choices=KINDS))
    image = serializers.SerializerMethodField(help_text="what Image among the artifacts means")
    endpoint_id = serializers.UUIDField(allow_null=True, help_text="whose pin it is, and changes with; null: people's")
    priority = serializers.IntegerField()
    placement = PlacementSerializer(source="*")
    node_selector = LabelsField()
    window = serializers.SerializerMethodField()
    needed_at = serializers.DateTimeField(allow_null=True)
    suspended = serializers.BooleanField()
    retention = RetentionSerializer(source="*")
    gate = GateSerializer(source="*")
    operation_id = serializers.UUIDField(allow_null=True, help_text="the last operation that warmed it")
    status = PinStatusSerializer()

    def get_pools(self, pin: Pin) -> list[str]:
        return list(pin_pools(pin, readable_targets(self.context["request"])))

    @extend_schema_field(PinImageSerializer(allow_null=True))
    def get_image(self, pin: Pin) -> dict[str, Any] | None:
        image = image_named(pin)
        return PinImageSerializer(image).data if image is not None else None

    @extend_schema_field(WindowSerializer(allow_null=True))
    def get_window(self, pin: Pin) -> dict[str, Any] | None:
        return WindowSerializer(pin).data if pin.window_start is not None else None


def _with_value(attrs: dict[str, Any]) -> dict[str, Any]:
    if "value" not in attrs and attrs["type"] in ("Count", "Timeout"):
        # There is no number of nodes or seconds that nobody would be surprised by.
        raise serializers.ValidationError({"value": ["Say how many."]}, "required")
    attrs.setdefault("value", 100)
    if attrs["type"] == "Percent" and not 1 <= attrs["value"] <= 100:
        raise serializers.ValidationError({"value": ["A percentage is between 1 and 100."]})
    return attrs


@cache
def _time_zones() -> frozenset[str]:
    # Asking reads a directory of hundreds of files.
    return frozenset(available_timezones())
