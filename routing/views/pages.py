"""How an endpoint's requests are spread: the policy, what it does, and a form to change it."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlencode
from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import timezone

from controlplane.accounts import access
from controlplane.accounts.actors import actor_of
from controlplane.accounts.models import Role
from controlplane.errors import Clash, FieldError, HearthError, Invalid
from controlplane.serving.models import Variant
from controlplane.serving.withholding import with_places
from controlplane.web.form_keys import fresh_key, once
from controlplane.web.live import with_charts
from controlplane.web.people import curl, may, readable, user_of
from controlplane.web.tables import Table, wanted_format
from routing.charts import ttft_chart
from routing.domain.advising import Advice
from routing.domain.engine_figures import Gauge
from routing.domain.figures import QUANTILES
from routing.domain.policies import policy_document
from routing.forms import PolicyForm
from routing.selectors.policies import is_served_by_addresses, policies_list, policy_in_force, served_by
from routing.selectors.routers import instances_list, published_version, routers_list, with_in_flight, with_state
from routing.selectors.spreads import Spread
from routing.selectors.telemetry import SPANS, Telemetry, telemetry
from routing.services.advising import variant_advise
from routing.services.policies import PolicyPreview, notes_on, policy_preview, policy_set
from routing.views import columns
from routing.views.base import show
from routing.views.finding import crumbs_of, variant_of

DEFAULT_MINUTES = 15


@with_charts
def routing(request: HttpRequest, endpoint_id: UUID, suffix: str = "") -> HttpResponse:
    """Policy, telemetry, instances, routers and versions of one endpoint's variant."""
    variant = variant_of(request, endpoint_id)
    policy, newest = policy_in_force(variant)
    minutes, other_time = _minutes(request, suffix)
    now = timezone.now()
    shown = telemetry(variant=variant, minutes=minutes, now=now)
    context = {
        "endpoint": variant.endpoint,
        "variant": variant,
        "policy": policy,
        "newest": newest,
        "unusual": columns.unusual(policy_document(policy)),
        "notes": newest.notes if newest is not None else notes_on(policy),
        "published": published_version(),
        "shown": shown,
        "facts": _facts(shown),
        "advice": _advice(variant, variant_advise(variant=variant, minutes=minutes, now=now, shown=shown)),
        "outcomes": [(outcome, one.count, _times(one)) for outcome, one in shown.ttft_by_outcome.items()],
        "band": _band(shown),
        "spans": [(one, f"{one} minutes" if one < 120 else f"{one // 60} hours") for one in SPANS],
        "minutes": minutes,
        "other_time": other_time,
        "waits": not is_served_by_addresses(variant),
        "chart": ttft_chart(shown) if shown.points else None,
        "may_change": may(request, Role.OPERATOR, variant.endpoint.cluster.name),
        "curl": curl(request, f"endpoints/{endpoint_id}/variants/{variant.name}/routing-policy"),
    }
    return show(
        request, "pages/routing.html", context, title=f"Routing of {variant.endpoint.full_name}",
        crumbs=crumbs_of(variant)[:2], tables=_tables(request, variant, shown), suffix=suffix,
    )  # fmt: skip


def _tables(request: HttpRequest, variant: Variant, shown: Telemetry) -> tuple[Table, ...]:
    rows = instances_list(targets=readable(request)).filter(endpoint=served_by(variant))
    instances = with_places(list(rows), readable(request))
    return (
        Table(
            request, shown.shares, columns.share_columns(), name="shares", caption="Shares of the requests",
            key=lambda row: row.uid,
        ),
        Table(
            request, shown.engines, columns.engine_columns(), name="engines", caption="What engines say of themselves",
            key=lambda row: row.uid, prefix="e-",
        ),
        Table(
            request, with_in_flight(instances), columns.instance_columns(), name="instances",
            caption="Instances", prefix="i-",
        ),
        Table(
            request, with_state(list(routers_list())), columns.router_columns(), name="routers", caption="Routers",
            prefix="r-",
        ),
        Table(
            request, policies_list(targets=readable(request)).filter(variant=variant), columns.policy_columns(),
            name="policies", caption="Versions of the policy", default_sort="-version", prefix="p-",
        ),
        Table(
            request, shown.policies, columns.under_policy_columns(), name="under", caption="By version of the policy",
            key=lambda row: str(row.version), prefix="u-",
        ),
        Table(
            request, list(reversed(shown.points)), columns.window_columns(), name="windows", caption="By time",
            key=lambda row: row.at.isoformat(), prefix="w-",
        ),
        Table(
            request, shown.failed, columns.failed_columns(), name="failed", caption="Refused and failed, by kind",
            key=lambda row: row.kind, prefix="f-",
        ),
    )  # fmt: skip


def _band(shown: Telemetry) -> str:
    """Nothing where nothing is said of any share."""
    low, high = shown.band
    told = any(one.fair is not None for one in shown.shares)
    return f"{100 * low:.1f} to {100 * high:.1f} %" if told else ""


def _advice(variant: Variant, found: Sequence[Advice]) -> list[tuple[Advice, str]]:
    """Each with the address of a replay that is filled in, or ""."""
    place = reverse("routing-replay", args=[variant.endpoint_id])
    query = {} if variant.name == "default" else {"variant": variant.name}
    return [(one, f"{place}?{urlencode({**query, **one.replay, 'run': '1'})}" if one.replay else "") for one in found]


def _facts(shown: Telemetry) -> list[tuple[str, str, str]]:
    """(name, value, what it is), always together: one alone misleads."""

    percent = columns.percent
    figures = shown.figures
    told = f"by {figures.told} of {shown.requests} answers" if figures.told else "no answer said what came from a cache"
    return [
        ("Requests", str(shown.requests), "that were sent to an instance, or were to be"),
        ("Refused or failed", str(shown.lost), "for no reason of their own; by kind below"),
        ("Prefix hit rate", percent(shown.hit_rate), told),
        ("Time to first token", _times(shown.ttft), f"{shown.ttft.count} answers"),
        (
            "Added by routing",
            _times(shown.overhead),
            "until a request was sent on, without waiting in the queue and the time to connect",
        ),
        ("Spilled", percent(shown.spill), "of the requests that had a key: to a sibling or the next in order"),
        ("Saturated", percent(shown.saturated), "all instances were at the threshold"),
        (
            "Most in flight",
            str(figures.most_in_flight) if shown.requests else "unknown",
            "on one instance, as far as one router knew",
        ),
        ("Queued", str(figures.queued), _times(shown.waited) if shown.waited.count else ""),
        *_engine_facts(shown),
    ]


def _engine_facts(shown: Telemetry) -> list[tuple[str, str, str]]:
    """Over all engines, by their own words."""
    waiting, usage, running = Gauge(), Gauge(), Gauge()
    for one in shown.engines:
        waiting.merge(one.waiting)
        usage.merge(one.usage)
        running.merge(one.running)
    busy = [one.utilisation for one in shown.engines if one.utilisation is not None]

    def shortened(value: float | None) -> str:
        return "unknown" if value is None else f"{value:.1f}"

    least = f"the least busy {columns.percent(min(busy))}" if busy else "no engine said whether it was busy"
    return [
        ("Queue at an engine", shortened(waiting.mean), f"most {shortened(waiting.greatest)}, of one"),
        ("Cache occupancy", columns.percent(usage.mean), f"most {columns.percent(usage.greatest)}, of one"),
        ("Engines busy", columns.percent(sum(busy) / len(busy) if busy else None), least),
    ]


def _times(spread: Spread) -> str:
    told = [name for name in QUANTILES if getattr(spread, name) is not None]
    words = [f"{name} {columns.milliseconds(getattr(spread, name))}" for name in told]
    if len(told) < len(QUANTILES):
        words.append(f"most {columns.milliseconds(spread.most)}")
    return ", ".join(words) if spread.count else "unknown"


def change(request: HttpRequest, endpoint_id: UUID) -> HttpResponse:
    """The form: tried first, then set."""
    variant = variant_of(request, endpoint_id)
    access.require(user_of(request), Role.OPERATOR, variant.endpoint.cluster.name)
    policy, newest = policy_in_force(variant)
    form = PolicyForm(request.POST if request.method == "POST" else None, initial=PolicyForm.initial_of(policy))
    status, preview = 200, None
    if request.method == "POST":
        status = 400
        if form.is_valid():
            try:
                if request.POST.get("step") == "set":
                    return once(request, lambda: _set(request, variant, form))
                preview, status = policy_preview(variant=variant, document=form.document()), 200
            except HearthError as error:
                status = error.status
                form.take(error.errors, error.detail)
    return _form(request, variant, form, preview, newest.version if newest is not None else 0, status)


def _form(
    request: HttpRequest, variant: Variant, form: PolicyForm, preview: PolicyPreview | None, version: int, status: int
) -> HttpResponse:
    context = {
        "endpoint": variant.endpoint,
        "form": form,
        "form_key": request.POST.get("form_key") or fresh_key(),
        "based_on": request.POST.get("based_on") or version,
        "preview": preview,
    }
    return show(
        request, "pages/routing_change.html", context, title="Change the routing policy", crumbs=crumbs_of(variant),
        live_page=False, status=status,
    )  # fmt: skip


def _set(request: HttpRequest, variant: Variant, form: PolicyForm) -> str:
    _, newest = policy_in_force(variant)
    based_on = request.POST.get("based_on", "")
    if based_on and based_on != str(newest.version if newest is not None else 0):
        raise Clash(
            "routing:policy:changed",
            "Somebody else set a policy while you were looking at this form.",
            next_step="Open the form again and look at what is in force now.",
        )
    made = policy_set(
        actor=actor_of(request),
        variant_id=variant.pk,
        document=form.document(),
        if_updated_at=newest.updated_at if newest is not None else None,
    )
    messages.success(request, f"{made.strategy} is in force as version {made.version}; routers follow in a moment.")
    return reverse("routing", args=[variant.endpoint_id])


def _minutes(request: HttpRequest, suffix: str) -> tuple[int, str]:
    """The time that is shown, and what to say where the address asks for another one. An export cannot say it, so it is
    refused instead."""
    asked = request.GET.get("minutes", "")
    if asked in ("", *map(str, SPANS)):
        return int(asked or DEFAULT_MINUTES), ""
    known = ", ".join(map(str, SPANS))
    if wanted_format(request, suffix):
        wrong = FieldError("minutes", "page:user:filter", f"Must be one of {known}.")
        raise Invalid(wrong.code, f"minutes: {wrong.detail}", next_step="Correct the address.", errors=[wrong])
    wanted = int(asked) if asked.isascii() and asked.isdigit() and len(asked) < 9 else None
    minutes = next(
        (one for one in SPANS if wanted is not None and one >= wanted), max(SPANS) if wanted else DEFAULT_MINUTES
    )
    return minutes, f"The address asks for minutes={asked:.20}; there are {known}, and shown are {minutes}."
