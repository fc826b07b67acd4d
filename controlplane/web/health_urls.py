"""Addresses for machines that watch the program."""

from __future__ import annotations

from django.urls import path

from controlplane.web import health

urlpatterns = [
    path("healthz", health.healthz, name="healthz"),
    path("readyz", health.readyz, name="readyz"),
    path("metrics", health.metrics, name="metrics"),
]
