"""What was measured of a variant's requests and engines, and what follows from it."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from routing.domain.advising import AdviceKind


class SpreadSerializer(serializers.Serializer[Any]):
    """Seconds, each within one percent; null of no sample, and of too few to tell it from the most: p95 of fewer than
    20, p99 of fewer than 100."""

    count = serializers.IntegerField()
    p50 = serializers.FloatField(allow_null=True)
    p95 = serializers.FloatField(allow_null=True)
    p99 = serializers.FloatField(allow_null=True)
    most = serializers.FloatField(allow_null=True)


class ShareSerializer(serializers.Serializer[Any]):
    uid = serializers.CharField()
    name = serializers.CharField(help_text="of the pod or the engine, also of one that is gone")
    there = serializers.BooleanField(
        allow_null=True, help_text="ready now; null: its cluster, or of an address every router, is silent"
    )
    requests = serializers.IntegerField()
    share = serializers.FloatField()
    due = serializers.FloatField(
        allow_null=True, help_text="an even share of the requests of those times at which it was there; null: unknown"
    )
    low = serializers.FloatField(
        allow_null=True,
        help_text="a share from here on is fair: due less 7 % of it, and less what chance makes of so many requests",
    )
    high = serializers.FloatField(
        allow_null=True, help_text="to here: due and 8 % of it, and 3 standard deviations of chance"
    )
    fair = serializers.BooleanField(allow_null=True, help_text="null: too few requests to tell")


class GaugeSerializer(serializers.Serializer[Any]):
    mean = serializers.FloatField(allow_null=True, help_text="null: it does not say")
    most = serializers.FloatField(source="greatest", allow_null=True)


class EngineSerializer(serializers.Serializer[Any]):
    """What one engine said of itself under /metrics, asked every five seconds."""

    uid = serializers.CharField()
    name = serializers.CharField()
    kind = serializers.CharField(help_text="the dialect that it speaks; empty: unknown")
    stand_in = serializers.BooleanField(help_text="it keeps time and computes nothing")
    caching = serializers.BooleanField(allow_null=True, help_text="whether its prefix cache is on; null: not said")
    answered = serializers.FloatField(allow_null=True, help_text="the part of the questions")
    utilisation = serializers.FloatField(allow_null=True, help_text="the part of the answers with something running")
    running = GaugeSerializer(help_text="requests")
    waiting = GaugeSerializer(help_text="requests in its queue")
    usage = GaugeSerializer(help_text="occupancy of its cache, 0 to 1")
    hit_rate = serializers.FloatField(allow_null=True, help_text="of prompt tokens, by its own counters")


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


class FailedSerializer(serializers.Serializer[Any]):
    """Requests that got no whole answer, of one kind."""

    kind = serializers.CharField(
        help_text="a router's own code (`routing:instances:none`), `answers:4xx` and `answers:5xx` of instances, "
        "`truncated`, `disconnected`; `attempts:…` are attempts at instances, not requests"
    )
    count = serializers.IntegerField()
    words = serializers.CharField()
    lost = serializers.BooleanField(
        help_text="for no reason of the client's or its request's; false of attempts, which are no requests"
    )


class UnderPolicySerializer(serializers.Serializer[Any]):
    """What was measured under one version of the policy, from when on all routers had it."""

    version = serializers.IntegerField(
        allow_null=True, help_text="0: before anybody set one; null: windows in which it changed"
    )
    policy = serializers.CharField(help_text="its strategy and numbers; empty for windows in which it changed")
    set_at = serializers.DateTimeField(allow_null=True)
    requests = serializers.IntegerField()
    hit_rate = serializers.FloatField(allow_null=True)
    ttft = SpreadSerializer()


class TelemetrySerializer(serializers.Serializer[Any]):
    since = serializers.DateTimeField()
    until = serializers.DateTimeField()
    requests = serializers.IntegerField()
    told = serializers.IntegerField(source="figures.told", help_text="answers that said what came from a cache")
    hit_rate = serializers.FloatField(allow_null=True, help_text="of their tokens; null: none said so")
    ttft = SpreadSerializer()
    ttft_by_outcome = serializers.DictField(child=SpreadSerializer())
    overhead = SpreadSerializer(
        help_text="until a request was sent on, without waiting in the queue and without the time to connect; requests "
        "whose first instance was not reached have none"
    )
    waited = SpreadSerializer(help_text="in the queue")
    spill = serializers.FloatField(allow_null=True, help_text="of the requests that had a key")
    saturated = serializers.FloatField(allow_null=True)
    lost = serializers.IntegerField(help_text="requests that got no whole answer for no reason of their own")
    failed = FailedSerializer(many=True, help_text="refused and failed, by kind; those that there were")
    shares = ShareSerializer(many=True)
    band = serializers.ListField(
        child=serializers.FloatField(), help_text="between which the share of one that was always there is fair"
    )
    engines = EngineSerializer(many=True)
    produced_by = serializers.CharField(help_text="which engines the figures come from, in a sentence")
    points = PointSerializer(many=True)
    markers = MarkerSerializer(many=True)
    policies = UnderPolicySerializer(many=True, help_text="by version of the policy, the newest first")


class AdviceSerializer(serializers.Serializer[Any]):
    """Something odd, with the figures that say so."""

    kind = serializers.ChoiceField(choices=[kind.value for kind in AdviceKind])
    severity = serializers.ChoiceField(choices=["bad", "warn", "info"])
    sentence = serializers.CharField()
    next_step = serializers.CharField()
    figures = serializers.DictField(help_text="numbers that it rests on")
    replay = serializers.DictField(help_text="what to try on the recording first; empty: nothing")


class AdvicesSerializer(serializers.Serializer[Any]):
    since = serializers.DateTimeField()
    until = serializers.DateTimeField()
    requests = serializers.IntegerField()
    produced_by = serializers.CharField()
    items = AdviceSerializer(many=True, help_text="the worst first; none: nothing is odd")
