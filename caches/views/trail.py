"""The audit trail as a table, with links to what is still there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from caches.selectors.subjects import Subject, subjects_there
from controlplane.audit.models import AuditEvent
from controlplane.web import cells
from controlplane.web.tables import Column, Table, wanted_format

Rows = QuerySet[AuditEvent] | Sequence[AuditEvent]


def subject_url(subject: Subject, name: str, there: Set[Subject]) -> str:
    """The page of what an event or operation is about; "" when it has none (any more)."""
    kind, key = subject
    if kind == "Token":
        return reverse("tokens")
    if subject not in there:
        return ""
    try:
        match kind:
            case "pin" | "entry" | "node" | "image":
                return reverse(kind, args=[key])
            case "version":
                model, _, version = name.partition(" ")
                return reverse("version", args=[model, version])
            case "pool" | "NodePool":
                return reverse("pool", args=[name])
            case "connection":
                return reverse("connection", args=[name])
    except NoReverseMatch:  # a name that is no address: it is shown without a link
        return ""
    return ""


def event_url(event: AuditEvent) -> str:
    """subject_url() of a single event."""
    subject = (event.object_type, event.object_id)
    return subject_url(subject, event.object_name, subjects_there([subject]))


def audit_table(request: HttpRequest, rows: Rows, *, suffix: str = "", wide: bool = False, **how: Any) -> Table:
    """A table of events, with every field in exports if ``wide``. What a page's events are about is looked for once."""
    there: set[Subject] = set()
    exported = wanted_format(request, suffix)
    table = Table(request, rows, [*_columns(there), *(_export_columns() if exported and wide else ())], **how)
    if not exported:
        there |= subjects_there((event.object_type, event.object_id) for event in table.page.object_list)
    return table


def changes(event: AuditEvent) -> list[str]:
    """ "priority 500 → 800" for each field that had a value and has another one, also within an object."""
    if event.before is None or event.after is None:
        return []
    return list(_changed(event.before, event.after))


def _changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted(before.keys() & after.keys()):
        old, new = before[name], after[name]
        if isinstance(old, dict) and isinstance(new, dict):
            yield from _changed(old, new)
        elif old not in (None, "", [], new):
            yield f"{name} {_short(old)} → {_short(new)}"


_SHOWN, _MOST = 3, 60  # parts of a list, characters


def _short(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        more = f" and {len(value) - _SHOWN} more" if len(value) > _SHOWN else ""
        value = ", ".join(_short(one) for one in value[:_SHOWN]) + more
    text = "—" if value in (None, "", []) else str(value)
    return text if len(text) <= _MOST else f"{text[: _MOST - 1]}…"


# What machines do by themselves, and what takes long, is seen at a glance: the state whose look it has, and a word.
_LOOKS = {
    "node-cache.repaired": ("Repaired", ""),
    "node-cache.restored": ("Repaired", "Applied again"),
    "node.label-restored": ("Repaired", "Label restored"),
    "node.label-swept": ("Repaired", "Label swept"),
    "node.warmed": ("Warm", "Warmed"),
    "pool.delete": ("Deleting", ""),
    "pool.deleted": ("Deleted", ""),
    "pool.delete-canceled": ("Canceled", "Kept"),
}


def _did(event: AuditEvent) -> SafeString:
    code = format_html("<code>{}</code>", event.action)
    look = _LOOKS.get(event.action)
    return format_html("{} {}", cells.pill(*look), code) if look else code


def _columns(there: Set[Subject]) -> list[Column]:
    def what(event: AuditEvent) -> SafeString:
        url = subject_url((event.object_type, event.object_id), event.object_name, there)
        changed = ", ".join(changes(event)[:4])
        return format_html("{}{}", cells.link(event.object_name, url), cells.reason(changed, event.message))

    return [
        Column("at", "When", lambda a: a.at, lambda a: cells.when(a.at), "at"),
        Column("actor", "Who", lambda a: a.actor, None, "actor"),
        Column("action", "Did", lambda a: a.action, _did, "action"),
        Column("object_name", "To what", lambda a: a.object_name, what, "object_name", heading=True),
        Column("via", "Via", lambda a: a.via, None, "via"),
    ]


def _export_columns() -> list[Column]:
    return [
        Column("id", "Id", lambda a: a.id),
        Column("object_type", "Type", lambda a: a.object_type),
        Column("object_id", "Object", lambda a: a.object_id),
        Column("before", "Before", lambda a: a.before),
        Column("after", "After", lambda a: a.after),
        Column("message", "Message", lambda a: a.message),
        Column("request_id", "Request", lambda a: a.request_id),
        Column("operation_id", "Operation", lambda a: a.operation_id),
    ]
