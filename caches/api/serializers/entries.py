"""Cache entries."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from caches.api.serializers.common import ObjectSerializer
from caches.models import CacheEntry
from caches.selectors.entries import SHOWN_STATES, UNKNOWN, artifact_name
from controlplane.clusters.documents import ArtifactKind


class ArtifactSerializer(serializers.Serializer[Any]):
    kind = serializers.ChoiceField(choices=[kind.value for kind in ArtifactKind], source="artifact.kind")
    digest = serializers.CharField(source="artifact.digest")
    name = serializers.SerializerMethodField()

    def get_name(self, entry: CacheEntry) -> str:
        return artifact_name(entry)


class EntrySerializer(ObjectSerializer):
    """An entry as entries_list() annotates it."""

    node = serializers.CharField(source="node.name")
    node_id = serializers.UUIDField()
    cluster = serializers.CharField(source="node.cluster.name")
    pool = serializers.CharField(source="node.pool.full_name", allow_null=True, default=None)
    artifact = ArtifactSerializer(source="*")
    desired = serializers.CharField(help_text="Ensure, Evict, or '' for nothing")
    state = serializers.ChoiceField(choices=SHOWN_STATES, source="shown_state")
    last_known = serializers.SerializerMethodField()
    observed_at = serializers.DateTimeField(allow_null=True)
    state_since = serializers.DateTimeField(
        allow_null=True, source="shown_since", help_text="when the state began, also of Unknown; null: nobody can tell"
    )
    reason = serializers.CharField(help_text="why it failed, '' when nothing is wrong")
    message = serializers.CharField()
    attempts = serializers.IntegerField()
    retry_at = serializers.DateTimeField(allow_null=True)
    bytes_done = serializers.IntegerField()
    bytes_total = serializers.IntegerField()
    bytes_moved = serializers.IntegerField()
    rate_bytes_per_second = serializers.FloatField(allow_null=True)
    eta_seconds = serializers.FloatField(allow_null=True)
    ready_at = serializers.DateTimeField(allow_null=True)
    last_used_at = serializers.DateTimeField(allow_null=True)
    verified_at = serializers.DateTimeField(allow_null=True)
    damaged = serializers.ListField(child=serializers.CharField())
    hold_reason = serializers.CharField()
    hold_until = serializers.DateTimeField(allow_null=True)

    def get_last_known(self, entry: CacheEntry) -> str | None:
        return entry.state if entry.shown_state == UNKNOWN else None  # type: ignore[attr-defined]
