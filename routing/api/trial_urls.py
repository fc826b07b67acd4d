"""Addresses of what tells about a variant's routing before anything is changed: advice, decisions, replays."""

from __future__ import annotations

from django.urls import URLPattern, URLResolver, path

from routing.api import explaining, replays, telemetry

_VARIANT = "endpoints/<uuid:endpoint_id>/variants/<str:variant>"

urlpatterns: list[URLPattern | URLResolver] = [
    path(f"{_VARIANT}/routing-advice", telemetry.VariantAdvice.as_view(), name="api-variant-advice"),
    path(f"{_VARIANT}/decisions", explaining.VariantDecisions.as_view(), name="api-variant-decisions"),
    path(f"{_VARIANT}/replays", replays.VariantReplays.as_view(), name="api-variant-replays"),
    path(f"{_VARIANT}/replays/<uuid:operation_id>", replays.VariantReplay.as_view(), name="api-variant-replay"),
]
