"""Launches: what they are, what was seen of them, what they took, and what is reported of them."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from caches.api.serializers.common import ObjectSerializer
from caches.domain.launches.reports import MOST_RESTARTS
from caches.domain.launches.timeline import seconds_waited
from caches.domain.launches.words import (
    Cached,
    Clock,
    EventClass,
    LaunchState,
    Mark,
    MissReason,
    Observer,
    Phase,
    PhaseState,
    Trials,
)
from caches.models import Launch
from caches.selectors.launches.observations import runs_seen
from controlplane.rest.validation import Input

MOST_ITEMS = 5000
PHASES = [one.value for one in Phase]
PHASE_STATES = [one.value for one in PhaseState]
STATES = [one.value for one in LaunchState]
CLASSES = [one.value for one in EventClass]
LABELS = [one.value for one in Cached]
TRIALS = [one.value for one in Trials]
OBSERVERS = [one.value for one in Observer]
REASONS = [one.value for one in MissReason]
MARKS = [one.value for one in Mark]
# Counts have full hours.
DOWN, UP = "rounded down to its full hour", "rounded up to its full hour, but to now at most"
CLOCKS = [one.value for one in Clock]


class PhaseTimeSerializer(serializers.Serializer[Any]):
    phase = serializers.ChoiceField(choices=PHASES)
    state = serializers.ChoiceField(choices=PHASE_STATES, help_text="Unknown is never zero")
    seconds = serializers.FloatField(allow_null=True)
    observer = serializers.CharField(help_text="who measured it, '' when nobody did")


class LaunchSerializer(ObjectSerializer):
    cluster = serializers.CharField(source="cluster.name")
    pod = serializers.CharField(source="pod_name", help_text="namespace/name")
    pod_uid = serializers.CharField()
    container = serializers.CharField()
    restart_count = serializers.IntegerField()
    node = serializers.CharField(source="node_name")
    pool = serializers.SerializerMethodField(help_text="cluster.pool, null where it is not known")
    endpoint = serializers.CharField(source="endpoint_name", help_text="namespace/name")
    trial = serializers.BooleanField(source="of_trial", help_text="a trial provoked it: it is no demand")
    version = serializers.CharField(source="version_name", help_text="model version")
    digest = serializers.CharField()
    state = serializers.ChoiceField(choices=STATES)
    event_class = serializers.ChoiceField(choices=CLASSES)
    weights = serializers.ChoiceField(choices=LABELS)
    image = serializers.ChoiceField(choices=LABELS)
    miss_reason = serializers.CharField(
        help_text=f"why the weights missed, '' where they did not: {', '.join(REASONS)}"
    )
    first_on_node = serializers.BooleanField(allow_null=True, help_text="first of this version on its node")
    node_age_seconds = serializers.FloatField(allow_null=True)
    reached = serializers.ChoiceField(
        choices=PHASES, help_text="the latest phase that it was seen in; FirstRequest once a request succeeded"
    )
    began_at = serializers.DateTimeField()
    ready_at = serializers.DateTimeField(allow_null=True)
    served_at = serializers.DateTimeField(allow_null=True, help_text="the first successful request")
    ended_at = serializers.DateTimeField(allow_null=True)
    end_reason = serializers.CharField()
    ready_seconds = serializers.FloatField(allow_null=True)
    unmeasured = serializers.CharField(help_text="why ready_seconds is null although it was ready, '' otherwise")
    total_seconds = serializers.FloatField(allow_null=True)
    unknown_seconds = serializers.FloatField(allow_null=True, help_text="of total_seconds, in no measured phase")

    def get_pool(self, launch: Launch) -> str | None:
        return f"{launch.cluster.name}.{launch.pool_name}" if launch.pool_name else None


class ObservationSerializer(serializers.Serializer[Any]):
    observer = serializers.CharField()
    mark = serializers.CharField()
    phase = serializers.CharField(help_text="'' but for a Span")
    at = serializers.DateTimeField(allow_null=True)
    seconds = serializers.FloatField(allow_null=True)
    clock = serializers.CharField(help_text="whose clock: Server or Node")
    facts = serializers.DictField(child=serializers.CharField())
    received_at = serializers.DateTimeField()


class WaitedSerializer(serializers.Serializer[Any]):
    """What of ``unknown_seconds`` can be said."""

    for_weights_seconds = serializers.FloatField(source="for_weights", help_text="until weights could be fetched")
    to_restart_seconds = serializers.FloatField(source="to_restart", help_text="after the run before had ended")
    for_step_seconds = serializers.FloatField(
        source="for_step", help_text="that the weights step ran beside its fetch: to be started, and seen to have ended"
    )


class LaunchDetailSerializer(LaunchSerializer):
    clock_shift_seconds = serializers.FloatField(help_text="added to the node's times, so that causes come first")
    phases = PhaseTimeSerializer(many=True)
    waited = serializers.SerializerMethodField()
    observations = ObservationSerializer(many=True)

    @extend_schema_field(WaitedSerializer)
    def get_waited(self, launch: Launch) -> Any:
        return WaitedSerializer(seconds_waited(runs_seen([launch]).get(launch.pk, ()))).data


class ReportInput(Input):
    """One observation in a batch. Shown in openapi.yaml; read by caches.domain.launches.reports, item by item."""

    cluster = serializers.CharField(max_length=63)
    pod_uid = serializers.CharField(max_length=100)
    container = serializers.CharField(max_length=63)
    restart_count = serializers.IntegerField(min_value=0, max_value=MOST_RESTARTS, default=0)
    observer = serializers.ChoiceField(choices=OBSERVERS, default=Observer.PUSHED.value)
    mark = serializers.ChoiceField(choices=MARKS, required=False, help_text="not needed with a phase")
    phase = serializers.ChoiceField(choices=PHASES, required=False)
    at = serializers.DateTimeField(required=False, help_text="the moment, or the end of what lasted seconds")
    seconds = serializers.FloatField(required=False, min_value=0)
    clock = serializers.ChoiceField(choices=CLOCKS, default=Clock.NODE.value)
    facts = serializers.DictField(child=serializers.CharField(max_length=300), required=False)


class ReportsInput(Input):
    items = ReportInput(many=True)


class ReportsBody(Input):
    """The body as it is read: the items are looked at one by one, so that one that is wrong spoils no other."""

    items = serializers.ListField(
        child=serializers.JSONField(allow_null=True), allow_empty=False, max_length=MOST_ITEMS
    )


class PhaseInput(Input):
    phase = serializers.ChoiceField(choices=PHASES)
    seconds = serializers.FloatField(min_value=0)
    at = serializers.DateTimeField(required=False, help_text="when it ended")


class PhasesInput(Input):
    phases = PhaseInput(many=True)
    cluster = serializers.CharField(max_length=63, required=False)
    pod_uid = serializers.CharField(max_length=100, required=False)
    container = serializers.CharField(max_length=63, required=False)
    restart_count = serializers.IntegerField(min_value=0, max_value=MOST_RESTARTS, default=0)


class PhaseBody(Input):
    """A phase as it is read; what its fields may say is looked at by caches.domain.launches.reports."""

    phase = serializers.JSONField()
    seconds = serializers.JSONField()
    at = serializers.JSONField(required=False)


class PhasesBody(PhasesInput):
    phases = PhaseBody(many=True, allow_empty=False, max_length=100)  # type: ignore[assignment, call-arg]  # the same names; a list has a length


class ReportRefusalSerializer(serializers.Serializer[Any]):
    index = serializers.IntegerField(help_text="of the item, from 0")
    field = serializers.CharField()
    code = serializers.CharField()
    detail = serializers.CharField()


class TakenSerializer(serializers.Serializer[Any]):
    recorded = serializers.IntegerField(help_text="were new")
    repeated = serializers.IntegerField(help_text="were there already")
    refused = ReportRefusalSerializer(many=True, help_text="were not taken in; the others were")


class ClassSerializer(serializers.Serializer[Any]):
    """Launches that are alike. Percentiles are null below 20 ready launches: then ``seconds`` has each of them."""

    event_class = serializers.ChoiceField(choices=CLASSES)
    weights = serializers.CharField(help_text="'' for all together")
    launches = serializers.IntegerField()
    ready = serializers.IntegerField()
    ended = serializers.IntegerField(help_text="never became ready")
    reasons = serializers.DictField(child=serializers.IntegerField(), help_text="why how many missed their weights")
    measured = serializers.IntegerField(help_text="launches that the percentiles are of")
    p50_seconds = serializers.FloatField(allow_null=True)
    p95_seconds = serializers.FloatField(allow_null=True)
    p99_seconds = serializers.FloatField(allow_null=True)
    seconds = serializers.ListField(child=serializers.FloatField())


class StatisticsSerializer(serializers.Serializer[Any]):
    since = serializers.DateTimeField(help_text=f"what is counted: {DOWN}")
    until = serializers.DateTimeField(help_text=f"what is counted: {UP}")
    waiting_hours = serializers.IntegerField(help_text="hours of the period that are to be counted again")
    classes = ClassSerializer(many=True)
