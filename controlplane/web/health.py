"""/healthz, /readyz and /metrics: for load balancers and Prometheus, without a session."""

from __future__ import annotations

import hmac

from django.conf import settings
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from controlplane.accounts.authentication import address_allowed, client_address
from controlplane.web.readiness import METRICS, findings, news

_LOOPBACK = ["127.0.0.0/8", "::1/128"]


@require_safe
@never_cache
def healthz(request: HttpRequest) -> HttpResponse:
    """200 while the process answers at all."""
    return JsonResponse({"status": "ok"})


@require_safe
@never_cache
def readyz(request: HttpRequest) -> HttpResponse:
    """200 when everything that Hearth needs works, otherwise 503 with each cause. ``news`` says how fresh pages are."""
    found = findings()
    ready = all(finding.ok for finding in found.values())
    body = {
        "ready": ready,
        "causes": [finding.detail for finding in found.values() if not finding.ok],
        "checks": {name: {"ok": finding.ok, "detail": finding.detail} for name, finding in found.items()},
    }
    if found["database"].ok:
        body["news"] = news()
    return JsonResponse(body, status=200 if ready else 503)


@require_safe
@never_cache
def metrics(request: HttpRequest) -> HttpResponse:
    """The Prometheus text form, computed when it is scraped. For METRICS_TOKEN's bearer; without one, on loopback."""
    token = settings.METRICS_TOKEN
    given = request.headers.get("Authorization", "")
    if token and not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
        return HttpResponse("A bearer token is required.\n", status=401, headers={"WWW-Authenticate": "Bearer"})
    if not token and not _is_local(request):
        return HttpResponse("From another machine this needs HEARTH_METRICS_TOKEN to be set.\n", status=403)
    return HttpResponse(generate_latest(METRICS), content_type=CONTENT_TYPE_LATEST)


def _is_local(request: HttpRequest) -> bool:
    """Nobody else, and no proxy that may speak for anybody."""
    proxied = "X-Forwarded-For" in request.headers and not settings.TRUSTED_PROXIES
    return not proxied and address_allowed(client_address(request), _LOOPBACK)
