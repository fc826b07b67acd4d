"""Controlled trials of launches: all of them, one with what it found, and the form that starts one."""

from __future__ import annotations

import json
import time
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.http import urlencode
from django.views.decorators.http import require_POST

from caches.domain.launches.trials import MOST_RUNS
from caches.selectors.launches.trials import (
    clusters_to_try,
    launches_kept,
    trial_beside,
    trial_cluster,
    trial_found,
    trial_get,
    trial_progress,
    trials_list,
)
from caches.selectors.trials import trial_endpoint
from caches.services.launches.trials import trial_start
from caches.trial_forms import TrialForm
from caches.views.base import curl, may, readable, show, user_of
from caches.views.trial_tables import kinds_table, trial_launches_table, trials_table, version_of
from controlplane.accounts import access
from controlplane.accounts.actors import actor_of
from controlplane.accounts.models import Role
from controlplane.clusters.models import Cluster
from controlplane.operations.models import FINAL_STATES, Operation, OperationState
from controlplane.operations.services import operation_cancel
from controlplane.web import cells
from controlplane.web.form_keys import FIELD, fresh_key, sent
from controlplane.web.tones import Tone

_CANCELABLE = (OperationState.PENDING, OperationState.RUNNING)
_SHOWN = ("cluster", "runs", "target_seconds", "seed")


def trials(request: HttpRequest, suffix: str = "") -> HttpResponse:
    """Every trial that this person may see, newest first."""
    table = trials_table(request, trials_list(targets=readable(request)))
    context = {"may_start": bool(_clusters(request)), "curl": curl(request, "operations?kind=LaunchTrial")}
    return show(
        request, "pages/trials.html", context, title="Trials", section="launches", crumbs=_crumbs()[:1],
        tables=(table,), suffix=suffix,
    )  # fmt: skip


def trial(request: HttpRequest, operation_id: UUID, suffix: str = "") -> HttpResponse:
    """How far it is while it goes on, and what its launches took, also of one that was cancelled."""
    found = trial_get(operation_id=operation_id, targets=readable(request))
    result: dict[str, Any] = found.result or trial_found(found.params)
    conditions = result.get("conditions") or found.params.get("_conditions", {})
    progress = trial_progress(found)
    allowed, over = may(request, Role.ADMIN, trial_cluster(found)), found.state in FINAL_STATES
    # While it goes on nobody knows whether the latest will be measured.
    result = {"not_measured": trial_beside(found) if over else [], **result}
    kept = launches_kept(result)
    context = {
        "trial": found,
        "version": version_of(found),
        "cluster": trial_cluster(found),
        "endpoint": trial_endpoint(found),
        "progress": progress,
        "bar": cells.meter(
            [(Tone.BUSY, progress.done)], progress.total, f"{progress.done} of {progress.total} launches"
        ),
        "over": over,
        "measured": len(result["launches"]),
        "beside": [{**one, "kept": one["id"] in kept} for one in result["not_measured"]],
        "conditions": conditions,
        "caveats": result.get("caveats", ()),
        "can_cancel": allowed and found.state in _CANCELABLE,
        "again": _again(found) if allowed and over else "",
        "curl": curl(request, f"operations/{found.id}?wait=300"),
    }
    target = float(found.params["target_seconds"])
    tables = (
        kinds_table(request, result, target),
        trial_launches_table(request, result, kept),
    )
    return show(
        request, "pages/trial.html", context, title=f"Trial of {version_of(found)}", section="launches",
        crumbs=_crumbs(), tables=tables, suffix=suffix,
    )  # fmt: skip


def new(request: HttpRequest) -> HttpResponse:
    """The form, filled in by its address; a refusal says at the field what is wrong."""
    clusters = _clusters(request)
    if not clusters:
        access.require(user_of(request), Role.ADMIN, next((one.name for one in clusters_to_try()), ""))
    if request.method == "POST":
        _refuse_elsewhere(request)
    form = TrialForm(request.POST or None, clusters=clusters, initial=_initial(request))
    done = sent(request, form, lambda: _start(request, form))
    if done.answer is not None:
        return done.answer
    context = {
        "form": form,
        "form_key": request.POST.get(FIELD) or fresh_key(),
        "refused": done.refused,
        "clusters": clusters,
        "most": 3 * MOST_RUNS,
        "curl": curl(
            request, "launches/trials", method="POST", body=json.dumps({"model": "MODEL", "version": "VERSION"})
        ),
    }
    return show(
        request, "pages/trial_new.html", context, title="Start a trial", section="launches", crumbs=_crumbs(),
        live_page=False, status=done.status,
    )  # fmt: skip


@require_POST
def cancel(request: HttpRequest, operation_id: UUID) -> HttpResponse:
    """Asks it to stop; what it made is taken away before it is cancelled."""
    found = trial_get(operation_id=operation_id, targets=readable(request))
    access.require(user_of(request), Role.ADMIN, trial_cluster(found))
    operation_cancel(actor=actor_of(request), operation_id=found.id)
    messages.info(request, "Asked to stop. It is cancelled once everything that it made is gone.")
    return redirect("trial", operation_id)


def _start(request: HttpRequest, form: TrialForm) -> str:
    given = form.cleaned_data
    seed = given["seed"]
    operation = trial_start(
        actor=actor_of(request),
        cluster=given["cluster"],
        version=given["version"],
        runs=given["runs"],
        seed=seed if seed is not None else time.time_ns() % 1_000_000,
        target_seconds=given["target_seconds"],
    )
    return reverse("trial", args=[operation.id])


def _clusters(request: HttpRequest) -> list[Cluster]:
    """Where this person may start one."""
    return [one for one in clusters_to_try() if may(request, Role.ADMIN, one.name)]


def _refuse_elsewhere(request: HttpRequest) -> None:
    """Raise Denied for a fleet that is there and is not offered to this person."""
    asked = request.POST.get("cluster", "")
    if any(one.name == asked for one in clusters_to_try()):
        access.require(user_of(request), Role.ADMIN, asked)


def _initial(request: HttpRequest) -> dict[str, Any]:
    return {name: request.GET[name] for name in ("version", *_SHOWN) if name in request.GET}


def _again(found: Operation) -> str:
    """The form with what this one was run with: the same order again."""
    params = found.params
    told = {"version": params["version_id"], "cluster": trial_cluster(found)}
    return "?" + urlencode(told | {name: params[name] for name in ("runs", "target_seconds", "seed")})


def _crumbs() -> list[tuple[str, str]]:
    return [("Cold starts", reverse("launches")), ("Trials", reverse("trials"))]
