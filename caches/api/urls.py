"""REST addresses, below /api/v1/. No address ends in a slash; every list has a twin that ends in .csv."""

from __future__ import annotations

from django.urls import URLPattern, URLResolver, path

from caches.api import (
    accounts,
    audit,
    catalogue,
    clusters,
    connections,
    endpoints,
    entries,
    fleet,
    images,
    launch_statistics,
    launch_trials,
    launches,
    operations,
    pins,
    webhooks,
)
from controlplane.rest.docs import DocsView, SchemaView
from controlplane.rest.views import RowsView

MODEL = "models/<str:model>"
VERSION = f"{MODEL}/versions/<str:version>"


def rows(route: str, view: type[RowsView], name: str) -> list[URLPattern]:
    """A list, and the same list as CSV."""
    return [
        path(route, view.as_view(), name=f"api-{name}"),
        path(f"{route}.csv", view.as_view(), {"format": "csv"}, name=f"api-{name}-csv"),
    ]


urlpatterns: list[URLPattern | URLResolver] = [
    *rows("source-connections", connections.ConnectionList, "connections"),
    path("source-connections/<str:name>", connections.ConnectionDetail.as_view(), name="api-connection"),
    *rows("clusters", clusters.ClusterList, "clusters"),
    path("clusters/<str:name>", clusters.ClusterDetail.as_view(), name="api-cluster"),
    path("clusters/<str:name>/adopt", clusters.ClusterAdopt.as_view(), name="api-cluster-adopt"),
    *rows("node-pools", fleet.NodePoolList, "node-pools"),
    path("node-pools/<str:name>", fleet.NodePoolDetail.as_view(), name="api-node-pool"),
    *rows("nodes", fleet.NodeList, "nodes"),
    path("nodes/<uuid:node_id>", fleet.NodeDetail.as_view(), name="api-node"),
    *rows("nodes/<uuid:node_id>/cache-entries", fleet.NodeEntryList, "node-entries"),
    path("nodes/<uuid:node_id>/eviction-forecast", fleet.NodeForecast.as_view(), name="api-node-forecast"),
    *rows("models", catalogue.ModelList, "models"),
    path(MODEL, catalogue.ModelDetail.as_view(), name="api-model"),
    *rows(f"{MODEL}/versions", catalogue.VersionList, "versions"),
    path(VERSION, catalogue.VersionDetail.as_view(), name="api-version"),
    path(f"{VERSION}/manifest", catalogue.VersionManifest.as_view(), name="api-version-manifest"),
    path(f"{VERSION}/why-not-warm", catalogue.VersionWhyNotWarm.as_view(), name="api-version-why"),
    path(f"{VERSION}/image", images.VersionImage.as_view(), name="api-version-image"),
    path(f"{VERSION}/recheck", catalogue.VersionRecheck.as_view(), name="api-version-recheck"),
    *rows("images", images.ImageList, "images"),
    path("images/<uuid:image_id>", images.ImageDetail.as_view(), name="api-image"),
    path("images/<uuid:image_id>/revoke", images.ImageRevoke.as_view(), name="api-image-revoke"),
    path("images/<uuid:image_id>/withdraw", images.ImageWithdraw.as_view(), name="api-image-withdraw"),
    path("images/<uuid:image_id>/restore", images.ImageRestore.as_view(), name="api-image-restore"),
    *rows("endpoints", endpoints.EndpointList, "endpoints"),
    path("endpoints/<uuid:endpoint_id>", endpoints.EndpointDetail.as_view(), name="api-endpoint"),
    path("endpoints/<uuid:endpoint_id>/cache", endpoints.EndpointCache.as_view(), name="api-endpoint-cache"),
    *rows("rollouts", endpoints.RolloutList, "rollouts"),
    path("rollouts/<uuid:rollout_id>", endpoints.RolloutDetail.as_view(), name="api-rollout"),
    path("rollouts/<uuid:rollout_id>/release", endpoints.RolloutRelease.as_view(), name="api-rollout-release"),
    path("rollouts/<uuid:rollout_id>/hold", endpoints.RolloutHold.as_view(), name="api-rollout-hold"),
    path("rollouts/<uuid:rollout_id>/rollback", endpoints.RolloutRollback.as_view(), name="api-rollout-rollback"),
    *rows("pins", pins.PinList, "pins"),
    path("pins/<uuid:pin_id>", pins.PinDetail.as_view(), name="api-pin"),
    *rows("cache-entries", entries.EntryList, "entries"),
    path("cache-entries/<uuid:entry_id>", entries.EntryDetail.as_view(), name="api-entry"),
    path("cache-entries/<uuid:entry_id>/evict", entries.EntryEvict.as_view(), name="api-entry-evict"),
    path("cache-entries/<uuid:entry_id>/scrub", entries.EntryScrub.as_view(), name="api-entry-scrub"),
    path("cache-entries/<uuid:entry_id>/retry", entries.EntryRetry.as_view(), name="api-entry-retry"),
    *rows("launches", launches.LaunchList, "launches"),
    path("launches/statistics", launches.LaunchStatistics.as_view(), name="api-launch-statistics"),
    path("launches/comparison", launch_statistics.LaunchComparison.as_view(), name="api-launch-comparison"),
    path("launches/moves", launch_statistics.LaunchMoves.as_view(), name="api-launch-moves"),
    path("launches/report", launch_statistics.LaunchReport.as_view(), name="api-launch-report"),
    path("launches/trials", launch_trials.LaunchTrials.as_view(), name="api-launch-trials"),
    path("launches/observations", launches.LaunchReports.as_view(), name="api-launch-reports"),
    path("launches/<uuid:launch_id>", launches.LaunchDetail.as_view(), name="api-launch"),
    path("launches/<uuid:launch_id>/phases", launches.LaunchPhases.as_view(), name="api-launch-phases"),
    *rows("operations", operations.OperationList, "operations"),
    path("operations/<uuid:operation_id>", operations.OperationDetail.as_view(), name="api-operation"),
    path("operations/<uuid:operation_id>/cancel", operations.OperationCancel.as_view(), name="api-operation-cancel"),
    path("operations/<uuid:operation_id>/retry", operations.OperationRetry.as_view(), name="api-operation-retry"),
    *rows("audit-events", audit.AuditEventList, "audit-events"),
    path("audit-events/<uuid:event_id>", audit.AuditEventDetail.as_view(), name="api-audit-event"),
    *rows("tokens", accounts.TokenList, "tokens"),
    path("tokens/<uuid:token_id>", accounts.TokenDetail.as_view(), name="api-token"),
    path("me", accounts.Me.as_view(), name="api-me"),
    *rows("webhooks", webhooks.WebhookList, "webhooks"),
    path("webhooks/<str:name>", webhooks.WebhookDetail.as_view(), name="api-webhook"),
    path("openapi", SchemaView.as_view(), name="api-openapi"),
    path("docs", DocsView.as_view(url_name="api-openapi"), name="api-docs"),
]
