"""A replay: what is asked, and what came of it."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from controlplane.operations.models import OperationState
from controlplane.rest.validation import Input
from routing.api.serializers import PolicyDocumentSerializer, RoutingPolicyInput
from routing.domain.recordings import RECORDED_MINUTES
from routing.services.replays import MOST_INSTANCES, MOST_ROUTERS


class ReplayInput(Input):
    """Of the policy, the instances and the routers, what is left out is as it is now."""

    minutes = serializers.IntegerField(
        min_value=1, max_value=RECORDED_MINUTES, help_text="how far back the recording is taken"
    )
    policy = RoutingPolicyInput(required=False, help_text="to be tried; the one in force without it")
    instances = serializers.IntegerField(min_value=1, max_value=MOST_INSTANCES, required=False)
    routers = serializers.IntegerField(min_value=1, max_value=MOST_ROUTERS, required=False, help_text="processes")


class ReplayShareSerializer(serializers.Serializer[Any]):
    uid = serializers.CharField()
    name = serializers.CharField()
    share = serializers.FloatField()
    fair = serializers.BooleanField(allow_null=True, help_text="null: too few requests to tell")


class ReplayTimesSerializer(serializers.Serializer[Any]):
    """Null of fewer than 20 requests (p95), 100 (p99), and where the model does not describe this traffic."""

    p50 = serializers.FloatField(allow_null=True)
    p95 = serializers.FloatField(allow_null=True)
    p99 = serializers.FloatField(allow_null=True)


class ReplayColumnSerializer(serializers.Serializer[Any]):
    """Computed by the model, not measured: see assumptions."""

    hit_rate = serializers.FloatField(allow_null=True, help_text="null: the model does not describe this traffic")
    ttft = ReplayTimesSerializer(help_text="seconds")
    spill = serializers.FloatField(allow_null=True, help_text="of the requests with a key; null: none has one")
    saturated = serializers.FloatField(allow_null=True)
    band = serializers.ListField(child=serializers.FloatField(), help_text="between which an even share is fair")
    outside = serializers.IntegerField(
        allow_null=True, help_text="instances whose share is not; null: too few requests to tell"
    )
    shares = ReplayShareSerializer(many=True)


class ReplayWidestSerializer(serializers.Serializer[Any]):
    """The same with the largest cache that fits what was measured as well as the smallest."""

    happened = ReplayColumnSerializer()
    tried = ReplayColumnSerializer()


class ReplayModelSerializer(serializers.Serializer[Any]):
    """The engine that both columns are computed with."""

    cache_blocks = serializers.IntegerField(help_text="beginnings of 1,024 characters that it keeps")
    cache_blocks_that_fit = serializers.ListField(
        child=serializers.IntegerField(),
        default=list,
        help_text="sizes that fit what was measured equally well; several: this traffic does not determine it; none: "
        "too few answers said what came from a cache",
    )
    block_tokens = serializers.IntegerField(help_text="of one of them")
    prefill_tokens_per_second = serializers.FloatField()
    decode_tokens_per_second = serializers.FloatField(help_text="for each request")


class ReplayResultSerializer(serializers.Serializer[Any]):
    since = serializers.DateTimeField()
    until = serializers.DateTimeField()
    requests = serializers.IntegerField()
    passed = serializers.IntegerField(help_text="requests of that time that were not recorded")
    measured_hit_rate = serializers.FloatField(allow_null=True, help_text="what answers said; null: none did")
    policy = PolicyDocumentSerializer()
    instances = serializers.IntegerField()
    routers = serializers.IntegerField()
    happened = ReplayColumnSerializer(help_text="every request where it went")
    tried = ReplayColumnSerializer(help_text="every request where it would have gone")
    widest = ReplayWidestSerializer(allow_null=True, help_text="null: no more than one size of the cache fits")
    describes = serializers.BooleanField(
        allow_null=True,
        help_text="whether the hit rate computed of what happened is no further than `farthest` from the measured one; "
        "false: nothing is said of what the other strategy would cost; null: too little was measured",
    )
    farthest = serializers.FloatField(default=None, allow_null=True, help_text="of the hit rate, 0.05: 5 points")
    model = ReplayModelSerializer()
    assumptions = serializers.ListField(child=serializers.CharField())
    took_seconds = serializers.FloatField()


class ReplaySerializer(serializers.Serializer[Any]):
    """Small ones are answered at once; others are an Operation, whose end brings the result."""

    state = serializers.ChoiceField(choices=OperationState.choices)
    operation_id = serializers.UUIDField(allow_null=True, help_text="null: it was answered at once")
    error = serializers.JSONField(allow_null=True, help_text="a problem, when it failed")
    result = ReplayResultSerializer(allow_null=True)
