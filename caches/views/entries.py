"""One entry's page and what can be done to it: evict with a preview, verify, try again."""

from __future__ import annotations

from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.safestring import SafeString
from django.views.decorators.http import require_POST

from caches.models import CacheEntry
from caches.selectors.entries import artifact_name, entries_list
from caches.services.entries import entry_evict, entry_evict_preview, entry_retry, entry_scrub
from caches.views.base import curl, fragment, may, node_url, pool_of, readable, show, user_of
from controlplane.accounts import access
from controlplane.accounts.actors import actor_of
from controlplane.accounts.models import Role
from controlplane.clusters.documents import EntryState
from controlplane.errors import HearthError, Invalid, Missing
from controlplane.web import cells
from controlplane.web.form_keys import fresh_key, once
from controlplane.web.tables import Column, Table

_EVICTABLE = frozenset(EntryState) - {EntryState.ABSENT, EntryState.LOST, EntryState.EVICTING}


def entry_actions(request: HttpRequest, entry: CacheEntry) -> SafeString | str:
    """Buttons for the table's last cell; nothing for those who may not."""
    if entry.node.lost_at is not None or not may(request, Role.OPERATOR, pool_of(entry.node)):
        return ""
    return fragment(
        request,
        "partials/entry_actions.html",
        entry=entry,
        can_evict=entry.state in _EVICTABLE and entry.evict_requested_at is None,
        can_scrub=entry.state == EntryState.READY,
        can_retry=entry.state == EntryState.FAILED,
    )


def detail(request: HttpRequest, entry_id: UUID, suffix: str = "") -> HttpResponse:
    """The entry with its history."""
    entry = _readable(request, entry_id)
    history = Table(
        request,
        entry.changes.all(),
        [
            Column("at", "When", lambda c: c.at, lambda c: cells.when(c.at), "at"),
            Column(
                "old_state", "From", lambda c: c.old_state, lambda c: cells.pill(c.old_state) if c.old_state else ""
            ),
            Column("new_state", "To", lambda c: c.new_state, lambda c: cells.pill(c.new_state)),
            Column("reason", "Why", lambda c: c.reason, lambda c: f"{c.reason} {c.message}".strip()),
        ],
        name="history",
        caption="History",
    )
    return show(
        request,
        "pages/entry.html",
        {
            "entry": entry,
            "name": artifact_name(entry),
            "actions": entry_actions(request, entry),
            "curl": curl(request, f"cache-entries/{entry.id}"),
        },
        title=f"{artifact_name(entry)} on {entry.node.name}",
        section="fleet",
        crumbs=[("Fleet", reverse("fleet")), (entry.node.name, node_url(entry.node))],
        tables=(history,),
        suffix=suffix,
    )


def evict(request: HttpRequest, entry_id: UUID) -> HttpResponse:
    """GET shows what would happen; POST with the typed name does it and shows the operation."""
    entry = _allowed(request, entry_id)
    name = artifact_name(entry)
    plan, refused = None, None
    try:
        if request.method == "POST":
            return _evicted(request, entry_id, name)
        plan = entry_evict_preview(entry_id=entry_id)
    except HearthError as error:
        refused = error
    lines = plan.evictions if plan else ()
    mine = [one for one in lines if one.node_uid == entry.node.uid and one.digest == entry.artifact.digest]
    return show(
        request,
        "pages/evict.html",
        {
            "entry": entry,
            "name": name,
            "eviction": mine[0] if mine else None,
            "basis": plan.estimate_basis if plan else 0,
            "refused": refused,
            "form_key": fresh_key(),
            "curl": curl(request, f"cache-entries/{entry.id}/evict?dry_run=true", method="POST"),
        },
        title=f"Evict {name} from {entry.node.name}",
        section="fleet",
        crumbs=[("Fleet", reverse("fleet")), (entry.node.name, node_url(entry.node))],
        live_page=False,
        status=refused.status if refused and request.method == "POST" else 200,
    )


def _evicted(request: HttpRequest, entry_id: UUID, name: str) -> HttpResponse:
    if request.POST.get("confirm", "").strip() != name:
        raise Invalid(
            "entry:user:not-confirmed",
            "The typed name is not the model version that would be evicted.",
            next_step=f"Type {name} exactly.",
        )

    def work() -> str:
        operation = entry_evict(actor=actor_of(request), entry_id=entry_id)
        return reverse("operation", args=[operation.id])

    return once(request, work)


@require_POST
def scrub(request: HttpRequest, entry_id: UUID) -> HttpResponse:
    entry = _allowed(request, entry_id)
    operation = entry_scrub(actor=actor_of(request), entry_id=entry.id)
    return redirect("operation", operation.id)


@require_POST
def retry(request: HttpRequest, entry_id: UUID) -> HttpResponse:
    entry = _allowed(request, entry_id)
    entry_retry(actor=actor_of(request), entry_id=entry.id)
    messages.success(request, f"{artifact_name(entry)} is tried again on {entry.node.name} now.")
    return redirect(node_url(entry.node))


def _readable(request: HttpRequest, entry_id: UUID) -> CacheEntry:
    entry = entries_list(targets=readable(request)).filter(pk=entry_id).first()
    if entry is None:
        raise Missing("entry:user:not-found", "There is no such cache entry.", next_step="Look at the node's page.")
    return entry


def _allowed(request: HttpRequest, entry_id: UUID) -> CacheEntry:
    entry = _readable(request, entry_id)
    access.require(user_of(request), Role.OPERATOR, pool_of(entry.node))
    return entry
