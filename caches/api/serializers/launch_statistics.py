"""What follows from many launches: comparisons, and moves with what came before them."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from caches.api.serializers.launches import CLASSES, PHASES, TRIALS
from caches.domain.launches.comparison import Effect
from caches.domain.launches.resampling import Difference, Verdict
from caches.domain.launches.shifts import Shift
from caches.selectors.launches.attribution import Attributed
from caches.selectors.launches.lists import Selection
from caches.selectors.launches.samples import Drawn

VERDICTS = [one.value for one in Verdict]
SHIFTS = [one.value for one in Shift]


class LaunchDifferenceSerializer(serializers.Serializer[Difference]):
    """``change`` is the second side less the first, with its 95 % interval; null below 20 launches of either side."""

    first_seconds = serializers.FloatField(source="first", allow_null=True)
    second_seconds = serializers.FloatField(source="second", allow_null=True)
    change_seconds = serializers.FloatField(source="change", allow_null=True)
    low_seconds = serializers.FloatField(source="low", allow_null=True)
    high_seconds = serializers.FloatField(source="high", allow_null=True)
    verdict = serializers.ChoiceField(choices=VERDICTS, help_text="what the second side is")


class LaunchEffectSerializer(serializers.Serializer[Any]):
    phase = serializers.ChoiceField(choices=PHASES, allow_null=True, help_text="null: the whole time until ready")
    first_count = serializers.SerializerMethodField()
    second_count = serializers.SerializerMethodField()
    median = LaunchDifferenceSerializer()
    p95 = LaunchDifferenceSerializer()

    def get_first_count(self, effect: Effect) -> int:
        return effect.counts[0]

    def get_second_count(self, effect: Effect) -> int:
        return effect.counts[1]


class LaunchCountedSerializer(serializers.Serializer[Any]):
    """One side of a move. ``missed`` of ``known`` launches lacked weights on their node."""

    launches = serializers.IntegerField()
    missed = serializers.IntegerField()
    known = serializers.IntegerField()


class LaunchSelectedSerializer(serializers.Serializer[Any]):
    """What was asked for, and what there is of it. ``compared``: launches that the figures are of, at most about
    2,000 of those that became ready, chosen by chance."""

    since = serializers.DateTimeField()
    until = serializers.DateTimeField()
    pool = serializers.CharField()
    endpoint = serializers.CharField()
    version = serializers.CharField()
    event_class = serializers.CharField()
    weights = serializers.CharField()
    image = serializers.CharField()
    trial = serializers.ChoiceField(choices=TRIALS, help_text="what became of launches that trials provoked")
    launches = serializers.IntegerField()
    ready = serializers.IntegerField()
    ended = serializers.IntegerField(help_text="never became ready")
    compared = serializers.IntegerField()


class LaunchComparisonSerializer(serializers.Serializer[Any]):
    first = LaunchSelectedSerializer()
    second = LaunchSelectedSerializer()
    effects = LaunchEffectSerializer(many=True, help_text="the whole first, then every phase that either side measured")
    moved = serializers.ChoiceField(
        choices=PHASES, allow_null=True, help_text="the phase that most of a sure difference is; null where none is"
    )


class LaunchShareSerializer(serializers.Serializer[Any]):
    phase = serializers.ChoiceField(choices=PHASES, allow_null=True, help_text="null: what nobody measured")
    before_seconds = serializers.FloatField(source="before")
    after_seconds = serializers.FloatField(source="after")
    change_seconds = serializers.FloatField(source="change")
    measured = serializers.IntegerField(help_text="launches of both sides")


class LaunchSuspectSerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField(help_text="of the audit event")
    at = serializers.DateTimeField()
    actor = serializers.CharField()
    action = serializers.CharField()
    object_type = serializers.CharField()
    object_name = serializers.CharField()
    times = serializers.IntegerField(help_text="in a row; the fields are of the latest")


class LaunchMoveSerializer(serializers.Serializer[Any]):
    """One change of a class. It lies between two launches; ``events`` came before it, the latest first: they are what
    is known to have been done, not what is proven to be the cause."""

    event_class = serializers.ChoiceField(choices=CLASSES)
    shift = serializers.ChoiceField(source="move.shift", choices=SHIFTS)
    slower = serializers.BooleanField(source="move.slower")
    last_before = serializers.DateTimeField(source="move.last_before")
    first_after = serializers.DateTimeField(source="move.first_after")
    before = serializers.SerializerMethodField()
    after = serializers.SerializerMethodField()
    median = LaunchDifferenceSerializer(source="move.median")
    p95 = LaunchDifferenceSerializer(source="move.p95")
    phase = serializers.ChoiceField(
        source="move.phase", choices=PHASES, allow_null=True, help_text="that moved most; null where nobody measured it"
    )
    shares = LaunchShareSerializer(source="move.shares", many=True, help_text="what moved with it, the most first")
    events = serializers.SerializerMethodField()

    @extend_schema_field(LaunchSuspectSerializer(many=True))
    def get_events(self, one: Attributed) -> list[dict[str, Any]]:
        names = ("id", "at", "actor", "action", "object_type", "object_name")
        rows = [{name: getattr(event, name) for name in names} | {"times": times} for event, times in one.changes]
        return [dict(row) for row in LaunchSuspectSerializer(rows, many=True).data]

    @extend_schema_field(LaunchCountedSerializer)
    def get_before(self, one: Attributed) -> dict[str, int]:
        return _counted(one.move.counts[0], one.move.missed_before)

    @extend_schema_field(LaunchCountedSerializer)
    def get_after(self, one: Attributed) -> dict[str, int]:
        return _counted(one.move.counts[1], one.move.missed_after)


def _counted(launches: int, missed: tuple[int, int]) -> dict[str, int]:
    return {"launches": launches, "missed": missed[0], "known": missed[1]}


class LaunchMovesSerializer(serializers.Serializer[Any]):
    since = serializers.DateTimeField()
    until = serializers.DateTimeField()
    moves = LaunchMoveSerializer(many=True)


def selected(selection: Selection, drawn: Drawn) -> dict[str, Any]:
    """The document of one side."""
    names = ("pool", "endpoint", "version", "event_class", "weights", "image")
    return {
        "since": selection.period.since,
        "until": selection.period.until,
        **{name: getattr(selection, name) for name in names},
        "trial": selection.trials.value,
        "launches": drawn.launches,
        "ready": drawn.ready,
        "ended": drawn.ended,
        "compared": len(drawn.points),
    }
