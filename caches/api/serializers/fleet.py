"""Clusters, node pools and nodes."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from caches.api.serializers.common import LabelsField, NameField, ObjectSerializer, PartNameField
from caches.selectors.nodes import free_bytes, last_known
from controlplane.clusters.documents import NodeState
from controlplane.clusters.models import ClusterType, Node
from controlplane.rest.validation import Input

STATES = [state.value for state in NodeState]


class ClusterSerializer(ObjectSerializer):
    name = serializers.CharField()
    type = serializers.ChoiceField(choices=ClusterType.choices)
    paused = serializers.BooleanField()
    nodes_count = serializers.IntegerField()
    observed_at = serializers.DateTimeField(allow_null=True)
    error = serializers.CharField(help_text="why the cluster was not reached the last time, '' when it was")


class NodePoolSerializer(ObjectSerializer):
    name = serializers.CharField(source="full_name", help_text="cluster.pool")
    cluster = serializers.CharField(source="cluster.name")
    selector = LabelsField()
    priority = serializers.IntegerField()
    cache_path = serializers.CharField()
    source_paths = serializers.ListField(child=serializers.CharField())
    high_watermark = serializers.FloatField()
    low_watermark = serializers.FloatField()
    max_downloads_per_node = serializers.IntegerField()
    max_downloads = serializers.IntegerField()
    max_requests_per_node = serializers.IntegerField()
    node_bytes_per_second = serializers.IntegerField(allow_null=True)
    evict_grace_seconds = serializers.IntegerField()
    settle_seconds = serializers.IntegerField()
    startup_taint = serializers.BooleanField()
    paused = serializers.BooleanField()
    deleting_at = serializers.DateTimeField(
        allow_null=True, help_text="since when it is being emptied and takes no pins"
    )
    status_interval_seconds = serializers.FloatField()
    freshness_seconds = serializers.FloatField()
    scrub_interval_seconds = serializers.FloatField()
    conditions = serializers.JSONField()
    nodes_count = serializers.IntegerField()


class NodePoolChanges(Input):
    """What may be changed of a pool; only the fields that are sent."""

    selector = LabelsField(required=False, allow_empty=False)
    source_paths = serializers.ListField(
        required=False, child=serializers.CharField(max_length=500), max_length=20,
        help_text="folders of its nodes that Filesystem connections may read there",
    )  # fmt: skip
    priority = serializers.IntegerField(required=False, min_value=-1000, max_value=1000)
    high_watermark = serializers.FloatField(required=False, min_value=0.05, max_value=1)
    low_watermark = serializers.FloatField(required=False, min_value=0.05, max_value=1)
    max_downloads_per_node = serializers.IntegerField(required=False, min_value=1, max_value=64)
    max_downloads = serializers.IntegerField(required=False, min_value=1, max_value=10_000)
    max_requests_per_node = serializers.IntegerField(required=False, min_value=1, max_value=256)
    node_bytes_per_second = serializers.IntegerField(
        required=False, allow_null=True, min_value=1024, max_value=2**60, help_text="null: no limit"
    )
    evict_grace_seconds = serializers.IntegerField(required=False, min_value=0, max_value=31_536_000)
    settle_seconds = serializers.IntegerField(required=False, min_value=0, max_value=86_400)
    startup_taint = serializers.BooleanField(
        required=False, help_text="remove the taint hearth.dev/cold from a node once what is pinned there is warm"
    )
    paused = serializers.BooleanField(required=False)
    status_interval_seconds = serializers.FloatField(required=False, min_value=1, max_value=3600)
    freshness_seconds = serializers.FloatField(required=False, min_value=2, max_value=86_400)
    scrub_interval_seconds = serializers.FloatField(required=False, min_value=60, max_value=31_536_000)


class NodePoolInput(NodePoolChanges):
    cluster = NameField(max_length=63)
    name = PartNameField(max_length=63)
    selector = LabelsField(allow_empty=False)
    cache_path = serializers.CharField(required=False, max_length=500)


class CoverageSerializer(serializers.Serializer[Any]):
    # The metaclass takes it off the class.
    required = serializers.IntegerField(help_text="pinned artifacts that belong here")  # type: ignore[assignment]
    ready = serializers.IntegerField(help_text="of them, verified on it now")
    bytes_required = serializers.IntegerField()
    bytes_ready = serializers.IntegerField()


class NodeSerializer(ObjectSerializer):
    """A node as nodes_list() annotates it, with ``coverage`` set on the row."""

    name = serializers.CharField()
    uid = serializers.CharField()
    cluster = serializers.CharField(source="cluster.name")
    pool = serializers.CharField(source="pool.full_name", allow_null=True, default=None)
    state = serializers.ChoiceField(choices=STATES, source="shown_state")
    last_known = serializers.SerializerMethodField()
    observed_at = serializers.DateTimeField(allow_null=True)
    reported_at = serializers.DateTimeField(allow_null=True)
    capacity_bytes = serializers.IntegerField(allow_null=True)
    free_bytes = serializers.SerializerMethodField()
    used_bytes = serializers.IntegerField()
    other_bytes = serializers.IntegerField()
    reserved_bytes = serializers.IntegerField()
    coverage = CoverageSerializer(help_text="of weights")
    image_coverage = CoverageSerializer(
        source="coverage.images", allow_null=True, help_text="of images; null where none belongs here"
    )
    labels = LabelsField()
    conditions = serializers.JSONField()
    orphans = serializers.JSONField()
    joined_at = serializers.DateTimeField()
    lost_at = serializers.DateTimeField(allow_null=True)
    agent_version = serializers.CharField()

    def get_last_known(self, node: Node) -> str | None:
        return last_known(node) if node.shown_state == NodeState.UNKNOWN else None  # type: ignore[attr-defined]

    def get_free_bytes(self, node: Node) -> int | None:
        return free_bytes(node)


class ForecastSerializer(serializers.Serializer[Any]):
    rank = serializers.IntegerField()
    digest = serializers.CharField()
    artifact = serializers.CharField()
    bytes = serializers.IntegerField()
    reason = serializers.CharField()
    detail = serializers.CharField()
    last_used_at = serializers.DateTimeField(allow_null=True)
    protected_by = serializers.CharField(allow_null=True)


class ForecastListSerializer(serializers.Serializer[Any]):
    items = ForecastSerializer(many=True)
    next = serializers.CharField(allow_null=True)
