"""Pins: the list and one pin with what can be done to it. Making one is in pin_flow.py."""

from __future__ import annotations

from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.views.decorators.http import require_POST

from caches.filters import PinFilter
from caches.forms import PriorityForm
from caches.models import Pin
from caches.selectors.entries import entries_list
from caches.selectors.nodes import Targets, pools_list
from caches.selectors.operations import operations_list
from caches.selectors.pin_artifacts import gate_artifact, image_named, pin_artifacts, pin_name, wants_weights
from caches.selectors.pins import PinStatus, pin_get, pin_pools, pin_statuses, pins_list
from caches.selectors.previews import unpin_preview
from caches.services.pins import pin_remove, pin_resume, pin_suspend, pin_update
from caches.views.base import curl, filtered, may, readable, show, user_of
from caches.views.columns import entry_columns, operation_columns
from caches.views.entries import entry_actions
from controlplane.accounts import access
from controlplane.accounts.actors import actor_of
from controlplane.accounts.models import Role
from controlplane.errors import Invalid
from controlplane.web import cells
from controlplane.web.form_keys import fresh_key, once
from controlplane.web.tables import Column, Table
from controlplane.web.tones import Tone


def pins(request: HttpRequest, suffix: str = "") -> HttpResponse:
    """Live pins with how far each is."""
    targets = readable(request)
    found = PinFilter(request.GET, queryset=pins_list(targets=targets))
    rows = list(filtered(request, found, suffix).order_by("-priority", "-id"))
    statuses = pin_statuses(rows)
    table = Table(
        request,
        rows,
        _columns(statuses, targets),
        name="pins",
        caption="Pins",
        url=lambda row: reverse("pin", args=[row.id]),
        default_sort="",
    )
    context = {"pools": pools_list(targets=targets), "problems": found.errors}
    return show(request, "pages/pins.html", context, title="Pins", section="pins", tables=(table,), suffix=suffix)


def pin(request: HttpRequest, pin_id: UUID, suffix: str = "") -> HttpResponse:
    """One pin: status with its conditions, copies, operations, and the buttons of those who may."""
    targets = readable(request)
    found = pin_get(pin_id=pin_id, targets=targets)
    status = pin_statuses([found])[found.id]
    copies = Table(
        request,
        entries_list(targets=targets).filter(
            artifact__in=pin_artifacts(found), node__pool__in=found.pools.all(), node__lost_at__isnull=True
        ),
        entry_columns(version=len(found.artifacts) > 1),
        name="copies",
        caption="Copies",
        url=lambda row: reverse("entry", args=[row.id]),
        actions=lambda row: entry_actions(request, row),
        default_sort="node",
    )
    operations = Table(
        request,
        operations_list(targets=targets).filter(subject_type="pin", subject_id=str(found.id)),
        operation_columns(),
        name="operations",
        caption="Operations of this pin",
        url=lambda row: reverse("operation", args=[row.id]),
        prefix="o",
    )
    return show(
        request,
        "pages/pin.html",
        {
            "pin": found,
            "image": image_named(found),
            "pools": pin_pools(found, targets),
            "status": status,
            "state": pin_state(found, status),
            "allowed": _may_change(request, found),
            "curl": curl(request, f"pins/{found.id}"),
        },
        title=f"Pin of {pin_name(found)}",
        section="pins",
        crumbs=[("Pins", reverse("pins"))],
        tables=(copies, operations),
        suffix=suffix,
    )


@require_POST
def suspend(request: HttpRequest, pin_id: UUID) -> HttpResponse:
    found = _allowed(request, pin_id)
    pin_suspend(actor=actor_of(request), pin_id=found.id)
    messages.success(request, "Suspended: nothing new is fetched, what is warm stays.")
    return redirect("pin", pin_id)


@require_POST
def resume(request: HttpRequest, pin_id: UUID) -> HttpResponse:
    found = _allowed(request, pin_id)
    pin_resume(actor=actor_of(request), pin_id=found.id)
    messages.success(request, "Resumed: missing copies are fetched again.")
    return redirect("pin", pin_id)


@require_POST
def priority(request: HttpRequest, pin_id: UUID) -> HttpResponse:
    found = _allowed(request, pin_id)
    form = PriorityForm(request.POST)
    if not form.is_valid():
        raise Invalid(
            "pin:user:invalid", "The priority must be between 0 and 1000.", next_step="Go back and correct it."
        )
    pin_update(actor=actor_of(request), pin_id=found.id, changes={"priority": form.cleaned_data["priority"]})
    messages.success(request, f"Priority is {form.cleaned_data['priority']} now.")
    return redirect("pin", pin_id)


def unpin(request: HttpRequest, pin_id: UUID) -> HttpResponse:
    """GET shows what would follow; POST removes the pin and shows the operation."""
    if request.method == "POST":

        def work() -> str:
            # Looked for in here: the second sending of the same form finds no pin, but its operation.
            operation = pin_remove(actor=actor_of(request), pin_id=_allowed(request, pin_id).id)
            return reverse("operation", args=[operation.id])

        return once(request, work)
    found = _allowed(request, pin_id)
    plans = unpin_preview(found)
    artifact = gate_artifact(found)
    going = [line for plan in plans for line in plan.evictions if artifact and line.digest == artifact.digest]
    return show(
        request,
        "pages/unpin.html",
        {
            "pin": found,
            "going": going,
            "status": pin_statuses([found])[found.id],
            "form_key": fresh_key(),
            "curl": curl(request, f"pins/{found.id}?dry_run=true", method="DELETE"),
        },
        title=f"Unpin {pin_name(found)}",
        section="pins",
        crumbs=[("Pins", reverse("pins")), (pin_name(found), reverse("pin", args=[found.id]))],
        live_page=False,
    )


def pin_state(found: Pin, status: PinStatus) -> str:
    """One word: Warm, Suspended, Degraded, Warming, Unknown or Empty."""
    warm = status.conditions[0]
    if warm.status == "True":
        return "Warm"
    if found.suspended:
        return "Suspended"
    if status.failed or any(
        condition.type == "Admitted" and condition.status == "False" for condition in status.conditions
    ):
        return "Degraded"
    return {"Unknown": "Unknown"}.get(warm.status, "Warming" if status.target else "Empty")


def _may_change(request: HttpRequest, found: Pin) -> bool:
    return all(may(request, Role.OPERATOR, pool.full_name) for pool in found.pools.all())


def _allowed(request: HttpRequest, pin_id: UUID) -> Pin:
    found = pin_get(pin_id=pin_id, targets=readable(request))
    for pool in found.pools.all():
        access.require(user_of(request), Role.OPERATOR, pool.full_name)
    return found


def _columns(statuses: object, targets: Targets) -> list[Column]:
    def status(row: Pin) -> PinStatus:
        return statuses[row.id]  # type: ignore[index, no-any-return]

    def coverage(row: Pin) -> SafeString:
        now = status(row)
        text = f"{now.ready} of {now.target}"
        return format_html(
            '<span class="with-meter">{}<small>{}</small></span>',
            cells.meter([(Tone.OK, now.ready), (Tone.BAD, now.failed)], now.target, text),
            text,
        )

    def state(row: Pin) -> SafeString:
        bad = next((c.message for c in status(row).conditions if c.status == "False" and c.type == "Admitted"), "")
        return format_html("{}{}", cells.pill(pin_state(row, status(row))), cells.reason(bad))

    return [
        Column(
            "version",
            "Model version",
            pin_name,
            lambda p: format_html(
                "{}{}", cells.link(pin_name(p), reverse("pin", args=[p.id])), cells.reason(_beside(p))
            ),
            "x",
            heading=True,
        ),
        Column("state", "State", lambda p: pin_state(p, status(p)), state, "x"),
        Column("ready", "Coverage", lambda p: status(p).ready, coverage, "x"),
        Column("target", "Wanted", lambda p: status(p).target, None, "x", numeric=True),
        Column(
            "eta_seconds",
            "Time left",
            lambda p: status(p).eta_seconds,
            lambda p: cells.duration(status(p).eta_seconds or None),
            "x",
            numeric=True,
        ),
        Column(
            "pools",
            "Pools",
            lambda p: list(pin_pools(p, targets)),
            lambda p: cells.tags(pin_pools(p, targets)),
        ),
        Column("priority", "Priority", lambda p: p.priority, None, "x", numeric=True),
        Column("created_at", "Since", lambda p: p.created_at, lambda p: cells.when(p.created_at), "x"),
    ]


def _beside(pin: Pin) -> str:
    """What a pin is about where that is not the weights alone."""
    image = image_named(pin)
    if image is None or pin.version is None:
        return ""
    return f"{'and' if wants_weights(pin) else 'only'} the image {image.reference}"
