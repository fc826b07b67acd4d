"""What follows from many launches: two selections side by side, and since when a class takes longer."""

from __future__ import annotations

from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from caches.api.base import ApiView
from caches.api.serializers.launch_report import LaunchReportSerializer
from caches.api.serializers.launch_statistics import LaunchComparisonSerializer, LaunchMovesSerializer, selected
from caches.api.serializers.launches import CLASSES, DOWN, LABELS, TRIALS, UP
from caches.launch_addresses import FIELDS, REPORTED, SIDES, Problems, pair_of, selection_of
from caches.selectors.launches.attribution import launch_moves
from caches.selectors.launches.comparison import launches_compared
from caches.selectors.launches.report import launch_report
from caches.selectors.launches.traffic import request_share
from controlplane.errors import FieldError, Invalid

_REPORTED = ("since", "until", *REPORTED)
_HELP = {
    "pool": "cluster.pool",
    "endpoint": "namespace/name",
    "version": "model version",
    "trial": "launches that trials provoked are left out without it",
}
_CHOICES = {"event_class": CLASSES, "weights": LABELS, "image": LABELS, "trial": TRIALS}


def described(prefix: str, since: str, until: str, *, exact: bool = False) -> list[OpenApiParameter]:
    """The query parameters of a selection, for the description."""
    down, up = ("", "") if exact else (f"; {DOWN}", f"; {UP}")
    period = {"since": f"{since} (default), now-30d, or a time{down}", "until": f"{until} (default) or a time{up}"}
    return [
        OpenApiParameter(
            prefix + name, OpenApiTypes.STR, description=period.get(name, _HELP.get(name, "")), enum=_CHOICES.get(name)
        )
        for name in FIELDS
    ]


def refuse(problems: Problems) -> None:
    """Raise Invalid with everything that a query says wrongly."""
    if problems:
        raise Invalid(
            "request:user:parameter",
            " ".join(f"{name}: {text}" for name, text in problems.items()),
            next_step=f"Correct the parameter {', '.join(problems)}.",
            errors=[FieldError(name, "invalid", text) for name, text in problems.items()],
        )


class LaunchComparison(ApiView):
    """Two selections: what the second took more than the first, per phase, and how sure that is."""

    parameters = {"GET": tuple(f"{side}_{name}" for side in SIDES for name in FIELDS)}

    @extend_schema(
        parameters=[one for side, period in SIDES.items() for one in described(f"{side}_", *period, exact=True)],
        responses=LaunchComparisonSerializer,
    )
    def get(self, request: Request) -> Response:
        problems = Problems()
        first, second = pair_of(request.query_params.dict(), timezone.now(), problems)
        refuse(problems)
        found = launches_compared(first, second, targets=self.targets)
        moved = found.comparison.moved
        document = {
            "first": selected(first, found.first),
            "second": selected(second, found.second),
            "effects": found.comparison.effects,
            "moved": moved.phase if moved is not None else None,
        }
        return Response(LaunchComparisonSerializer(document).data)


class LaunchMoves(ApiView):
    """Since when launches of a class take longer or shorter, which phase that is, and what was changed before."""

    parameters = {"GET": FIELDS}

    @extend_schema(parameters=described("", "now-24h", "now"), responses=LaunchMovesSerializer)
    def get(self, request: Request) -> Response:
        problems = Problems()
        selection = selection_of(request.query_params.dict(), timezone.now(), problems, since="now-24h")
        refuse(problems)
        found = launch_moves(selection, targets=self.targets)
        document = {"since": selection.period.since, "until": selection.period.end, "moves": found}
        return Response(LaunchMovesSerializer(document).data)


class LaunchReport(ApiView):
    """Was caching worth it: every model version with and without, what its copies cost, how added capacity fared."""

    parameters = {"GET": _REPORTED}

    @extend_schema(
        parameters=[one for one in described("", "now-30d", "now") if one.name in _REPORTED],
        responses=LaunchReportSerializer,
    )
    def get(self, request: Request) -> Response:
        problems = Problems()
        selection = selection_of(request.query_params.dict(), timezone.now(), problems, since="now-30d")
        refuse(problems)
        found = launch_report(selection, targets=self.targets)
        document = {
            "since": selection.period.since,
            "until": selection.period.end,
            "versions": found.versions,
            "left_out": found.left_out,
            "scaling": found.scaling,
            "requests": request_share(selection, self.targets),
        }
        return Response(LaunchReportSerializer(document).data)
