"""The report on caching."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from caches.api.serializers.launch_statistics import LaunchDifferenceSerializer
from caches.domain.launches.bursts import Burst
from caches.domain.launches.worth import Basis, Worth
from caches.launch_words import worth_sentence
from caches.selectors.launches.report import VersionReport

BASES = [one.value for one in Basis]
WORTHS = [one.value for one in Worth]


class LaunchVersionReportSerializer(serializers.Serializer[Any]):
    """``saving`` is with the cache (misses and new nodes included) against without; a positive change is time saved."""

    version = serializers.CharField(source="name", help_text="'' where it is not known")
    digest = serializers.CharField()
    pinned_at = serializers.DateTimeField(allow_null=True, help_text="for the first time; null: never")
    worth = serializers.ChoiceField(source="judged.worth", choices=WORTHS)
    sentence = serializers.SerializerMethodField()
    basis = serializers.ChoiceField(source="judged.basis", choices=BASES, help_text="what 'without' is")
    launches = serializers.IntegerField(source="counted.launches")
    ready = serializers.IntegerField(source="counted.ready")
    ended = serializers.IntegerField(source="counted.ended", help_text="never became ready")
    hits = serializers.IntegerField(source="counted.hits")
    missed = serializers.IntegerField(source="counted.missed")
    drawn = serializers.IntegerField(help_text="of the ready ones, what the seconds are of")
    hit_seconds = serializers.FloatField(
        source="judged.hit_seconds", allow_null=True, help_text="median of hits (nearest rank)"
    )
    without_seconds = serializers.FloatField(
        source="judged.saving.second", allow_null=True, help_text="median (nearest rank) of what 'basis' says"
    )
    saving_median = LaunchDifferenceSerializer(source="judged.saving")
    saving_p95 = LaunchDifferenceSerializer(source="judged.p95_saving")
    hit_saving_seconds = serializers.FloatField(
        source="judged.hit_saving_seconds", allow_null=True, help_text="median without less median of hits"
    )
    saved_seconds = serializers.FloatField(source="judged.saved_seconds", allow_null=True, help_text="of all hits")
    break_even_hits = serializers.IntegerField(
        source="judged.break_even",
        allow_null=True,
        help_text="hits that save what one copy's transfer took",
    )
    fetch_seconds = serializers.FloatField(
        source="judged.fetch_seconds", allow_null=True, help_text="median of those that had to fetch"
    )
    copies = serializers.IntegerField(source="cost.copies")
    held_bytes = serializers.IntegerField(source="cost.held_bytes")
    transfers = serializers.IntegerField(source="cost.transfers")
    moved_bytes = serializers.IntegerField(source="cost.moved_bytes")
    moved_seconds = serializers.FloatField(source="cost.moved_seconds")

    def get_sentence(self, row: VersionReport) -> str:
        return worth_sentence(row)


class LaunchBurstSerializer(serializers.Serializer[Any]):
    """Three or more launches of one endpoint that began within 30 seconds of the first of them."""

    endpoint = serializers.CharField()
    began_at = serializers.DateTimeField()
    launches = serializers.SerializerMethodField()
    hits = serializers.IntegerField()
    known = serializers.IntegerField()
    half_seconds = serializers.SerializerMethodField(help_text="until half of it served; null: never, or not yet")
    all_seconds = serializers.SerializerMethodField(help_text="until all of it served; null: never, or not yet")

    def get_launches(self, burst: Burst) -> int:
        return len(burst.launches)

    def get_half_seconds(self, burst: Burst) -> float | None:
        return burst.seconds_until(0.5)

    def get_all_seconds(self, burst: Burst) -> float | None:
        return burst.seconds_until(1.0)


class LaunchScalingSerializer(serializers.Serializer[Any]):
    """Launches that added capacity."""

    added = serializers.IntegerField()
    unprepared = serializers.IntegerField(help_text="on nodes that lacked weights or image")
    measured = serializers.IntegerField(help_text="of which that is known")
    burst_hits = serializers.IntegerField(source="hits")
    burst_known = serializers.IntegerField(source="known")
    half_seconds = serializers.FloatField(allow_null=True, help_text="the median burst, until half of it served")
    all_seconds = serializers.FloatField(allow_null=True)
    bursts = LaunchBurstSerializer(many=True)


class LaunchRequestsSerializer(serializers.Serializer[Any]):
    """Requests to instances that the period's launches brought up, where routers told of them."""

    requests = serializers.IntegerField()
    missed = serializers.IntegerField(help_text="of them, to instances whose launch had missed its weights")
    unknown = serializers.IntegerField(help_text="of them, to instances of whose launch that was not measured")
    share = serializers.FloatField(allow_null=True, help_text="missed, of those of which it is known; null: unknown")


class LaunchReportSerializer(serializers.Serializer[Any]):
    since = serializers.DateTimeField()
    until = serializers.DateTimeField()
    versions = LaunchVersionReportSerializer(many=True)
    left_out = serializers.IntegerField(help_text="versions with fewer launches")
    scaling = LaunchScalingSerializer()
    requests = LaunchRequestsSerializer()
