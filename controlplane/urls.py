"""Every address: pages at the root, REST under /api/v1/, health and metrics beside them."""

from __future__ import annotations

from django.urls import include, path

urlpatterns = [
    path("api/v1/", include("caches.api.urls")),
    path("", include("controlplane.web.urls")),
    path("", include("caches.views.urls")),
]
