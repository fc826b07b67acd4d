"""Page addresses of routing. The page of tables also answers with ``.csv`` and ``.json``."""

from __future__ import annotations

from django.urls import path

from controlplane.web.people import signed_in
from routing.views import pages

PAGE = "endpoints/<uuid:endpoint_id>/routing"

urlpatterns = [
    *(path(f"{PAGE}{suffix}", signed_in(pages.routing), {"suffix": suffix}) for suffix in (".csv", ".json")),
    path(PAGE, signed_in(pages.routing), name="routing"),
    path(f"{PAGE}/change", signed_in(pages.change), name="routing-change"),
]
