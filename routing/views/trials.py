"""Pages to look before anything is changed: one decision explained, recorded requests against another policy."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse

from controlplane.accounts import access
from controlplane.accounts.actors import actor_of
from controlplane.accounts.models import Role
from controlplane.errors import HearthError, Missing, Transient
from controlplane.operations.models import FINAL_STATES
from controlplane.serving.models import Variant
from controlplane.web.form_keys import fresh_key, once
from controlplane.web.people import curl, user_of
from controlplane.web.tables import Table
from routing.domain.policies import RoutingPolicy
from routing.selectors.policies import policy_in_force
from routing.services.explaining import Explanation, Happened, decision_explain, decisions_list, recorded_explain
from routing.services.replays import AT_ONCE_SECONDS, replay_get, replay_prepare, replay_run, replay_start
from routing.trial_forms import ExplainForm, ReplayForm
from routing.views import trial_columns as columns
from routing.views.base import show
from routing.views.finding import crumbs_of, variant_of


def explain(request: HttpRequest, endpoint_id: UUID, suffix: str = "") -> HttpResponse:
    """A request that is pasted (sent once, kept nowhere), or one that was recorded."""
    variant = variant_of(request, endpoint_id)
    access.require(user_of(request), Role.OPERATOR, variant.endpoint.cluster.name)
    form = ExplainForm(request.POST if request.method == "POST" else None)
    status, found, refused = 200, None, None
    try:
        found = _explained(request, variant, form)
    except HearthError as error:
        status, refused = error.status, error
    if request.method == "POST" and not form.is_valid():
        status = 400
    policy, _ = policy_in_force(variant)
    decisions, passed = _decisions(variant, policy)
    context = {
        "endpoint": variant.endpoint,
        "variant": variant,
        "form": form,
        "found": found,
        "refused": refused,
        "recording": policy.extensions.record_keys,
        "passed": passed,
        "curl": curl(
            request, f"endpoints/{endpoint_id}/variants/{variant.name}/explain", method="POST",
            body='{"path": "/v1/chat/completions", "body": "…"}',
        ),
    }  # fmt: skip
    return show(
        request, "pages/routing_explain.html", context, title="Explain a decision", crumbs=crumbs_of(variant),
        tables=_explain_tables(request, found, decisions), suffix=suffix, live_page=False, status=status,
    )  # fmt: skip


def _explained(request: HttpRequest, variant: Variant, form: ExplainForm) -> Explanation | None:
    if request.method == "POST":
        if not form.is_valid():
            return None
        given = form.cleaned_data
        return decision_explain(variant=variant, path=given["path"], body=given["body"], tenant=given["tenant"])
    if decision := request.GET.get("decision", ""):
        return recorded_explain(variant=variant, decision_id=decision)
    return None


def _decisions(variant: Variant, policy: RoutingPolicy) -> tuple[list[Happened], int]:
    if not policy.extensions.record_keys:
        return [], 0
    try:
        found, passed = decisions_list(variant=variant)
    except Transient:
        return [], 0  # the page is more than this
    return list(found), passed


def _explain_tables(request: HttpRequest, found: Explanation | None, decisions: list[Happened]) -> tuple[Table, ...]:
    return (
        Table(
            request, decisions, columns.decision_columns(request), name="decisions", caption="Recorded decisions",
            key=lambda row: row.id, prefix="d-",
        ),
        Table(
            request, list(found.candidates) if found else [], columns.candidate_columns(), name="candidates",
            caption="Candidates, in the order in which they would be tried", key=lambda row: row.uid, prefix="c-",
        ),
        Table(
            request, list(found.boundaries) if found else [], columns.boundary_columns(), name="boundaries",
            caption="Beginnings of the request", key=lambda row: str(row.depth), prefix="b-",
        ),
    )  # fmt: skip


def replay(request: HttpRequest, endpoint_id: UUID, suffix: str = "") -> HttpResponse:
    """The form, filled in by its address; with ``run`` what comes of it, with ``operation`` what came of a long one."""
    variant = variant_of(request, endpoint_id)
    access.require(user_of(request), Role.OPERATOR, variant.endpoint.cluster.name)
    policy, _ = policy_in_force(variant)
    given = request.POST if request.method == "POST" else request.GET
    filled = {
        **ReplayForm.initial_of(policy),
        **{name: given[name] for name in ReplayForm.base_fields if name in given},
    }
    form, context, status = ReplayForm(filled), dict[str, Any](), 200
    try:
        if request.method == "POST":
            return _start(request, variant, form, policy)
        context = _outcome(request, variant, form, policy)
    except HearthError as error:
        status, context = error.status, {"refused": error}
    if "run" in request.GET and not form.is_valid():
        status = 400
    result = context.get("result")
    context |= {
        "endpoint": variant.endpoint,
        "variant": variant,
        "form": form,
        "form_key": fresh_key(),
        "policy": policy,
        "recording": policy.extensions.record_keys,
        "curl": curl(
            request, f"endpoints/{endpoint_id}/variants/{variant.name}/replays", method="POST", body='{"minutes": 15}'
        ),
    }
    return show(
        request, "pages/routing_replay.html", context, title="Replay recorded requests", crumbs=crumbs_of(variant),
        tables=_replay_tables(request, result), suffix=suffix, live_page=bool(context.get("going")), status=status,
    )  # fmt: skip


def _outcome(request: HttpRequest, variant: Variant, form: ReplayForm, policy: RoutingPolicy) -> dict[str, Any]:
    if named := request.GET.get("operation", ""):
        operation = replay_get(variant=variant, operation_id=_uuid(named))
        return {
            "operation": operation,
            "going": operation.state not in FINAL_STATES,
            "result": operation.result,
        }
    if "run" not in request.GET or not form.is_valid():
        return {}
    prepared = replay_prepare(variant=variant, asked=form.asked(policy))
    if prepared.seconds > AT_ONCE_SECONDS:
        return {"large": prepared}
    return {"result": replay_run(variant=variant, prepared=prepared)}


def _start(request: HttpRequest, variant: Variant, form: ReplayForm, policy: RoutingPolicy) -> HttpResponseRedirect:
    def start() -> str:
        if not form.is_valid():
            raise Missing("routing:replay:form", "What was sent is no form of this page.", next_step="Open it again.")
        asked = form.asked(policy)
        replay_prepare(variant=variant, asked=asked)  # refused now rather than later
        operation = replay_start(actor=actor_of(request), variant=variant, asked=asked)
        kept = {name: request.POST[name] for name in form.fields if request.POST.get(name)}
        kept |= {"variant": variant.name} if variant.name != "default" else {}
        place = reverse("routing-replay", args=[variant.endpoint_id])
        return f"{place}?{urlencode({**kept, 'operation': operation.pk})}"

    return once(request, start)


def _replay_tables(request: HttpRequest, result: dict[str, Any] | None) -> tuple[Table, ...]:
    return (
        Table(
            request, columns.compared(result) if result else [], columns.compared_columns(), name="replay",
            caption="What happened, and what would have", key=lambda row: row.name,
        ),
        Table(
            request, columns.compared_shares(result) if result else [], columns.compared_share_columns(),
            name="shares", caption="Share of each instance", key=lambda row: row.uid, prefix="s-",
        ),
    )  # fmt: skip


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise Missing("routing:replay:not-found", "There is no such replay.", next_step="Start one.") from None
