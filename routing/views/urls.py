"""Page addresses of routing. The page of tables also answers with ``.csv`` and ``.json``."""

from __future__ import annotations

from django.urls import path

from controlplane.web.people import signed_in
from routing.views import pages, targets, trials

PAGE = "endpoints/<uuid:endpoint_id>/routing"

urlpatterns = [
    *(path(f"{PAGE}{suffix}", signed_in(pages.routing), {"suffix": suffix}) for suffix in (".csv", ".json")),
    path(PAGE, signed_in(pages.routing), name="routing"),
    path(f"{PAGE}/change", signed_in(pages.change), name="routing-change"),
    path("endpoints/static", signed_in(targets.static_new), name="routing-static-new"),
    path(f"{PAGE}/static", signed_in(targets.static_change), name="routing-static"),
    path(f"{PAGE}/static/remove", signed_in(targets.static_remove), name="routing-static-remove"),
    *(
        path(f"{PAGE}/variants{suffix}", signed_in(targets.variants), {"suffix": suffix})
        for suffix in (".csv", ".json")
    ),
    path(f"{PAGE}/variants", signed_in(targets.variants), name="routing-variants"),
    *(
        path(f"{PAGE}/{name}{suffix}", signed_in(view), {"suffix": suffix})
        for name, view in (("explain", trials.explain), ("replay", trials.replay))
        for suffix in (".csv", ".json")
    ),
    path(f"{PAGE}/explain", signed_in(trials.explain), name="routing-explain"),
    path(f"{PAGE}/replay", signed_in(trials.replay), name="routing-replay"),
]
