"""Health, metrics, sign-in and sign-out."""

from __future__ import annotations

from django.urls import URLPattern, URLResolver, include, path

from controlplane.web.views import set_theme, sign_in, sign_out

urlpatterns: list[URLPattern | URLResolver] = [
    path("", include("controlplane.web.health_urls")),
    path("login", sign_in, name="login"),
    path("logout", sign_out, name="logout"),
    path("theme", set_theme, name="theme"),
]
