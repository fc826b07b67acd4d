"""REST addresses of routing, below /api/v1/. No address ends in a slash; every list has a twin that ends in .csv."""

from __future__ import annotations

from django.urls import URLPattern, URLResolver, path

from controlplane.rest.views import RowsView
from routing.api import explaining, policies, routers, static, telemetry, trial_urls, variants


def rows(route: str, view: type[RowsView], name: str) -> list[URLPattern]:
    """A list, and the same list as CSV."""
    return [
        path(route, view.as_view(), name=f"api-{name}"),
        path(f"{route}.csv", view.as_view(), {"format": "csv"}, name=f"api-{name}-csv"),
    ]


urlpatterns: list[URLPattern | URLResolver] = [
    path(
        "endpoints/<uuid:endpoint_id>/variants/<str:variant>/routing-policy",
        policies.VariantPolicy.as_view(),
        name="api-variant-policy",
    ),
    path(
        "endpoints/<uuid:endpoint_id>/variants/<str:variant>/explain",
        explaining.VariantExplain.as_view(),
        name="api-variant-explain",
    ),
    path(
        "endpoints/<uuid:endpoint_id>/variants/<str:variant>/routing-telemetry",
        telemetry.VariantTelemetry.as_view(),
        name="api-variant-telemetry",
    ),
    path("endpoints/<uuid:endpoint_id>/variants", variants.VariantList.as_view(), name="api-variants"),
    path("static-endpoints", static.StaticList.as_view(), name="api-static-endpoints"),
    path("static-endpoints/<uuid:endpoint_id>", static.StaticDetail.as_view(), name="api-static-endpoint"),
    *trial_urls.urlpatterns,
    *rows("routing-policies", policies.RoutingPolicyList, "routing-policies"),
    path("routing-policies/<uuid:policy_id>", policies.RoutingPolicyDetail.as_view(), name="api-routing-policy"),
    *rows("instances", routers.InstanceList, "instances"),
    path("instances/<uuid:instance_id>", routers.InstanceDetail.as_view(), name="api-instance"),
    *rows("routers", routers.RouterList, "routers"),
    path("routers/<uuid:router_id>", routers.RouterDetail.as_view(), name="api-router"),
]
