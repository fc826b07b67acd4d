"""What people decide of a rollout: open its gate, keep what it replaced for longer or less, end that, go back."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import timezone

from caches.domain.endpoints.options import LONGEST_HOLD_SECONDS
from caches.domain.gating import waited_for
from caches.domain.rollouts import FINAL, RolloutState
from caches.forms import RolloutHoldForm
from caches.models import Rollout
from caches.selectors.endpoints import rollout_gate, rollout_get, rollout_nodes, rollout_warmth
from caches.selectors.rollout_sides import hold_words, kept_before
from caches.services.endpoints.documents import rollout_rollback
from caches.services.endpoints.going_back import rollback_preview
from caches.services.endpoints.rollout_holds import rollout_hold
from caches.services.endpoints.rollouts import rollout_release
from caches.views.base import curl, readable, show, user_of
from controlplane.accounts import access
from controlplane.accounts.actors import actor_of
from controlplane.accounts.models import Role
from controlplane.errors import HearthError
from controlplane.web.form_keys import fresh_key, once


def release(request: HttpRequest, rollout_id: UUID) -> HttpResponse:
    """Open a gate, or end a hold: GET says what follows, POST does it."""
    row = _allowed(request, rollout_id)
    if request.method == "POST":
        # What it was asked about; a gate that opened meanwhile must not become a hold that ends.
        asked = {"gate": False, "hold": True}.get(request.POST.get("ends", ""))
        row = rollout_release(actor=actor_of(request), rollout_id=row.pk, holding=asked)
        ended = f"The hold of rollout {row.number} was ended by {row.held_by}: what it replaced is kept no longer."
        opened = f"The gate of rollout {row.number} was opened: its pods start."
        messages.success(request, ended if row.state == RolloutState.HOLDING else opened)
        return redirect("endpoint", row.endpoint_id)
    nodes = rollout_nodes(row)
    context = {
        "holding": row.state == RolloutState.HOLDING,
        "gate": rollout_gate(row, nodes),
        "waited_for": waited_for(nodes),
        "over": row.state in (*FINAL, RolloutState.SWITCHING) or row.hold_was_ended,
    }
    title = "End the hold" if context["holding"] else "Open the gate"
    return _page(request, "pages/rollout_release.html", row, title, "release", context)


def hold(request: HttpRequest, rollout_id: UUID) -> HttpResponse:
    """Keep the version before for longer or less: GET asks until when, POST keeps it. Less is asked about again."""
    row = _allowed(request, rollout_id)
    form = RolloutHoldForm(request.POST or None, longest=LONGEST_HOLD_SECONDS)
    status, sooner, kept = 200, None, kept_before(row)
    if request.method == "POST":
        status = 400
        if form.is_valid():
            until = timezone.now() + form.cleaned_data["length"]
            if row.held_until is not None and until < row.held_until and request.POST.get("sooner") != "yes":
                status, sooner = 200, until
            else:
                try:
                    held = rollout_hold(actor=actor_of(request), rollout_id=row.pk, seconds=form.seconds)
                except HearthError as error:
                    if not error.errors:
                        raise
                    form.take(error.errors, error.detail)
                else:
                    over = f", although {row.held_by} had ended that" if row.hold_was_ended else ""
                    messages.success(request, f"{held.message.rstrip('.')}{over}.")
                    return redirect("endpoint", row.endpoint_id)
    context = {
        "form": form,
        "sooner": sooner,
        "holding": row.state == RolloutState.HOLDING and bool(kept),
        "hold_words": hold_words(row),
        "kept": kept,
    }
    return _page(request, "pages/rollout_hold.html", row, "Hold the version before", "hold", context, status=status)


def rollback(request: HttpRequest, rollout_id: UUID) -> HttpResponse:
    """Ask for what a rollout served: GET says whether that is still warm, POST asks."""
    row = _allowed(request, rollout_id)
    if request.method == "POST":
        return once(request, lambda: _rolled_back(request, row))
    context = {"warm": rollout_warmth(row), "form_key": fresh_key(), "preview": rollback_preview(rollout=row)}
    title = f"Go back to rollout {row.number}"
    return _page(request, "pages/rollout_rollback.html", row, title, "rollback", context)


def _rolled_back(request: HttpRequest, row: Rollout) -> str:
    return reverse("operation", args=[rollout_rollback(actor=actor_of(request), rollout_id=row.pk).pk])


def _allowed(request: HttpRequest, rollout_id: UUID) -> Rollout:
    row = rollout_get(rollout_id=rollout_id, targets=readable(request))
    access.require(user_of(request), Role.OPERATOR, row.endpoint.cluster.name)
    return row


def _page(
    request: HttpRequest,
    template: str,
    row: Rollout,
    title: str,
    verb: str,
    context: dict[str, Any],
    *,
    status: int = 200,
) -> HttpResponse:
    endpoint = row.endpoint
    crumbs = [("Endpoints", reverse("endpoints")), (endpoint.full_name, reverse("endpoint", args=[endpoint.pk]))]
    body = '{"seconds": 14400}' if verb == "hold" else ""
    line = curl(request, f"rollouts/{row.pk}/{verb}", method="POST", body=body)
    shared = {"rollout": row, "endpoint": endpoint, "curl": line}
    return show(
        request,
        template,
        {**shared, **context},
        title=title,
        section="endpoints",
        crumbs=crumbs,
        live_page=False,
        status=status,
    )
