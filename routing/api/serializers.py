"""Policies, instances and routers as people send and read them. The managed API's names are kept as they are."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from controlplane.rest.validation import Input
from routing.api.base import RoutedObject
from routing.domain.policies import PREFIX_LENGTHS, SPELLINGS, THRESHOLDS, RoutingStrategy

STRATEGIES = [strategy.value for strategy in RoutingStrategy]


class PrefixAwareInput(Input):
    """Both are needed with PREFIX_AWARE, and neither may be there without it."""

    PrefixLength = serializers.IntegerField(
        min_value=PREFIX_LENGTHS[0],
        max_value=PREFIX_LENGTHS[1],
        help_text="characters of message text, bytes of a raw body: what all requests of a group begin with, and more",
    )
    ConcurrencyThreshold = serializers.IntegerField(
        min_value=THRESHOLDS[0],
        max_value=THRESHOLDS[1],
        help_text="requests in flight on an instance at which others get what would be next",
    )


class ExtensionsInput(Input):
    """Hearth's own; each may be left out."""

    adaptive_depth = serializers.BooleanField(required=False, help_text="pass over beginnings that everybody sends")
    strict_text = serializers.BooleanField(required=False, help_text="hash message text alone, no roles and tools")
    key_header = serializers.CharField(
        required=False, allow_blank=True, max_length=64, help_text="a header whose value is the key"
    )
    body_key = serializers.BooleanField(required=False, help_text="prompt_cache_key of a body is the key")
    hot_fraction = serializers.FloatField(
        required=False, min_value=0.05, max_value=1, help_text="a beginning is hot above this share, over instances"
    )
    queue_when_saturated = serializers.BooleanField(required=False, help_text="wait for room, up to 30 seconds")
    inspect_bodies = serializers.BooleanField(required=False, help_text="false: requests are never looked into")


class RoutingPolicyInput(Input):
    RoutingStrategy = serializers.ChoiceField(choices=STRATEGIES, required=False)
    PrefixAwareRoutingConfig = PrefixAwareInput(required=False)
    RoutingExtensions = ExtensionsInput(required=False)
    routingStrategy = serializers.ChoiceField(
        choices=list(SPELLINGS), required=False, help_text="HyperPod's spelling, instead of RoutingStrategy"
    )


class PolicyDocumentSerializer(serializers.Serializer[Any]):
    """A policy as routers run it: every extension is spelled out."""

    RoutingStrategy = serializers.ChoiceField(choices=STRATEGIES)
    PrefixAwareRoutingConfig = PrefixAwareInput(required=False)
    RoutingExtensions = ExtensionsInput()


class PolicyInForceSerializer(serializers.Serializer[Any]):
    """``version`` 0: nobody has set one here; it comes from the endpoint's document, or is the default."""

    endpoint_id = serializers.UUIDField()
    variant = serializers.CharField()
    version = serializers.IntegerField()
    policy = serializers.SerializerMethodField()
    notes = serializers.ListField(child=serializers.CharField())
    set_by = serializers.CharField(help_text="empty for version 0")
    updated_at = serializers.DateTimeField(allow_null=True, help_text="since when; null for version 0")
    published_version = serializers.IntegerField(allow_null=True, help_text="of the routers' configuration")

    @extend_schema_field(PolicyDocumentSerializer)
    def get_policy(self, shown: Any) -> Any:
        return shown["policy"]


class PolicyPreviewSerializer(serializers.Serializer[Any]):
    """What setting it would do: nothing was written."""

    before = PolicyDocumentSerializer()
    after = PolicyDocumentSerializer()
    changes = serializers.BooleanField(help_text="false: the same is in force already")
    notes = serializers.ListField(child=serializers.CharField())


class RoutingPolicySerializer(RoutedObject):
    endpoint_id = serializers.UUIDField(source="variant.endpoint_id")
    cluster = serializers.CharField(source="variant.endpoint.cluster.name")
    namespace = serializers.CharField(source="variant.endpoint.namespace")
    endpoint = serializers.CharField(source="variant.endpoint.name")
    variant = serializers.CharField(source="variant.name")
    version = serializers.IntegerField()
    strategy = serializers.ChoiceField(choices=STRATEGIES)
    policy = serializers.SerializerMethodField()
    notes = serializers.ListField(child=serializers.CharField())
    set_by = serializers.CharField()

    @extend_schema_field(PolicyDocumentSerializer)
    def get_policy(self, row: Any) -> Any:
        return row.document


class RoutedInstanceSerializer(RoutedObject):
    """One copy that may get requests."""

    endpoint_id = serializers.UUIDField()
    cluster = serializers.CharField(source="endpoint.cluster.name")
    endpoint = serializers.CharField(source="endpoint.name")
    name = serializers.CharField()
    uid = serializers.CharField(help_text="by which routers know it")
    node = serializers.CharField(source="node.name", allow_null=True, default=None)
    digest = serializers.CharField(help_text="of what it serves")
    address = serializers.CharField(help_text="empty while it has none: it gets no requests")
    ready = serializers.BooleanField()
    in_flight = serializers.IntegerField(allow_null=True, help_text="over all routers; null: no router says")
    ejected_by = serializers.IntegerField(
        allow_null=True, help_text="routers that leave it out for its failures; null: no router says"
    )
    observed_at = serializers.DateTimeField()


class RouterSerializer(RoutedObject):
    """One router process."""

    name = serializers.CharField(help_text="drawn when it starts")
    host = serializers.CharField()
    address = serializers.CharField(help_text="where it serves")
    config_version = serializers.IntegerField()
    published_version = serializers.IntegerField(allow_null=True, help_text="that it should run")
    current = serializers.BooleanField(allow_null=True, help_text="whether it runs that one; null: not heard of lately")
    in_flight = serializers.IntegerField(allow_null=True, help_text="null: not heard of lately")
    started_at = serializers.DateTimeField()
    seen_at = serializers.DateTimeField()


class ExplainInput(Input):
    """A request as a client would send it to a router."""

    path = serializers.CharField(max_length=2000, default="/v1/chat/completions")
    body = serializers.CharField(
        max_length=1024 * 1024, allow_blank=True, trim_whitespace=False, help_text="its body, as text"
    )
    tenant = serializers.CharField(max_length=64, default="", help_text="its X-Amzn-SageMaker-Prefix-Aware-Id")
    headers = serializers.DictField(child=serializers.CharField(max_length=512), default=dict)


class BoundarySerializer(serializers.Serializer[Any]):
    """The beginning up to ``depth``, as half of its keyed digest."""

    depth = serializers.IntegerField()
    digest = serializers.CharField()
    hot = serializers.BooleanField(help_text="everybody sends it")
    chosen = serializers.BooleanField(help_text="it is the key")


class CandidateSerializer(serializers.Serializer[Any]):
    uid = serializers.CharField()
    address = serializers.CharField()
    in_flight = serializers.IntegerField(allow_null=True, help_text="over all routers; null: no router says")


class ExplanationSerializer(serializers.Serializer[Any]):
    config_version = serializers.IntegerField()
    strategy = serializers.ChoiceField(choices=STRATEGIES)
    outcome = serializers.CharField(help_text="empty when it is refused")
    why = serializers.CharField()
    refused = serializers.CharField(help_text="what a router would answer itself; empty: nothing")
    drawn = serializers.BooleanField(help_text="chance took part: the next time it may be another instance")
    key = serializers.CharField(help_text="half of the digest that places it; empty without a key")
    key_depth = serializers.IntegerField()
    overridden = serializers.BooleanField(help_text="the client named the key itself")
    boundaries = BoundarySerializer(many=True)
    candidates = CandidateSerializer(many=True, help_text="in the order in which they would be tried")


class SpreadSerializer(serializers.Serializer[Any]):
    """Seconds, each within one percent; null of no sample."""

    count = serializers.IntegerField()
    p50 = serializers.FloatField(allow_null=True)
    p95 = serializers.FloatField(allow_null=True)
    p99 = serializers.FloatField(allow_null=True)


class ShareSerializer(serializers.Serializer[Any]):
    uid = serializers.CharField()
    name = serializers.CharField(help_text="empty for an instance that is gone")
    requests = serializers.IntegerField()
    share = serializers.FloatField()
    fair = serializers.BooleanField(allow_null=True, help_text="in the band; null: too few requests to tell")


class PointSerializer(serializers.Serializer[Any]):
    at = serializers.DateTimeField()
    requests = serializers.IntegerField()
    hit_rate = serializers.FloatField(allow_null=True)
    ttft = SpreadSerializer()


class MarkerSerializer(serializers.Serializer[Any]):
    at = serializers.DateTimeField()
    kind = serializers.CharField()
    detail = serializers.CharField()
    version = serializers.IntegerField(help_text="of the routers' configuration")


class TelemetrySerializer(serializers.Serializer[Any]):
    since = serializers.DateTimeField()
    until = serializers.DateTimeField()
    requests = serializers.IntegerField()
    told = serializers.IntegerField(source="figures.told", help_text="answers that said what came from a cache")
    hit_rate = serializers.FloatField(allow_null=True, help_text="of their tokens; null: none said so")
    ttft = SpreadSerializer()
    ttft_by_outcome = serializers.DictField(child=SpreadSerializer())
    overhead = SpreadSerializer(help_text="until a request was sent on, where a connection was open")
    waited = SpreadSerializer(help_text="in the queue")
    spill = serializers.FloatField(allow_null=True, help_text="of the requests that had a key")
    saturated = serializers.FloatField(allow_null=True)
    shares = ShareSerializer(many=True)
    band = serializers.ListField(child=serializers.FloatField(), help_text="between which a share is fair")
    points = PointSerializer(many=True)
    markers = MarkerSerializer(many=True)
