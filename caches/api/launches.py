"""Launches: what they took, and reports of them from runtimes, routers and pipelines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from caches.api.base import ApiRowsView, ApiView, one
from caches.api.serializers.launches import (
    CLASSES,
    DOWN,
    LABELS,
    TRIALS,
    UP,
    LaunchDetailSerializer,
    LaunchSerializer,
    PhasesBody,
    PhasesInput,
    ReportsBody,
    ReportsInput,
    StatisticsSerializer,
    TakenSerializer,
)
from caches.domain.launches.period import Period, period_of
from caches.domain.launches.words import EventClass
from caches.filters import LaunchFilter
from caches.launch_addresses import FIELDS, FILTERS, WORDS
from caches.models import Launch
from caches.selectors.launches.lists import Selection, hours_waiting, launches_list
from caches.selectors.launches.stats import ClassStats, Part, class_stats
from caches.services.launches.reports import phases_ingest, reports_ingest
from controlplane.accounts.models import Scope
from controlplane.accounts.permissions import require_target
from controlplane.rest.validation import wrong_parameter

_NAMES = ("cluster", "pod_uid", "container", "restart_count")


def _reporter(request: Request) -> Callable[[str], None]:
    return lambda cluster: require_target(request, Scope.LAUNCHES_INGEST, cluster)


class LaunchList(ApiRowsView):
    """Every launch, also of pods that never became ready."""

    serializer_class = LaunchSerializer
    filterset_class = LaunchFilter
    ordering_fields = {"began_at": "began_at", "ready_seconds": "ready_seconds", "total_seconds": "total_seconds"}
    ordering = "-began_at"

    def rows(self) -> QuerySet[Launch]:
        return launches_list(targets=self.targets)


class LaunchDetail(ApiView):
    """One launch with its phases and everything that was seen of it."""

    @extend_schema(responses=LaunchDetailSerializer)
    def get(self, request: Request, launch_id: UUID) -> Response:
        rows = launches_list(targets=self.targets).defer(None).prefetch_related("observations")
        launch = one(rows.filter(pk=launch_id))
        return self.answer(LaunchDetailSerializer, launch)


class LaunchPhases(ApiView):
    """Phases that a runtime measured by itself: believed over what others infer. The id follows from the four names."""

    write_scope = Scope.LAUNCHES_INGEST

    @extend_schema(request=PhasesInput, responses=TakenSerializer)
    def post(self, request: Request, launch_id: UUID) -> Response:
        body = self.read(PhasesBody, request)
        names: Mapping[str, Any] = {name: body[name] for name in _NAMES if name in body}
        taken = phases_ingest(
            key=launch_id,
            names=names if len(names) == len(_NAMES) else None,
            phases=body["phases"],
            allowed=_reporter(request),
        )
        return self.answer(TakenSerializer, taken)


class LaunchReports(ApiView):
    """Observations of any launches, in a batch: each is taken in or refused for itself."""

    write_scope = Scope.LAUNCHES_INGEST

    @extend_schema(request=ReportsInput, responses=TakenSerializer)
    def post(self, request: Request) -> Response:
        body = self.read(ReportsBody, request)
        return self.answer(TakenSerializer, reports_ingest(items=body["items"], allowed=_reporter(request)))


class LaunchStatistics(ApiView):
    """Percentiles of the seconds until ready, by event class and by what was found; never a mean."""

    parameters = {"GET": FIELDS}

    @extend_schema(
        parameters=[
            OpenApiParameter("since", OpenApiTypes.STR, description=f"now-24h (default), now-30d, or a time; {DOWN}"),
            OpenApiParameter("until", OpenApiTypes.STR, description=f"now (default) or a time; {UP}"),
            OpenApiParameter("pool", OpenApiTypes.STR, description="cluster.pool"),
            OpenApiParameter("endpoint", OpenApiTypes.STR, description="namespace/name"),
            OpenApiParameter("version", OpenApiTypes.STR, description="model version"),
            OpenApiParameter("event_class", OpenApiTypes.STR, enum=CLASSES),
            OpenApiParameter("weights", OpenApiTypes.STR, enum=LABELS),
            OpenApiParameter("image", OpenApiTypes.STR, enum=LABELS),
            OpenApiParameter(
                "trial",
                OpenApiTypes.STR,
                enum=TRIALS,
                description="launches that trials provoked are left out without it",
            ),
        ],
        responses=StatisticsSerializer,
    )
    def get(self, request: Request) -> Response:
        period = _period(request)
        selection = Selection(period, **{name: _filter(request, name) for name in FILTERS})
        classes = [row for stats in class_stats(selection, targets=self.targets) for row in _rows(stats)]
        document = {
            "since": period.since,
            "until": period.end,
            "classes": classes,
            "waiting_hours": hours_waiting(period, targets=self.targets),
        }
        return Response(StatisticsSerializer(document).data)


def _period(request: Request) -> Period:
    since, until = request.query_params.get("since", "now-24h"), request.query_params.get("until", "now")
    try:
        return period_of(since, until, timezone.now())
    except ValueError as error:
        raise wrong_parameter("since", f"Not a period: {error}.") from None


def _filter(request: Request, name: str) -> str:
    value = request.query_params.get(name, "")
    words = WORDS.get(name)
    if value and words is not None and value not in words:
        raise wrong_parameter(name, f"Must be one of {', '.join(words)}.")
    return value


def _rows(stats: ClassStats) -> list[dict[str, Any]]:
    """The class as a whole, and each part of it that has launches."""
    parts: list[tuple[str, Part]] = [("", stats.whole), *sorted(stats.by_weights.items())]
    return [_row(stats.event_class, label, part) for label, part in parts if part.launches]


def _row(kind: EventClass, label: str, part: Part) -> dict[str, Any]:
    p50, p95, p99 = part.quantiles
    return {
        "event_class": kind.value,
        "weights": str(label),
        "launches": part.launches,
        "ready": part.ready,
        "ended": part.ended,
        "reasons": dict(part.reasons),
        "measured": part.sketch.count,
        "p50_seconds": p50,
        "p95_seconds": p95,
        "p99_seconds": p99,
        "seconds": [seconds for seconds, _ in part.dots],
    }
