"""One decision, explained, and those that were recorded."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from controlplane.rest.validation import Input
from routing.api.serializers import STRATEGIES, TextField


class ExplainInput(Input):
    """A request as a client would send it to a router."""

    path = TextField(max_length=2000, default="/v1/chat/completions")
    body = TextField(
        max_length=1024 * 1024, allow_blank=True, trim_whitespace=False, required=False, help_text="its body, as text"
    )
    decision = TextField(max_length=40, required=False, help_text="instead of a body: the id of a recorded request")
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
    name = serializers.CharField(help_text="of the pod or the engine")
    address = serializers.CharField()
    in_flight = serializers.IntegerField(allow_null=True, help_text="over all routers; null: no router says")


class HappenedSerializer(serializers.Serializer[Any]):
    """What a recorded request got, whatever it would get now."""

    at = serializers.DateTimeField()
    outcome = serializers.CharField()
    uid = serializers.CharField()
    name = serializers.CharField()
    prompt_tokens = serializers.IntegerField(allow_null=True)
    cached_tokens = serializers.IntegerField(allow_null=True)
    ttft = serializers.FloatField(allow_null=True, help_text="seconds")


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
    note = serializers.CharField(help_text="what is odd about the request itself; empty: nothing")
    happened = HappenedSerializer(allow_null=True, help_text="of a recorded request; null for one that is tried out")


class DecisionSerializer(HappenedSerializer):
    """One recorded request."""

    id = serializers.CharField(help_text="what explain takes as decision")
    depth = serializers.IntegerField(help_text="units of text that were hashed")
    key = serializers.CharField(help_text="half of the digest of its first beginning, or of the key that it named")


class DecisionsSerializer(serializers.Serializer[Any]):
    recording = serializers.BooleanField(help_text="whether the policy asks for it")
    passed = serializers.IntegerField(help_text="requests of that time that were not kept")
    items = DecisionSerializer(many=True, help_text="newest first")
