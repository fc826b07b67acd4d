"""Operations: what is being done, how far it is, and stopping it."""

from __future__ import annotations

from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.html import format_html
from django.views.decorators.http import require_POST

from caches.filters import OperationFilter
from caches.selectors.audit import audit_list
from caches.selectors.operations import operation_get, operation_pools, operation_targets, operations_list
from caches.selectors.subjects import subjects_there
from caches.views.base import curl, filtered, readable, show, user_of
from caches.views.columns import operation_columns, operation_progress, operation_title
from caches.views.trail import audit_table, subject_url
from controlplane.accounts import access
from controlplane.accounts.actors import actor_of
from controlplane.accounts.models import Role
from controlplane.operations.models import ACTIVE_STATES, Operation, OperationKind, OperationState
from controlplane.operations.services import operation_cancel, operation_retry
from controlplane.web import cells
from controlplane.web.form_keys import fresh_key, once
from controlplane.web.tables import Column, Table

_CANCELABLE = frozenset({OperationState.PENDING, OperationState.RUNNING})
_RETRYABLE = frozenset({OperationState.FAILED, OperationState.CANCELED})


def operations(request: HttpRequest, suffix: str = "") -> HttpResponse:
    """Newest first; filtered by kind, state and person."""
    found = OperationFilter(request.GET, queryset=operations_list(targets=readable(request)))
    table = Table(
        request,
        filtered(request, found, suffix),
        operation_columns(),
        name="operations",
        caption="Operations",
        url=lambda row: reverse("operation", args=[row.id]),
        default_sort="-created_at",
    )
    context = {"kinds": OperationKind.values, "states": OperationState.values, "problems": found.errors}
    return show(
        request,
        "pages/operations.html",
        context,
        title="Operations",
        section="operations",
        tables=(table,),
        suffix=suffix,
    )


def operation(request: HttpRequest, operation_id: UUID, suffix: str = "") -> HttpResponse:
    """One operation with its targets and what the audit says of it."""
    found = operation_get(operation_id=operation_id, targets=readable(request))
    targets = Table(
        request,
        operation_targets(targets=readable(request)).filter(operation=found),
        [
            Column("name", "Target", lambda t: t.name, _target_link, "name", heading=True),
            Column(
                "state",
                "State",
                lambda t: t.state,
                lambda t: format_html("{}{}", cells.pill(t.state), cells.reason(t.detail)),
                "state",
            ),
            Column(
                "bytes_done",
                "Progress",
                lambda t: t.bytes_done,
                lambda t: cells.progress(t.bytes_done, t.bytes_total),
                "bytes_done",
            ),
            Column(
                "bytes_total",
                "Size",
                lambda t: t.bytes_total,
                lambda t: cells.size(t.bytes_total or None),
                "bytes_total",
                numeric=True,
            ),
        ],
        name="targets",
        caption="Targets",
        default_sort="name",
    )
    events = audit_table(
        request,
        audit_list(targets=readable(request)).filter(operation_id=found.id),
        suffix=suffix,
        name="events",
        caption="What happened",
        prefix="e",
    )
    allowed = _may_steer(request, found)
    return show(
        request,
        "pages/operation.html",
        {
            "operation": found,
            "progress": operation_progress(found),
            "subject_url": _subject_url(found),
            "states": _counts(found),
            "active": found.state in ACTIVE_STATES,
            "can_cancel": allowed and found.state in _CANCELABLE,
            "can_retry": allowed and found.state in _RETRYABLE,
            "form_key": fresh_key(),
            "retries": found.retries.order_by("id"),
            "curl": curl(request, f"operations/{found.id}?wait=300"),
        },
        title=operation_title(found),
        section="operations",
        crumbs=[("Operations", reverse("operations"))],
        tables=(targets, events),
        suffix=suffix,
    )


@require_POST
def cancel(request: HttpRequest, operation_id: UUID) -> HttpResponse:
    """Asks it to stop; it is Canceled when what runs has acknowledged."""
    found = _allowed(request, operation_id)
    operation_cancel(actor=actor_of(request), operation_id=found.id)
    messages.info(request, "Asked to stop. It is cancelled once what is running has acknowledged.")
    return redirect("operation", operation_id)


@require_POST
def retry(request: HttpRequest, operation_id: UUID) -> HttpResponse:
    found = _allowed(request, operation_id)
    return once(
        request,
        lambda: reverse("operation", args=[operation_retry(actor=actor_of(request), operation_id=found.id).id]),
    )


def _counts(found: Operation) -> list[tuple[str, int]]:
    states = [target.state for target in found.targets.all()]
    return [(state, states.count(state)) for state in sorted(set(states))]


def _target_link(row: object) -> object:
    """Targets on nodes are keyed by the node's id."""
    key: str = row.key  # type: ignore[attr-defined]
    try:
        url = reverse("node", args=[UUID(key)])
    except ValueError:
        url = ""
    return cells.link(row.name, url)  # type: ignore[attr-defined]


def _subject_url(found: Operation) -> str:
    if found.kind == OperationKind.LAUNCH_TRIAL:
        return reverse("trial", args=[found.id])
    subject = (found.subject_type, found.subject_id)
    return subject_url(subject, found.subject_name, subjects_there([subject]))


def _may_steer(request: HttpRequest, found: Operation) -> bool:
    user, pools = user_of(request), operation_pools(found)
    role = _role_for(found)
    if not pools:
        return access.can_anywhere(user, role)
    return all(access.can(user, role, pool) for pool in pools)


def _allowed(request: HttpRequest, operation_id: UUID) -> Operation:
    found = operation_get(operation_id=operation_id, targets=readable(request))
    pools, role = operation_pools(found), _role_for(found)
    if not pools:
        access.require_anywhere(user_of(request), role)
    for pool in pools:
        access.require(user_of(request), role, pool)
    return found


def _role_for(found: Operation) -> Role:
    """Who may start such work may stop it and start it again."""
    admins = (OperationKind.POOL_DELETE, OperationKind.LAUNCH_TRIAL)
    return Role.ADMIN if found.kind in admins else Role.OPERATOR
