"""Health, metrics, sign-in and sign-out."""

from __future__ import annotations

from django.urls import URLPattern, URLResolver, include, path

urlpatterns: list[URLPattern | URLResolver] = [
    path("", include("controlplane.web.health_urls")),
]
