"""The plan: one shape for dry run, forecast, refusal and what really happens."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from caches.domain.plans import EvictReason, MoveReason, WaitReason


def _names(kind: Any) -> list[str]:
    return [one.value for one in kind]


class LineSerializer(serializers.Serializer[Any]):
    """What every line names: where, and which artifact."""

    pool = serializers.CharField()
    node = serializers.CharField()
    node_uid = serializers.CharField()
    artifact = serializers.CharField(help_text="name for people")
    digest = serializers.CharField()


class MoveSerializer(LineSerializer):
    bytes = serializers.IntegerField()
    source = serializers.CharField()  # type: ignore[assignment]  # the metaclass takes it off the class
    estimated_seconds = serializers.FloatField(allow_null=True)
    order = serializers.IntegerField()
    reason = serializers.ChoiceField(choices=_names(MoveReason))
    after_evictions = serializers.BooleanField()


class EvictionSerializer(LineSerializer):
    bytes = serializers.IntegerField()
    reason = serializers.ChoiceField(choices=_names(EvictReason))
    detail = serializers.CharField()
    last_used_at = serializers.DateTimeField(allow_null=True)
    restore_seconds = serializers.FloatField(allow_null=True)


class RefusalLineSerializer(LineSerializer):
    reason = serializers.CharField()
    detail = serializers.CharField()
    need_bytes = serializers.IntegerField()
    free_bytes = serializers.IntegerField()
    reserved_bytes = serializers.IntegerField()
    next_step = serializers.CharField()


class WaitSerializer(LineSerializer):
    reason = serializers.ChoiceField(choices=_names(WaitReason))
    detail = serializers.CharField()
    until = serializers.DateTimeField(allow_null=True)


class PlanSerializer(serializers.Serializer[Any]):
    moves = MoveSerializer(many=True)
    evictions = EvictionSerializer(many=True)
    refusals = RefusalLineSerializer(many=True)
    waits = WaitSerializer(many=True)
    total_bytes = serializers.IntegerField()
    estimated_seconds = serializers.FloatField(allow_null=True)
    estimate_basis = serializers.IntegerField(
        allow_null=True, help_text="how many transfers it was measured on; null: none, so no time is estimated"
    )
    notes = serializers.ListField(child=serializers.CharField())
