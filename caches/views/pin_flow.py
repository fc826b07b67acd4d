"""Making a pin: choose, see what would happen on each node, confirm. The address holds every choice."""

from __future__ import annotations

import json
from typing import Any

from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.http import urlencode

from caches.domain.pool_view import Placement
from caches.forms import PinForm
from caches.models import GateType, ModelVersion, Pin
from caches.selectors.nodes import pools_list
from caches.selectors.why import Preview, named, pin_fits
from caches.services.pins import pin_create, pin_preview
from caches.views.base import curl, may, readable, show, user_of
from controlplane.accounts import access
from controlplane.accounts.actors import actor_of
from controlplane.accounts.models import Role
from controlplane.clusters.models import Node, NodePool
from controlplane.errors import HearthError, Invalid
from controlplane.web.form_keys import FIELD, fresh_key, once


def new(request: HttpRequest) -> HttpResponse:
    """GET chooses, with ``step=preview`` previews; POST creates and goes to the operation."""
    access.require_anywhere(user_of(request), Role.OPERATOR)
    if request.method == "POST":
        return _create(request)
    pools = _pools(request)
    if request.GET.get("step") != "preview":
        form = PinForm(initial=_initial(request, pools), pools=pools)
        return _choose(request, form)
    form = PinForm(request.GET, pools=pools)
    if not form.is_valid():
        return _choose(request, form, status=400)
    return _preview(request, form)


def _choose(request: HttpRequest, form: PinForm, *, status: int = 200) -> HttpResponse:
    context = {
        "form": form,
        "advanced": [form[name] for name in PinForm.ADVANCED],
        "advanced_open": any(form[name].errors for name in PinForm.ADVANCED),
        "has_versions": form.fields["version"].queryset.exists(),  # type: ignore[attr-defined]
    }
    return _page(request, "pages/pin_choose.html", context, status=status)


def _preview(
    request: HttpRequest, form: PinForm, *, refused: HearthError | None = None, form_key: str = "", status: int = 200
) -> HttpResponse:
    version: ModelVersion = form.cleaned_data["version"]
    existing = Pin.objects.filter(version=version, removed_at__isnull=True).first()
    preview = None
    if existing is None:
        try:
            preview = _fits(form)
        except HearthError as error:
            if error.errors:  # a rule about a field: it is corrected where it was typed
                form.take(error.errors, error.detail)
                return _choose(request, form, status=error.status)
            refused, status = error, error.status
    context = {
        "form": form,
        "version": version,
        "existing": existing,
        "preview": preview,
        "refused": refused,
        "hidden": _hidden(form),
        "choices": urlencode(_hidden(form)),
        "form_key": form_key or fresh_key(),
        "curl": _curl(request, form),
    }
    return _page(request, "pages/pin_preview.html", context, status=status)


def _create(request: HttpRequest) -> HttpResponse:
    form = PinForm(request.POST, pools=_pools(request))
    if not form.is_valid():
        return _choose(request, form, status=400)
    for pool in form.cleaned_data["pools"]:
        access.require(user_of(request), Role.OPERATOR, pool.full_name)
    version: ModelVersion = form.cleaned_data["version"]

    def work() -> str:
        if _fits(form).evictions and request.POST.get("confirm", "").strip() != version.full_name:
            raise Invalid(
                "pin:user:not-confirmed",
                "This pin evicts other models now, and the typed name does not confirm that.",
                next_step=f"Read the preview below and type {version.full_name} to confirm.",
            )
        _, operation = pin_create(actor=actor_of(request), spec=form.spec())
        return reverse("operation", args=[operation.id])

    try:
        return once(request, work)
    except HearthError as error:
        return _preview(request, form, refused=error, form_key=request.POST.get(FIELD, ""), status=error.status)


def _fits(form: PinForm) -> Preview:
    version: ModelVersion = form.cleaned_data["version"]
    assert version.artifact_id is not None  # the form offers Available versions only
    plans = pin_preview(spec=form.spec())
    pools = sorted(form.cleaned_data["pools"], key=lambda pool: pool.pk)  # plans come in this order
    names = dict(Node.objects.filter(pool__in=pools, lost_at__isnull=True).values_list("uid", "name"))
    digest = ModelVersion.objects.values_list("artifact__digest", flat=True).get(pk=version.pk)
    return named(pin_fits(plans, str(digest), [pool.full_name for pool in pools]), names)


def _page(request: HttpRequest, template: str, context: dict[str, Any], *, status: int = 200) -> HttpResponse:
    crumbs = [("Pins", reverse("pins"))]
    return show(
        request, template, context, title="Pin a version", section="pins", crumbs=crumbs, live_page=False, status=status
    )


def _pools(request: HttpRequest) -> QuerySet[NodePool]:
    """The pools on which this person may pin."""
    rows = pools_list(targets=readable(request)).filter(deleting_at__isnull=True)
    return rows.filter(pk__in=[pool.pk for pool in rows if may(request, Role.OPERATOR, pool.full_name)])


def _initial(request: HttpRequest, pools: QuerySet[NodePool]) -> dict[str, Any]:
    """Choices from the address; a fleet with one pool has nothing to choose."""
    initial: dict[str, Any] = {name: request.GET[name] for name in request.GET if name in PinForm.base_fields}
    initial["pools"] = request.GET.getlist("pools")
    if not initial["pools"] and pools.count() == 1:
        initial["pools"] = [pool.pk for pool in pools]
    return initial


def _hidden(form: PinForm) -> list[tuple[str, str]]:
    """The choices again, to be sent with the confirmation."""
    pairs = [("pools", str(pool.pk)) for pool in form.cleaned_data["pools"]]
    for name in form.fields:
        if name != "pools" and (value := form.data.get(name)):
            pairs.append((name, str(value)))
    return pairs


def _curl(request: HttpRequest, form: PinForm) -> str:
    """The same pin over REST: every choice, not only those that are always shown."""
    data = form.cleaned_data
    body: dict[str, Any] = {
        "model": data["version"].model.name,
        "version": data["version"].version,
        "pools": sorted(pool.full_name for pool in data["pools"]),
        "priority": data["priority"],
    }
    spec = form.spec()
    if spec.placement != Placement():
        body["placement"] = {
            "type": spec.placement.type.value,
            "value": spec.placement.value,
            "spread_label": spec.placement.spread_label,
        }
    if (spec.gate_type, spec.gate_value) != (GateType.ALL, 100):
        body["gate"] = {"type": spec.gate_type.value, "value": spec.gate_value}
    if spec.retention_seconds:
        body["retention"] = {"seconds": spec.retention_seconds}
    if spec.needed_at is not None:
        body["needed_at"] = spec.needed_at.isoformat()
    if spec.window is not None:
        window = spec.window
        body["window"] = {
            "start": f"{window.start:%H:%M}",
            "end": f"{window.end:%H:%M}",
            "time_zone": window.time_zone,
        }
    return curl(request, "pins?dry_run=true", method="POST", body=json.dumps(body))
