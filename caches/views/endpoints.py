"""Endpoints: what is served, what it waits for and why, and documents that are pasted to be tried or applied."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.views.decorators.http import require_POST

from caches.domain.gating import waited_for
from caches.domain.rollouts import FINAL, RolloutState
from caches.filters import EndpointFilter
from caches.forms import EndpointForm, HearthForm
from caches.selectors.endpoints import (
    endpoint_get,
    endpoint_image,
    endpoint_source,
    endpoints_list,
    nodes_seen,
    rollout_gate,
    rollout_nodes,
    rollout_warmth,
    rollouts_list,
)
from caches.selectors.rollout_sides import hold_words, kept_before, rollout_sides, way_back
from caches.services.endpoints.cache import endpoint_cache_set
from caches.services.endpoints.documents import endpoint_apply, manifest_read
from caches.services.endpoints.preview import EndpointPreview, endpoint_preview
from caches.views.base import curl, filtered, may, readable, show, user_of
from controlplane.accounts import access
from controlplane.accounts.actors import actor_of
from controlplane.accounts.models import Role
from controlplane.clusters.documents import WaitReason
from controlplane.clusters.endpoints import FINALIZER
from controlplane.clusters.models import ClusterType
from controlplane.errors import HearthError
from controlplane.serving.models import STATIC_KIND, Endpoint
from controlplane.serving.standing import NODE_NOT_READY, ServingState, Standing, Standings
from controlplane.serving.withholding import with_places
from controlplane.web import cells
from controlplane.web.form_keys import fresh_key, once
from controlplane.web.tables import Column, Table

_WAITS = frozenset({*WaitReason, NODE_NOT_READY})
SHORT_NAME = 30  # characters that stay in one line
FORM_TITLE = "Apply an endpoint"


def endpoints(request: HttpRequest, suffix: str = "") -> HttpResponse:
    """Every endpoint of the clusters that this person may see."""
    found = EndpointFilter(request.GET, queryset=endpoints_list(targets=readable(request)))
    table = Table(
        request, filtered(request, found, suffix), _columns(Standings(now=timezone.now())), name="endpoints",
        caption="Endpoints", url=_url, default_sort="name",
    )  # fmt: skip
    context = {"problems": found.errors}
    return show(
        request, "pages/endpoints.html", context, title="Endpoints", section="endpoints", tables=(table,), suffix=suffix
    )


def endpoint(request: HttpRequest, endpoint_id: UUID, suffix: str = "") -> HttpResponse:
    """One endpoint: what serves beside what comes, the nodes that are waited for, its pods."""
    found = endpoint_get(endpoint_id=endpoint_id, targets=readable(request))
    rows = rollouts_list(targets=readable(request)).filter(endpoint=found)
    sides = rollout_sides(rows)
    newest = sides[-1].rollout if sides else None
    table = Table(
        request, rows, _rollout_columns(), name="rollouts", caption="Rollouts", url=lambda row: _url(found),
        default_sort="-number",
    )  # fmt: skip
    back = way_back(rows, sides)
    held = rows.filter(state=RolloutState.HOLDING).order_by("-number").first()
    if held is None and newest is not None and newest.hold_was_ended:
        held = newest  # who ended it stays to be read
    standings = Standings(now=timezone.now())
    nodes = rollout_nodes(newest) if newest is not None and newest.state not in FINAL else ()
    placed = with_places(list(found.instances.select_related("node__pool", "endpoint__cluster")), readable(request))
    context = {
        "endpoint": found,
        "standing": standings.of_endpoint(found),
        "is_static": found.kind == STATIC_KIND,
        # The local fleet's are served by engines that come and go at once.
        "rolls_out": found.kind != STATIC_KIND and (found.cluster.type != ClusterType.LOCAL or newest is not None),
        "newest": newest,
        "newest_serves": bool(sides) and sides[-1].serves,
        "sides": [(side, rollout_warmth(side.rollout)) for side in sides],
        "back": back,
        "back_serves": any(side.serves and side.rollout == back for side in sides),
        "warm": rollout_warmth(back) if back is not None else None,
        "held": held,
        "holding": held is not None and held.state == RolloutState.HOLDING,
        "hold_words": hold_words(held) if held is not None else "",
        "kept": kept_before(held) if held is not None else None,
        "nodes": nodes,
        "gate": rollout_gate(newest, nodes) if newest is not None else None,
        "blocking": nodes_seen(waited_for(nodes), cluster=found.cluster, targets=readable(request)),
        "instances": [(one, standings.of_instance(one)) for one in placed],
        "conditions": _conditions(found),
        # One of the vendor's operator: Hearth would hold it.
        "is_observed": found.cluster.type != ClusterType.LOCAL
        and found.kind != STATIC_KIND
        and FINALIZER not in found.finalizers
        and found.gone_at is None
        and found.deleting_at is None,
        "releasable": newest is not None and newest.state not in (*FINAL, RolloutState.SWITCHING),
        "may_change": may(request, Role.OPERATOR, found.cluster.name),
        "curl": curl(request, f"endpoints/{found.pk}"),
    }
    return show(
        request,
        "pages/endpoint.html",
        context,
        title=found.full_name,
        section="endpoints",
        crumbs=[("Endpoints", reverse("endpoints"))],
        tables=(table,),
        suffix=suffix,
    )


@require_POST
def cache(request: HttpRequest, endpoint_id: UUID) -> HttpResponse:
    """Switch the caches of an endpoint that the vendor's operator reconciles."""
    row = endpoint_get(endpoint_id=endpoint_id, targets=readable(request))
    access.require(user_of(request), Role.OPERATOR, row.cluster.name)
    words = {"on": True, "off": False}
    weights, image = (words.get(request.POST.get(name, "")) for name in ("weights", "image"))
    operation = endpoint_cache_set(actor=actor_of(request), endpoint_id=row.pk, weights=weights, image=image)
    return redirect("operation", operation.pk)


def apply(request: HttpRequest) -> HttpResponse:
    """The form: a document is tried, and then applied."""
    access.require_anywhere(user_of(request), Role.OPERATOR)
    form = EndpointForm(request.POST or None, targets=readable(request))
    status, preview = 200, None
    if request.method == "POST":
        status = 400
        if form.is_valid():
            try:
                access.require(user_of(request), Role.OPERATOR, form.cleaned_data["cluster"].name)
                if request.POST.get("step") == "apply":
                    return once(request, lambda: _apply(request, form))
                preview, status = _preview(form), 200
            except HearthError as error:
                status = error.status
                form.take(error.errors, error.detail)
    context = {"form": form, "form_key": request.POST.get("form_key") or fresh_key(), "preview": preview}
    return show(
        request,
        "pages/endpoint_apply.html",
        context,
        title=FORM_TITLE,
        section="endpoints",
        crumbs=[("Endpoints", reverse("endpoints"))],
        live_page=False,
        status=status,
    )


def _preview(form: HearthForm) -> EndpointPreview:
    document = manifest_read(form.cleaned_data["manifest"])
    return endpoint_preview(cluster=form.cleaned_data["cluster"], document=document)


def _apply(request: HttpRequest, form: HearthForm) -> str:
    document = manifest_read(form.cleaned_data["manifest"])
    operation = endpoint_apply(actor=actor_of(request), cluster=form.cleaned_data["cluster"], document=document)
    return reverse("operation", args=[operation.id])


def _url(row: Endpoint) -> str:
    return reverse("endpoint", args=[row.pk])


def _columns(standings: Standings) -> list[Column]:
    of = standings.of_endpoint
    return [
        Column("name", "Endpoint", lambda e: e.full_name, _name, "name", heading=True),
        Column("cluster", "Cluster", lambda e: e.cluster.name, None, "cluster__name"),
        Column("state", "State", lambda e: of(e).state, lambda e: _state(e, of(e))),
        Column("why", "Why", lambda e: _why_failed(e, of(e)), shown=False),
        Column("unknown_since", "Unknown since", lambda e: of(e).since, shown=False),
        Column("rollout", "Rollout", lambda e: e.rollout_state or "",
               lambda e: cells.pill(e.rollout_state) if e.rollout_state else None),
        Column("weights", "Weights", endpoint_source, lambda e: _breaking(endpoint_source(e))),
        Column("image", "Image", endpoint_image, lambda e: cells.reference(endpoint_image(e))),
    ]  # fmt: skip


def _name(row: Endpoint) -> SafeString:
    """The columns beside it never break a name of usual length."""
    return cells.link(row.full_name, _url(row), "short" if len(row.full_name) <= SHORT_NAME else "")


def _state(row: Endpoint, standing: Standing) -> SafeString:
    """The pill, and why below it where it failed; a long refusal is on its own page in full."""
    return format_html("{}{}", cells.standing(standing), cells.reason(Truncator(_why_failed(row, standing)).chars(240)))


def _why_failed(row: Endpoint, standing: Standing) -> str:
    """What the conditions say of one that cannot serve, or whose pods wait; those that say what it follows from come
    first."""
    false = [one for one in _conditions(row) if one.get("status") == "False"]
    if standing.state != "DeploymentFailed":
        false = [one for one in false if str(one.get("reason")) in _WAITS and standing.state != ServingState.UNKNOWN]
    said = {str(one.get("type")): str(one.get("message") or one.get("reason") or "") for one in false}
    return next((said[name] for name in ("Accepted", "RolledOut", *said) if said.get(name)), "")


def _conditions(row: Endpoint) -> list[dict[str, Any]]:
    """Those that can be read; the status may be anybody's."""
    found = row.said.get("conditions")
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _breaking(text: str | None) -> SafeString:
    """A long name or sentence, which may break anywhere and keeps a width that can be read."""
    return format_html('<span class="break">{}</span>', text) if text else cells.NOTHING


def _rollout_columns() -> list[Column]:
    return [
        Column("number", "Number", lambda r: r.number, None, "number", heading=True),
        Column("state", "State", lambda r: r.state, lambda r: cells.pill(r.state), "state"),
        Column("message", "Message", lambda r: r.message, lambda r: _breaking(r.message)),
        Column("weights", "Weights", lambda r: r.shown_source, lambda r: _breaking(r.shown_source)),
        Column("image", "Image", lambda r: r.shown_image, lambda r: cells.reference(r.shown_image)),
    ]
