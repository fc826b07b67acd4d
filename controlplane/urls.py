"""Every address: pages at the root, REST under /api/v1/, health and metrics beside them."""

from __future__ import annotations

from django.urls import include, path, re_path

from controlplane.rest.problems import no_such_address

urlpatterns = [
    path("api/v1/", include("caches.api.urls")),
    path("api/v1/", include("routing.api.urls")),
    re_path(r"^api/", no_such_address),
    path("", include("controlplane.web.urls")),
    path("", include("caches.views.urls")),
    path("", include("routing.views.urls")),
]

handler400 = "controlplane.web.errors.bad_request"
handler403 = "controlplane.web.errors.forbidden"
handler404 = "controlplane.web.errors.not_found"
handler500 = "controlplane.web.errors.server_error"
