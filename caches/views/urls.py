"""Page addresses. Every table's address also answers with ``.csv`` and ``.json``."""

from __future__ import annotations

from django.urls import URLPattern, URLResolver, path
from django.views.generic import RedirectView

from caches.views import (
    endpoints,
    entries,
    fleet,
    images,
    launch_compare,
    launch_report,
    launches,
    models,
    operations,
    overview,
    pin_flow,
    pins,
    pool_delete,
    records,
    rollouts,
    trials,
)
from caches.views.base import View, signed_in


def _page(route: str, view: View, name: str) -> URLPattern:
    return path(route, signed_in(view), name=name)


def _table(route: str, view: View, name: str) -> list[URLPattern]:
    """The page and its exports. Exports come first: a page's last part may hold dots."""
    exports = [
        path(f"{route or 'overview'}{suffix}", signed_in(view), {"suffix": suffix}) for suffix in (".csv", ".json")
    ]
    return [*exports, _page(route, view, name)]


urlpatterns: list[URLPattern | URLResolver] = [
    *_table("", overview.home, "overview"),
    _page("search", overview.search, "search"),
    *_table("fleet", fleet.fleet, "fleet"),
    *_table("fleet/<str:name>", fleet.pool, "pool"),
    _page("fleet/<str:name>/delete", pool_delete.delete, "pool-delete"),
    *_table("nodes/<uuid:node_id>", fleet.node, "node"),
    *_table("entries", overview.entries, "entries"),
    *_table("entries/<uuid:entry_id>", entries.detail, "entry"),
    _page("entries/<uuid:entry_id>/evict", entries.evict, "entry-evict"),
    _page("entries/<uuid:entry_id>/scrub", entries.scrub, "entry-scrub"),
    _page("entries/<uuid:entry_id>/retry", entries.retry, "entry-retry"),
    *_table("models", models.models, "models"),
    _page("register", models.register, "register"),
    _page("models/<str:name>/versions/<path:label>/recheck", models.recheck, "version-recheck"),
    _page("models/<str:name>/versions/<path:label>/delete", models.delete, "version-delete"),
    *_table("models/<str:name>/versions/<path:label>", models.version, "version"),
    *_table("models/<str:name>", models.model, "model"),
    *_table("images", images.images, "images"),
    _page("images/new", images.register, "image-new"),
    *_table("images/<uuid:image_id>", images.image, "image"),
    _page("images/<uuid:image_id>/revoke", images.revoke, "image-revoke"),
    _page("images/<uuid:image_id>/restore", images.restore, "image-restore"),
    _page("images/<uuid:image_id>/delete", images.delete, "image-delete"),
    *_table("endpoints", endpoints.endpoints, "endpoints"),
    _page("endpoints/new", endpoints.apply, "endpoint-new"),
    *_table("endpoints/<uuid:endpoint_id>", endpoints.endpoint, "endpoint"),
    _page("endpoints/<uuid:endpoint_id>/cache", endpoints.cache, "endpoint-cache"),
    _page("rollouts/<uuid:rollout_id>/release", rollouts.release, "rollout-release"),
    _page("rollouts/<uuid:rollout_id>/hold", rollouts.hold, "rollout-hold"),
    _page("rollouts/<uuid:rollout_id>/rollback", rollouts.rollback, "rollout-rollback"),
    *_table("launches", launches.launches, "launches"),
    # What the menu calls it.
    path("cold-starts", RedirectView.as_view(pattern_name="launches", query_string=True)),
    *_table("launches/compare", launch_compare.compare, "launch-compare"),
    *_table("launches/report", launch_report.report, "launch-report"),
    _page("launches/report.html", launch_report.report_file, "launch-report-file"),
    *_table("launches/trials", trials.trials, "trials"),
    _page("launches/trials/new", trials.new, "trial-new"),
    *_table("launches/trials/<uuid:operation_id>", trials.trial, "trial"),
    _page("launches/trials/<uuid:operation_id>/cancel", trials.cancel, "trial-cancel"),
    *_table("launches/<uuid:launch_id>", launches.launch, "launch"),
    *_table("pins", pins.pins, "pins"),
    _page("pins/new", pin_flow.new, "pin-new"),
    *_table("pins/<uuid:pin_id>", pins.pin, "pin"),
    _page("pins/<uuid:pin_id>/suspend", pins.suspend, "pin-suspend"),
    _page("pins/<uuid:pin_id>/resume", pins.resume, "pin-resume"),
    _page("pins/<uuid:pin_id>/priority", pins.priority, "pin-priority"),
    _page("pins/<uuid:pin_id>/unpin", pins.unpin, "pin-unpin"),
    *_table("operations", operations.operations, "operations"),
    *_table("operations/<uuid:operation_id>", operations.operation, "operation"),
    _page("operations/<uuid:operation_id>/cancel", operations.cancel, "operation-cancel"),
    _page("operations/<uuid:operation_id>/retry", operations.retry, "operation-retry"),
    *_table("audit", records.audit, "audit"),
    *_table("tokens", records.tokens, "tokens"),
    _page("tokens/<uuid:token_id>/revoke", records.revoke, "token-revoke"),
    *_table("connections", records.connections, "connections"),
    *_table("connections/<str:name>", records.connection, "connection"),
]
