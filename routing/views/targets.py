"""Who serves: endpoints of addresses that somebody gives, and the shares of an endpoint's variants."""

from __future__ import annotations

from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.http import require_POST

from controlplane.accounts import access
from controlplane.accounts.actors import actor_of
from controlplane.accounts.models import Role
from controlplane.errors import Clash
from controlplane.serving.models import Endpoint
from controlplane.web.form_keys import fresh_key, sent
from controlplane.web.people import may, readable, user_of
from controlplane.web.tables import Column, Table
from routing.selectors.variants import (
    ShownVariant,
    routed_endpoint,
    static_document,
    static_endpoint,
    variants_shown,
    variants_tag,
)
from routing.services.static_endpoints import (
    static_endpoint_change,
    static_endpoint_create,
    static_endpoint_remove,
    static_read,
)
from routing.services.variants import variants_set
from routing.target_forms import StaticChangeForm, StaticForm, VariantsForm
from routing.views.base import show


def static_new(request: HttpRequest) -> HttpResponse:
    """The form for an endpoint of addresses."""
    access.require_anywhere(user_of(request), Role.OPERATOR)
    form = StaticForm(request.POST or None, targets=readable(request))
    done = sent(request, form, lambda: _create(request, form))
    return done.answer or _static_form(request, form, None, done.status)


def _create(request: HttpRequest, form: StaticForm) -> str:
    access.require(user_of(request), Role.OPERATOR, form.cleaned_data["cluster"].name)
    given = static_read(**form.given())
    row = static_endpoint_create(actor=actor_of(request), cluster=form.cleaned_data["cluster"], given=given)
    messages.success(request, f"{row.name} is served by every router in a moment.")
    return reverse("routing", args=[row.pk])


def static_change(request: HttpRequest, endpoint_id: UUID) -> HttpResponse:
    row = static_endpoint(endpoint_id=endpoint_id, targets=readable(request))
    access.require(user_of(request), Role.OPERATOR, row.cluster.name)
    initial = StaticChangeForm.initial_of(static_document(row))
    form = StaticChangeForm(request.POST if request.method == "POST" else None, initial=initial)
    done = sent(request, form, lambda: _change(request, row, form))
    return done.answer or _static_form(request, form, row, done.status)


def _change(request: HttpRequest, row: Endpoint, form: StaticChangeForm) -> str:
    _unchanged(request, row.updated_at.isoformat())
    static_endpoint_change(
        actor=actor_of(request), endpoint_id=row.pk, given=static_read(**form.given()), if_updated_at=row.updated_at
    )
    messages.success(request, "Routers follow in a moment.")
    return reverse("routing", args=[row.pk])


def _static_form(request: HttpRequest, form: StaticForm, row: Endpoint | None, status: int) -> HttpResponse:
    context = {
        "form": form,
        "endpoint": row,
        "form_key": request.POST.get("form_key") or fresh_key(),
        "based_on": request.POST.get("based_on") or (row.updated_at.isoformat() if row else ""),
    }
    title = f"Addresses of {row.name}" if row else "An endpoint of addresses"
    return show(
        request, "pages/routing_static.html", context, title=title, crumbs=_crumbs(row), live_page=False, status=status
    )


@require_POST
def static_remove(request: HttpRequest, endpoint_id: UUID) -> HttpResponse:
    row = static_endpoint(endpoint_id=endpoint_id, targets=readable(request))
    access.require(user_of(request), Role.OPERATOR, row.cluster.name)
    static_endpoint_remove(actor=actor_of(request), endpoint_id=row.pk)
    messages.success(request, f"{row.name} is gone; what is in flight ends.")
    return redirect("endpoints")


def variants(request: HttpRequest, endpoint_id: UUID, suffix: str = "") -> HttpResponse:
    """Variants, and the form that shifts requests between them."""
    row = routed_endpoint(endpoint_id=endpoint_id, targets=readable(request))
    may_change = may(request, Role.OPERATOR, row.cluster.name)
    shown = variants_shown(row)
    posted = request.method == "POST"
    if posted:
        access.require(user_of(request), Role.OPERATOR, row.cluster.name)
    form = VariantsForm(request.POST if posted else None, endpoint=row, shown=shown)
    done = sent(request, form, lambda: _shift(request, row, form))
    if done.answer is not None:
        return done.answer
    table = Table(request, shown, _variant_columns(), name="variants", caption="Variants", key=lambda one: one.name)
    context = {
        "endpoint": row,
        "form": form if may_change else None,
        "form_key": request.POST.get("form_key") or fresh_key(),
        "based_on": request.POST.get("based_on") or variants_tag(row),
        "waiting": [one for one in shown if one.waits_for],
    }
    return show(
        request, "pages/routing_variants.html", context, title=f"Variants of {row.full_name}", crumbs=_crumbs(row),
        tables=(table,), suffix=suffix, live_page=False, status=done.status,
    )  # fmt: skip


def _shift(request: HttpRequest, row: Endpoint, form: VariantsForm) -> str:
    _unchanged(request, variants_tag(row))
    variants_set(actor=actor_of(request), endpoint_id=row.pk, wanted=form.wanted(), if_tag=variants_tag(row))
    messages.success(request, "The shares are in force once every variant that gets more is ready.")
    return reverse("routing-variants", args=[row.pk])


def _unchanged(request: HttpRequest, now: str) -> None:
    if request.POST.get("based_on") not in (None, "", now):
        raise Clash(
            "routing:targets:changed",
            "Somebody else changed this while you were looking at the form.",
            next_step="Open the form again and look at what is so now.",
        )


def _variant_columns() -> list[Column]:
    def percent(one: ShownVariant) -> str:
        return f"{100 * one.share:.1f} %"

    return [
        Column("name", "Variant", lambda v: v.name, heading=True),
        Column("share", "Share", lambda v: round(v.share, 4), percent, numeric=True),
        Column("weight", "Weight", lambda v: v.weight, numeric=True),
        Column("wanted_weight", "Wanted", lambda v: v.wanted_weight, numeric=True),
        Column("endpoint", "Served by", lambda v: v.endpoint or "its own instances"),
        Column("ready", "Ready", lambda v: v.ready, lambda v: _ready(v), numeric=True),
        Column("waits_for", "Waits for", lambda v: v.waits_for),
    ]


def _ready(one: ShownVariant) -> str:
    return f"{'unknown' if one.ready is None else one.ready} of {one.instances}"


def _crumbs(row: Endpoint | None) -> list[tuple[str, str]]:
    found = [("Endpoints", reverse("endpoints"))]
    if row is not None:
        found += [(row.full_name, reverse("endpoint", args=[row.pk])), ("Routing", reverse("routing", args=[row.pk]))]
    return found
